"""Weights of rows: in the loss, in the classifiers and in the judge of the re-ranker."""

import numpy as np
import pytest
import torch
from helpers import job

import slide
from slide import SlideClassifier
from slide.ranking import EnsembleRanker

pytestmark = pytest.mark.usefixtures("one_thread")
FEW = {"epochs": 2, "hidden": 16, "random_state": 0}


def weights_of(model):
    return model.model_.network.output.weight.detach()


@pytest.mark.parametrize("ranker", [None, "ensemble"])
def test_only_the_ratios_count(rows, ranker):
    plain = SlideClassifier(ranker=ranker, **FEW).fit(*rows)
    ones = SlideClassifier(ranker=ranker, **FEW).fit(*rows, sample_weight=np.full(300, 7.0))
    torch.testing.assert_close(weights_of(ones), weights_of(plain))
    found, expected = (m.predict_proba(rows[0]) for m in (ones, plain))
    np.testing.assert_allclose(found.toarray(), expected.toarray(), atol=1e-5)
    other = SlideClassifier(ranker=ranker, **FEW).fit(*rows, np.arange(1, 301))
    assert not torch.allclose(weights_of(other), weights_of(plain))


def test_rows_of_weight_zero_are_left_out(rows):
    X, Y = rows
    half = np.repeat([1.0, 0.0], 150)
    one = SlideClassifier(**FEW).fit(X, Y, half)
    other = SlideClassifier(**FEW).fit(X[:150], Y[:150])
    assert torch.equal(weights_of(one), weights_of(other))
    assert (one.predict_proba(X) != other.predict_proba(X)).nnz == 0


def test_heavy_rows_win():
    """The same features have two labels; the heavier rows decide."""
    X = np.tile(np.eye(4, dtype=np.float32), (100, 1))
    y = np.repeat([0, 1], 200)
    for heavy in (0, 1):
        weights = np.where(y == heavy, 5.0, 1.0)
        for model in (
            SlideClassifier(**FEW).fit(X, y, weights),
            SlideClassifier(**FEW, ranker=None, lr=0.02).fit(X, y, weights),
        ):
            assert (model.predict(X[:4]) == heavy).all()
        model = SlideClassifier(**FEW, lr=0.02).partial_fit(X, y, [0, 1], weights)
        for _ in range(5):
            model.partial_fit(X, y, sample_weight=weights)
        assert (model.predict(X[:4]) == heavy).all()


def test_each_part_of_the_ranker_takes_them(tmp_path):
    data = job.make_data(tmp_path, train_samples=600)
    network = job.make_network(data)
    train, held = data.train.slice(0, 400), data.train.slice(400, 600)

    def fitted(train, held):
        ranker = EnsembleRanker().fit(network, train, held)
        return ranker.scorers["linear"].weights.values, ranker.final_ranker.trees.values

    def heavy(split):
        some = np.where(np.arange(len(split)) % 2, 9.0, 0.1)
        return slide.data.Split(split.features, split.labels, 60, 80, some)

    linear, trees = fitted(train, held)
    found = fitted(heavy(train), held)[0]
    assert len(found) != len(linear) or not np.allclose(found, linear)
    found = fitted(train, heavy(held))
    np.testing.assert_array_equal(found[0], linear)
    assert len(found[1]) != len(trees) or not np.allclose(found[1], trees)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(299), r"sample_weight \(299,\) do not fit 300 rows"),
        (-np.ones(300), "sample_weight must be finite and at least 0, not -1.0"),
        (np.zeros(300), "Sample weights must contain at least one non-zero number"),
        (np.full(300, np.nan), "sample_weight must be finite and at least 0, not nan"),
    ],
)
def test_weights_that_cannot_be(rows, weights, message):
    with pytest.raises(ValueError, match=message):
        SlideClassifier(**FEW).fit(*rows, weights)
