"""Names and numbers of labels and features in lines of JSON."""

import gzip
import json
import os
import threading
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse

import slide
from slide.data import DataError, TextOptions, TextVectorizer
from slide.predict.rows import read_rows

WORDS = ["5", "red", "7"]
NUMBERS = [5, -3, 7]


@pytest.fixture
def model():
    return slide.Model(slide.SlideNetwork(4, [2], 3, slide.FullSampler))


def read(path, model):
    return list(read_rows(str(path), model))


@pytest.mark.parametrize("columns", [3, 5])
def test_a_matrix_of_another_width(tmp_path, model, columns):
    scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.csr_array(np.eye(2, columns)))
    with pytest.raises(DataError, match=f"a matrix of {columns} columns does not fit 4 features"):
        read(tmp_path / "a.npz", model)


def test_a_header_of_other_data(tmp_path, model, capsys):
    (tmp_path / "a.txt").write_text("1 3 9\n2 1:1\n")
    assert len(read(tmp_path / "a.txt", model)) == 1
    assert "has 3 features and 9 labels, and the model 4 and 3: are" in capsys.readouterr().err
    (tmp_path / "a.txt").write_text("1 4 3\n2 1:1\n")
    read(tmp_path / "a.txt", model)
    assert "warning" not in capsys.readouterr().err


def test_compressed_rows(tmp_path, model):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"1 4 3\n2 1:1\n"))
    with pytest.raises(
        DataError, match=r"a\.txt\.gz is compressed by gzip; unpack it first, as in"
    ):
        read(tmp_path / "a.txt.gz", model)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe(tmp_path, model):
    os.mkfifo(tmp_path / "pipe")
    write, text = (tmp_path / "pipe").write_bytes, b"1 4 3\n2 1:1\n"
    # A writer that nobody reads from waits for ever: it must not hold up the end of the tests.
    writer = threading.Thread(target=write, args=(text,), daemon=True)
    writer.start()
    (block,) = read(tmp_path / "pipe", model)
    writer.join(10)
    assert block.labels.indices.tolist() == [2]


@pytest.mark.parametrize("labels", ["red", 5, {"red": 1}])
def test_labels_that_are_no_list(tmp_path, labels):
    with pytest.raises(DataError, match=r"a\.jsonl:1: labels must be a list of names, not "):
        labels_of(tmp_path, WORDS, labels)


def labels_of(folder, names, *rows):
    """The numbers of the labels of rows, for a model with these ``names`` of 3 labels."""
    network = slide.SlideNetwork(4, [2], 3, slide.FullSampler)
    model = slide.Model(network, label_names=names)
    lines = [json.dumps({"features": [0], "labels": row}) for row in rows]
    (folder / "a.jsonl").write_text("\n".join(lines))
    (block,) = read_rows(str(folder / "a.jsonl"), model)
    bounds = block.labels.indptr
    return [block.labels.indices[begin:end].tolist() for begin, end in pairwise(bounds)]


@pytest.mark.parametrize(
    ("names", "row", "expected"),
    [
        (WORDS, [5, "red", "7"], [0, 1, 2]),  # Names of documents are texts, whatever a line has.
        (WORDS, [5, "5"], [0]),
        (WORDS, [8, "8", "blue", "9" * 5000], [3, 4, 5]),
        (NUMBERS, ["5", -3, "-3", 7], [0, 1, 2]),
        (NUMBERS, ["abc", "1.5", 8], [3, 4, 5]),
        (None, ["2", 0, 9], [2, 0, 3]),
    ],
)
def test_names_that_look_like_numbers(tmp_path, names, row, expected):
    assert labels_of(tmp_path, names, row) == [expected]


@pytest.mark.parametrize("names", [WORDS, NUMBERS, None])
@pytest.mark.parametrize("label", [[2], 1.5, None, True])
def test_what_is_no_name(tmp_path, names, label):
    said = "neither text nor a whole number" if names else "no number; the model has no names"
    with pytest.raises(DataError, match=rf"a\.jsonl:2: .* is {said}"):
        labels_of(tmp_path, names, [], [label])


def test_a_feature_that_a_line_names_twice(tmp_path, model):
    """As in a list of names; JSON itself keeps the last value only."""
    (tmp_path / "a.jsonl").write_text('{"features": {"2": 1.5, "1": 1, "2": 2, "2": -1}}\n')
    (block,) = read(tmp_path / "a.jsonl", model)
    assert block.features.indices.tolist() == [2, 1]
    assert block.features.values.tolist() == [2.5, 1]
    for value in ("3e38", "1" + "0" * 400):
        text = f'{{"features": {{"2": {value}, "2": 3e38}}}}'
        (tmp_path / "a.jsonl").write_text(text)
        with pytest.raises(DataError, match=r"of feature '2' is not a finite float32"):
            read(tmp_path / "a.jsonl", model)


@pytest.fixture
def reader():
    """A model that reads texts."""
    vectorizer = TextVectorizer.fit(["red sky", "blue sea"], TextOptions(min_rows=1))
    network = slide.SlideNetwork(len(vectorizer.terms), [2], 3, slide.FullSampler)
    return slide.Model(network, vectorizer=vectorizer)


def test_no_texts(tmp_path, reader):
    (tmp_path / "none").write_text("")
    assert read(tmp_path / "none", reader) == []


def test_texts_after_a_blank_line(tmp_path, reader):
    (tmp_path / "rows").write_text('\n{"text": "red sea"}\n')
    (block,) = read(tmp_path / "rows", reader)
    assert len(block.features.indices) == 2


def test_a_line_that_is_no_text_in_json(tmp_path, reader):
    (tmp_path / "rows.txt").write_text('{"text": "red"}\nred sky\n')
    with pytest.raises(DataError, match=r'rows\.txt:2: the model reads texts; a line must be {"te'):
        read(tmp_path / "rows.txt", reader)
