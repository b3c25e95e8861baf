"""Dense rows are standardized where nearest neighbours answer better then."""

import numpy as np
import pytest

import slide
from slide.data.cache import cached
from slide.data.dataset import Block, Split
from slide.data.row_transform import RowTransform
from slide.data.transforms import (
    StepOptions,
    count_steps,
    feature_moments,
    should_standardize,
    transform,
)
from slide.model.resizing import with_features
from slide.sparse import CSR, as_csr, as_pattern
from slide.utils.array_checks import Stored


def make_split(dense, labels):
    return Split(as_csr(dense), as_pattern(labels, 3), dense.shape[1], 3)


def measurements(rows=300, seed=0):
    """Two features tell the label; a third one, a thousand times as large, does not."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, rows)
    centres = np.array([[0, 0], [3, 0], [0, 3]], np.float32)[labels]
    dense = np.hstack([centres + rng.normal(0, 0.5, (rows, 2)), rng.normal(0, 1000, (rows, 1))])
    return dense.astype(np.float32), labels


def test_features_of_other_scales_are_standardized(capsys):
    dense, labels = measurements()
    assert should_standardize(make_split(dense, labels), StepOptions(l2_norm=True))
    said = capsys.readouterr().err
    assert "features are standardized: " in said
    assert "transform.standardize=false overrides it" in said


def test_features_whose_scale_says_how_much_they_tell_stay(capsys):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 300)
    dense = rng.normal(size=(300, 12)).astype(np.float32)
    dense[:, :3] += 5 * np.eye(3)[labels]
    assert not should_standardize(make_split(dense, labels), StepOptions(l2_norm=True))
    assert "transform.standardize=true overrides it" in capsys.readouterr().err


@pytest.mark.parametrize(
    "steps", [{"l2_norm": False}, {"tf_idf": True}, {"hashed_features": 2}, {"zeros": 4}]
)
def test_other_steps_and_sparse_rows_are_not_asked(steps, capsys):
    dense, labels = measurements()
    wide = np.hstack([dense, np.zeros((len(dense), steps.get("zeros", 0)), np.float32)])
    options = {"l2_norm": True} | {name: each for name, each in steps.items() if name != "zeros"}
    assert not should_standardize(make_split(wide, labels), StepOptions(**options))
    assert not capsys.readouterr().err


def test_moments_are_those_of_the_dense_rows(monkeypatch):
    rng = np.random.default_rng(1)
    dense = rng.normal(1e6, 3, (50, 4)) * (rng.random((50, 4)) < 0.7)
    dense[:, 3] = 7
    dense = dense.astype(np.float32)
    monkeypatch.setattr(Split.blocks, "__defaults__", (8, 8))
    means, scales = feature_moments(make_split(dense, np.zeros(50, int)))
    expected = dense.astype(np.float64)
    np.testing.assert_allclose(means, expected.mean(0))
    np.testing.assert_allclose(scales[:3], 1 / expected.std(0)[:3])
    assert scales[3] == 0


def test_rows_are_standardized_and_end_with_a_constant():
    dense, labels = measurements(40)
    steps = count_steps(make_split(dense, labels), standardize=True)
    found = steps.features(as_csr(dense)).values.reshape(40, 4)
    expected = (dense - dense.mean(0)) / dense.std(0)
    np.testing.assert_allclose(found[:, :3], expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found[:, 3], np.sqrt(3))
    assert steps.num_columns == (4, 3)
    again = RowTransform.restored(Stored(steps.settings(), steps.arrays()))
    np.testing.assert_array_equal(again.features(as_csr(dense)).values, found.ravel())
    empty = CSR(np.zeros(2, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    assert np.isfinite(steps.features(empty).values).all()
    with pytest.raises(ValueError, match="there can be no new ones"):
        with_features([steps], 1)


def test_a_data_set_in_a_cache(tmp_path, capsys):
    dense, labels = measurements()
    split = make_split(dense, labels)
    block = [Block(split.features, split.labels)]
    options = {"blocks": lambda part: block, "num_columns": lambda: (3, 3)}
    data = cached(tmp_path, name="made", key={"made": 1}, state={}, **options)
    for _ in range(2):  # Computed, and opened again.
        made = transform(data, standardize="auto", l2_norm=True)
        assert (made.num_features, made.steps[0].standardizes) == (4, True)
        assert "features are standardized" in capsys.readouterr().err
    same = transform(data, standardize=False, l2_norm=True)
    assert (same.num_features, same.steps[0].standardizes) == (3, False)


def test_a_classifier_answers_better(tmp_path):
    dense, labels = measurements(400)
    options = {"max_epochs": 4, "random_state": 0, "ranker": None}
    scores = {}
    for standardize in ("auto", False):
        model = slide.SlideClassifier(standardize=standardize, **options)
        scores[standardize] = model.fit(dense[:300], labels[:300]).score(dense[300:], labels[300:])
        if standardize == "auto":
            model.save(tmp_path / "m")
            answers = slide.load(tmp_path / "m").predict(dense[300:], k=1)[0]
            np.testing.assert_array_equal(answers[:, 0], model.predict(dense[300:]))
    assert scores["auto"] > scores[False] + 0.1
    with pytest.raises(ValueError, match="standardize needs all rows"):
        slide.SlideClassifier(standardize=True).partial_fit(dense, labels, classes=[0, 1, 2])
    with pytest.raises(ValueError, match="standardize must be true or false, not 'yes'"):
        slide.SlideClassifier(standardize="yes").fit(dense, labels)
