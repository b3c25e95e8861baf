"""Models that take texts: from a run to answers with names."""

import json

import numpy as np
import pytest
from helpers import datafiles, job

import slide


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a run on texts, one of whose labels is left out; and lines of texts."""
    folder = tmp_path_factory.mktemp("texts")
    data = job.make_data(folder, **job.WITH_HELD)
    datafiles.write_documents(folder, data, {})
    sizes = [word for word in job.tiny(folder) if not word.startswith("dataset.")]
    places = [f"dataset.root={folder}", f"dataset.cache={folder}/cache", "dataset.min_rows=1"]
    job.main(*sizes, "dataset=documents", *places, "transform.min_label_count=2")
    return folder / "run", (folder / "test.jsonl").read_text().splitlines()


def test_texts_and_rows_get_the_same_answers(run):
    folder, lines = run
    model = slide.load(folder)
    texts = [json.loads(line)["text"] for line in lines]
    labels, scores = model.predict(texts, k=3)
    again = model.predict(model.rows_of(texts), k=3)
    np.testing.assert_array_equal(scores, again.scores)
    assert (labels == again.labels).all()
    assert all(label.startswith("label ") for label in labels.ravel())
    known = set(model.label_names)
    assert {name for line in lines for name in json.loads(line)["labels"]} <= known


@pytest.mark.parametrize("form", [tuple, iter, np.array])
def test_forms_of_texts(run, form):
    model = slide.load(run[0])
    texts = ["word1 word2", "word3"]
    for some in (texts, []):
        labels, _ = model.predict(form(some), k=2)
        assert labels.shape == (len(some), 2)
        assert (labels == model.predict(texts[: len(some)], k=2).labels).all()


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ("word1 word2", "give a list of texts, not the single text 'word1 word2'"),
        (["word1", None], "text 1 must be a str, not None"),
        ([3, "word1"], "text 0 must be a str, not 3"),
        (np.array(["word1", 2.5], object), "text 1 must be a str, not 2.5"),
        ({"word1": 2}, "features must be"),
    ],
)
def test_what_is_no_text(run, texts, said):
    with pytest.raises(TypeError, match=said):
        slide.load(run[0]).predict(texts)


def test_a_saved_copy_takes_texts_too(run, tmp_path):
    model = slide.load(run[0])
    some = list(model.label_names)[:40]
    model.restricted(some).save(tmp_path / "copy")
    labels, _ = slide.load(tmp_path / "copy").predict(["word1 word2"], k=2)
    assert set(labels[0]) <= set(some)
