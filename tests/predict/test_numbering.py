"""Rows to predict, and answers, have the numbers of the training files."""

import contextlib
import io
import json

import numpy as np
import pytest
from helpers import job
from helpers.commands import slide_predict

from slide.data import write_xmc
from slide.model import Model, Predicted, load
from slide.predict.rows import Numbering
from slide.serve import routes
from slide.serve.routes import Query, Row, rows_to_csr

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
        ("ones", "ones.txt", 1),
        ("ones", "ones.part", 1),
        ("xmc", "rows.part", 0),
        ("svm", "rows.svm", 0),
        ("xmc", "rows.svm", 0),
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
        (answer,) = routes._answers(found, query, load(folder / name))
        assert answer == {"labels": [more, 79 + more], "scores": [0.9, 0.5]}


def test_precision_is_that_of_the_answers(folder):
    _, said = predict(folder / "xmc", folder / "rows.txt", "--threshold", "1e30")
    assert said.startswith("P@1 0.0000")


def test_models_that_name_no_files(data):
    assert Numbering.of(Model(job.make_network(data))) == Numbering(None, 0, 0)
