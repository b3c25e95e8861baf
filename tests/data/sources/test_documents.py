"""Texts with labels, also in damaged files."""

import json
import re

import numpy as np
import pytest
from helpers import corpus, damage, naive_json
from helpers.matrices import rows_of, to_dense
from helpers.naive_rows import BadLine
from sklearn.feature_extraction.text import TfidfVectorizer

from slide.data import DataError, TextOptions, documents
from slide.data.sources.table import document_of, read_documents

LINES = {
    "train": [
        ("A red fox jumps", ["red", "animal"]),
        ("a red red car", ["red", "thing"]),
        ("the fox and the car", ["animal"]),
        ("nothing", []),
    ],
    "test": [("A RED unknown car", ["thing", "new", "thing"]), ("", ["animal"])],
}
LABELS = ["animal", "new", "red", "thing"]


def write(folder, lines=LINES):
    for part, rows in lines.items():
        text = "".join(json.dumps({"text": t, "labels": n, "id": 7}) + "\n\n" for t, n in rows)
        (folder / f"{part}.jsonl").write_text(text, encoding="utf-8")


def opened(folder, **options):
    return documents(name="mine", root=folder, cache=folder / "cache", **options)


@pytest.mark.parametrize("options", [{}, {"ngrams": 2, "min_rows": 1, "lower": False}])
def test_rows_are_scikit_learn_s(tmp_path, options):
    write(tmp_path)
    data = opened(tmp_path, **options)
    kept = TextOptions(**options)
    peer = TfidfVectorizer(
        ngram_range=(1, kept.ngrams), min_df=kept.min_rows, lowercase=kept.lower, sublinear_tf=True
    )
    expected = [peer.fit_transform([text for text, _ in LINES["train"]])]
    expected.append(peer.transform([text for text, _ in LINES["test"]]))
    assert list(data.vectorizer.terms) == peer.get_feature_names_out().tolist()
    for split, matrix in zip((data.train, data.test), expected, strict=True):
        assert split.features.indptr.tolist() == matrix.indptr.tolist()
        dense = to_dense(split.features, matrix.shape[1])
        np.testing.assert_allclose(dense, matrix.toarray(), rtol=1e-6)


def test_labels_are_those_of_both_files(tmp_path):
    write(tmp_path)
    for data in (opened(tmp_path), opened(tmp_path)):  # Read, and from the cache.
        assert list(data.label_names) == LABELS
        for split, lines in ((data.train, LINES["train"]), (data.test, LINES["test"])):
            for found, (_, names) in zip(rows_of(split.labels), lines, strict=True):
                assert [LABELS[each] for each in found] == list(dict.fromkeys(names))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"text": 3}', "a line must be"),
        ('{"text": "a", "labels": [true]}', "labels must be a list of names"),
        ('{"text": "a", "labels": ""}', "labels must be a list of names, not ''"),
        ('{"text": "a", "labels": ["\\ud800"]}', "can't encode"),
        ('{"text": "a", ', "Expecting"),
    ],
)
def test_bad_lines_are_named(tmp_path, line, said):
    for name in ("test", "train"):
        write(tmp_path)
        lines = (tmp_path / f"{name}.jsonl").read_text().splitlines()
        (tmp_path / f"{name}.jsonl").write_text("\n".join([*lines, line]) + "\n")
        with pytest.raises(DataError, match=rf"{name}.jsonl:{len(lines) + 1}: .*{said}"):
            opened(tmp_path)
        assert not list(tmp_path.glob("cache/*/meta.json")), "nothing wrong may be kept"


@pytest.mark.parametrize("line", ['{"text": "a"}', '{"text": "a", "labels": null}'])
def test_a_row_without_labels(line):
    assert document_of(json.loads(line))[:2] == ("a", [])


def test_nothing_is_left(tmp_path):
    write(tmp_path)
    with pytest.raises(ValueError, match="no word is in 5 training rows"):
        opened(tmp_path, min_rows=5)
    (tmp_path / "train.jsonl").write_text("\n")
    with pytest.raises(DataError, match=r"train\.jsonl: there are no rows"):
        opened(tmp_path)


def test_one_file_is_read_as_two_are(tmp_path, capsys):
    """A share is set aside, and names stay as they are written."""
    rows = [(f"word and word{n}", [f" l{n % 2}"]) for n in range(20)]
    write(tmp_path, {"train": rows})
    data = opened(tmp_path, test_file=None, min_rows=1)
    assert "no test file: " in capsys.readouterr().err
    assert (len(data.train), len(data.test)) == (18, 2)
    assert list(data.label_names) == [" l0", " l1"]
    assert all(name.startswith("train.jsonl:") for name in data.test_row_names)


# Damaged files of texts: the reader names file and line in an error, or reads as a naive one.


WHOLE = corpus.ROWS["documents"]


def agree(path, data):
    """Whether the reader takes the file."""
    path.write_bytes(data)
    with corpus.kept_on_failure("documents", data):
        try:
            expected = naive_json.parsed(data, naive_json.document)
        except BadLine as bad:
            with pytest.raises(DataError, match=rf"^{re.escape(str(path))}:{bad.args[0]}: "):
                list(read_documents(path))
            return False
        assert [tuple(found[:2]) for found in read_documents(path)] == expected
        return True


def test_damaged_texts(tmp_path):
    repeat = int(500 * damage.REPEAT)
    files = [damage.damage(damage.rng_of("d", i), WHOLE, damage.JSON) for i in range(repeat)]
    whole = sum(agree(tmp_path / "a.jsonl", data) for data in files)
    assert 0.1 * repeat < whole < 0.9 * repeat, "damage is too small or too great"


def test_files_of_the_corpus(tmp_path):
    files = corpus.kept("documents")
    assert 0 < sum(agree(tmp_path / "a.jsonl", data) for data in files.values()) < len(files)
    for name, data in files.items():
        for seed in range(int(5 * damage.REPEAT)):
            rng = damage.rng_of(name, seed)
            agree(tmp_path / "a.jsonl", damage.damage(rng, data, damage.JSON))
