"""Rows to predict: their columns, their numbering, and damaged files."""

import contextlib
import gzip
import io
import json
import re
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse
from helpers import corpus, damage, job, naive_json
from helpers.commands import slide_predict
from helpers.naive_rows import BadLine, to_lists

import slide
from slide import FullSampler, SlideNetwork
from slide.data import DataError, TextOptions, TextVectorizer, errors, table_files, write_xmc
from slide.data.table_files import read_lines
from slide.model import Model, Predicted, load
from slide.predict.rows import Beginning, Numbering, read_rows
from slide.serve import routes
from slide.serve.routes import Query, Row, rows_to_csr

WORDS = ["5", "red", "7"]
NUMBERS = [5, -3, 7]


@pytest.fixture
def model():
    return slide.Model(slide.SlideNetwork(4, [2], 3, slide.FullSampler))


def read(path, model):
    return list(read_rows(str(path), model))


def test_a_matrix_of_another_width(tmp_path, model):
    scipy.sparse.save_npz(tmp_path / "a.npz", scipy.sparse.csr_array(np.eye(2, 3)))
    with pytest.raises(DataError, match="a matrix of 3 columns does not fit 4 features"):
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


@pytest.mark.parametrize(
    ("name", "before"), [("a.txt", b"1 2:1\n"), ("a.svm", b""), ("a.jsonl", b"\n")]
)
def test_a_line_without_an_end_does_not_fill_the_memory(tmp_path, model, monkeypatch, name, before):
    for module in (errors, table_files):
        monkeypatch.setattr(module, "LONGEST_LINE", 100)
    (tmp_path / name).write_bytes(before + b"\0" * 101)
    with pytest.raises(DataError, match=f"{name}: a line has more than 100 bytes: is it text?"):
        read(tmp_path / name, model)


@pytest.mark.parametrize("first_line", [Beginning, lambda file, name: read_lines(file, name)])
def test_empty_lines_without_an_end_do_not_fill_the_memory(monkeypatch, first_line):
    file = io.BytesIO(b"\n" * 500_000)
    tracemalloc.start()
    first_line(file, "a")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000
    monkeypatch.setattr(errors, "LONGEST_LINE", 100_000)
    file.seek(0)
    with pytest.raises(DataError, match="a: a line has more than 100,000 bytes"):
        first_line(file, "a")


def test_labels_that_are_no_list(tmp_path):
    with pytest.raises(DataError, match=r"a\.jsonl:1: labels must be a list of names, not 'red'"):
        labels_of(tmp_path, WORDS, "red")


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


@pytest.mark.parametrize(
    ("names", "label"), [(WORDS, [2]), (NUMBERS, 1.5), (NUMBERS, True), (None, 1.5), (None, None)]
)
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


@pytest.mark.parametrize(
    "line", ['{"features": {"2": 1}, "features": {"1": 1}}', '{"features": {"2": "x", "2": 1}}']
)
def test_other_names_stand_once(tmp_path, model, line):
    (tmp_path / "a.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=r"a\.jsonl:1: '(2|features)' stands twice in an object"):
        read(tmp_path / "a.jsonl", model)


@pytest.fixture
def reader():
    """A model that reads texts."""
    vectorizer = TextVectorizer.fit(["red sky", "blue sea"], TextOptions(min_rows=1))
    network = slide.SlideNetwork(len(vectorizer.terms), [2], 3, slide.FullSampler)
    return slide.Model(network, vectorizer=vectorizer)


def test_texts_after_a_blank_line(tmp_path, reader):
    (tmp_path / "none").write_text("")
    assert read(tmp_path / "none", reader) == []
    (tmp_path / "rows").write_text('\n{"text": "red sea"}\n')
    (block,) = read(tmp_path / "rows", reader)
    assert len(block.features.indices) == 2


def test_a_line_that_is_no_text_in_json(tmp_path, reader):
    (tmp_path / "rows.txt").write_text('{"text": "red"}\nred sky\n')
    with pytest.raises(DataError, match=r'rows\.txt:2: a line must be .* or {"text": ".*Expecting'):
        read(tmp_path / "rows.txt", reader)


# Rows to predict, and answers, have the numbers of the training files.


pytestmark = pytest.mark.usefixtures("one_thread")
COUNTED = {"format": "xmc", "first_feature": 1, "first_label": 1}


@pytest.fixture(scope="module")
def folder(data, network, files):
    """One network, as if trained on files of several kinds, and rows as they would be there."""
    kinds = {"ones": COUNTED, "svm": {"format": "svmlight"}, "xmc": {"format": "xmc"}, "none": {}}
    for name, each in kinds.items():
        Model(network, settings={"dataset": each}).save(files / name)
    write_xmc(files / "ones.txt", data.test, first_feature=1, first_label=1)
    for name in ("ones", "rows"):
        lines = (files / f"{name}.txt").read_text().splitlines(keepends=True)
        (files / f"{name}.part").write_text("".join(lines[1:]))
    return files


def predict(*words):
    """The labels that a call answers, and what it says beside."""
    with contextlib.redirect_stderr(io.StringIO()) as said:
        lines = slide_predict(*words).splitlines()
    return np.array([json.loads(line)["labels"] for line in lines]), said.getvalue()


@pytest.mark.parametrize(
    ("model", "rows", "more"),
    [
        ("ones", "ones.part", 1),
        ("xmc", "rows.part", 0),
        ("svm", "rows.svm", 0),
        ("svm", "rows.txt", 0),
    ],
)
def test_text(folder, data, model, rows, more):
    expected = load(folder / "xmc").predict(data.test.features)[0]
    alone = predict(folder / "xmc", folder / "rows.txt")[1]
    labels, said = predict(folder / model, folder / rows)
    np.testing.assert_array_equal(labels, expected + more)
    assert said == alone, "the precision, and nothing else"


def test_rows_of_a_part_may_be_empty(folder, tmp_path):
    """Else the answers would be those of other rows."""
    (tmp_path / "part").write_text("1 3:1\n\n \n2 4:1\n")
    assert len(predict(folder / "xmc", tmp_path / "part")[0]) == 4


def test_nothing_is_known_of_the_training_files(folder, data):
    lines = (folder / "rows.svm").read_bytes()
    (folder / "unnamed").write_bytes(lines)
    labels, said = predict(folder / "none", folder / "unnamed")
    np.testing.assert_array_equal(labels, load(folder / "none").predict(data.test.features)[0])
    assert "unnamed: read as svmlight, with features from 1 on; --format says otherwise" in said


def test_lines_of_json(folder, data, tmp_path):
    row = data.test.take(np.array([0]))
    features = {str(n + 1): float(v) for n, v in zip(*row.features[1:], strict=True)}
    line = {"features": features, "labels": (row.labels.indices + 1).tolist()}
    (tmp_path / "a.jsonl").write_text(json.dumps(line))
    labels, said = predict(folder / "ones", tmp_path / "a.jsonl", "-k", 80)
    expected = load(folder / "ones").predict(row.features, 80)[0]
    np.testing.assert_array_equal(labels, expected + 1)
    assert said.startswith("P@1 ")
    (tmp_path / "b.jsonl").write_text('{"features": {"0": 1}}')
    with pytest.raises(SystemExit, match=r"feature 0 is not in \[1, 61\)"):
        predict(folder / "ones", tmp_path / "b.jsonl")


def test_a_list_of_json_is_read_as_its_lines(folder, tmp_path):
    rows = [{"features": {"1": 0.5}, "labels": [2]}, {"features": [60]}]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    expected = predict(folder / "ones", tmp_path / "a.jsonl")
    for name in ("a.json", "a.rows"):
        (tmp_path / name).write_text(json.dumps(rows, indent=1))
        labels, said = predict(folder / "ones", tmp_path / name)
        assert (labels.tolist(), said) == (expected[0].tolist(), expected[1])


def test_features_and_labels_in_two_files(folder, tmp_path):
    expected, said = predict(folder / "xmc", folder / "rows.txt")
    header, *lines = (folder / "rows.txt").read_text().splitlines()
    rows, features, labels = header.split()
    parts = [line.partition(" ")[::2] for line in lines]
    text = "".join(f"{features}\n" for _, features in parts)
    (tmp_path / "X").write_text(f"{rows} {features}\n{text}")
    text = "".join(f"{re.sub(r'(,|$)', ':1 ', labels)}\n" for labels, _ in parts)
    (tmp_path / "Y").write_text(f"{rows} {labels}\n{text}")
    found = predict(folder / "xmc", tmp_path / "X", "--labels", tmp_path / "Y")
    assert (found[0].tolist(), found[1]) == (expected.tolist(), said)
    found = predict(folder / "xmc", tmp_path / "X")
    assert (found[0].tolist(), found[1]) == (expected.tolist(), "")


def test_only_some_labels(folder, data, tmp_path):
    (tmp_path / "some").write_text("1\n80\n")
    found = predict(folder / "ones", folder / "ones.txt", "-k", 2, "--restrict", tmp_path / "some")
    assert set(found[0].ravel().tolist()) == {1, 80}
    (tmp_path / "some").write_text("1\n0\n")
    with pytest.raises(SystemExit, match=r"some: label 0 is not in \[1, 81\)"):
        predict(folder / "ones", folder / "ones.txt", "--restrict", tmp_path / "some")


def test_rows_of_requests(folder):
    model = load(folder / "ones")
    found = rows_to_csr([Row(indices=[1, 60]), Row(features=[2])], model)
    assert found.indices.tolist() == [0, 59, 1]
    for wrong in (0, 61):
        message = rf"row 0: feature {wrong} is not in \[1, 61\)"
        with pytest.raises(ValueError, match=message):
            rows_to_csr([Row(indices=[wrong])], model)


def test_answers_to_requests(folder):
    found = Predicted(np.array([[0, 79, -1]]), np.array([[0.9, 0.5, 0.0]]))
    query = Query(rows=[Row(indices=[1])])
    for name, more in (("ones", 1), ("xmc", 0)):
        (answer,) = json.loads(routes._written(found, query, load(folder / name)))["answers"]
        assert answer == {"labels": [more, 79 + more], "scores": [0.9, 0.5]}


def test_precision_is_that_of_the_answers(folder):
    _, said = predict(folder / "xmc", folder / "rows.txt", "--threshold", "1e30")
    assert said.startswith("P@1 0.0000")


# Damaged lines of JSON to predict: an error names file and line, or rows are a naive reader's.


FEATURES, LABELS = corpus.FEATURES, corpus.LABELS


@pytest.fixture(scope="module")
def texts_or_rows():
    return Model(SlideNetwork(FEATURES, [2], LABELS, FullSampler))


def read_damaged(path, texts_or_rows):
    blocks = read_rows(str(path), texts_or_rows)
    return [row for block in blocks for row in to_lists(block.features, block.labels)]


def agree(path, data, texts_or_rows):
    """Whether the reader takes the file; a file that fails is kept if this is a longer run."""
    path.write_bytes(data)
    if data.lstrip()[:1] == b"[":  # A list of rows, which are no lines.
        with contextlib.suppress(DataError):
            read_damaged(path, texts_or_rows)
        return False
    try:
        try:
            expected = naive_json.parsed(data, naive_json.prediction_row(FEATURES, LABELS))
        except BadLine as bad:
            with pytest.raises(DataError, match=rf"^{re.escape(str(path))}:{bad.args[0]}: "):
                read_damaged(path, texts_or_rows)
            return False
        assert read_damaged(path, texts_or_rows) == expected
    except BaseException:
        print(repr(data))
        if damage.REPEAT > 1:
            corpus.keep("jsonl", data)
        raise
    return True


def test_damaged_rows(tmp_path, texts_or_rows):
    repeat, whole = int(1500 * damage.REPEAT), corpus.ROWS["jsonl"]
    files = [damage.damage(damage.rng_of("j", i), whole, damage.JSON) for i in range(repeat)]
    sound = sum(agree(tmp_path / "a.jsonl", data, texts_or_rows) for data in files)
    assert 0.1 * repeat < sound < 0.9 * repeat, "damage is too small or too great"


def test_files_of_the_corpus(tmp_path, texts_or_rows):
    files = corpus.kept("jsonl")
    assert (
        0
        < sum(agree(tmp_path / "a.jsonl", data, texts_or_rows) for data in files.values())
        < len(files)
    )
    for name, data in files.items():
        for seed in range(int(5 * damage.REPEAT)):
            rng = damage.rng_of(name, seed)
            agree(tmp_path / "a.jsonl", damage.damage(rng, data, damage.JSON), texts_or_rows)


def test_models_that_name_no_files(data):
    assert Numbering.of(Model(job.make_network(data))) == Numbering(None, 0, 0)
    settings = {"dataset": {"format": ["xmc"]}}
    assert Numbering.of(Model(job.make_network(data), settings=settings)) == Numbering(None, 0, 0)
