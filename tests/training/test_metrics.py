"""Metrics against values worked out by hand and against looped twins."""

import math

import numpy as np
import pytest
from helpers import naive
from helpers.matrices import make_pattern

from slide.sparse import Pattern
from slide.training import metrics

# Four rows with 2, 0, 1 and 4 labels.
LABELS = Pattern(np.array([0, 2, 2, 3, 7]), np.array([3, 1, 5, 0, 2, 4, 6], np.int32))
PREDICTED = np.array([[1, 2, 3], [0, 1, 2], [4, 5, -1], [6, 4, 0]])


def gain(*ranks):
    return sum(1 / math.log2(r + 1) for r in ranks)


def test_hits():
    assert metrics.hits(PREDICTED, LABELS).astype(int).tolist() == [
        [1, 0, 1],
        [0, 0, 0],
        [0, 1, 0],
        [1, 1, 1],
    ]


def test_precision():
    assert metrics.precision_at_k(PREDICTED, LABELS, 1) == pytest.approx(2 / 4)
    assert metrics.precision_at_k(PREDICTED, LABELS, 3) == pytest.approx((2 + 0 + 1 + 3) / 12)


def test_ndcg():
    rows = [gain(1, 3) / gain(1, 2), 0, gain(2) / gain(1), 1]
    assert metrics.ndcg_at_k(PREDICTED, LABELS, 3) == pytest.approx(np.mean(rows))
    assert metrics.ndcg_at_k(PREDICTED, LABELS, 1) == pytest.approx((1 + 0 + 0 + 1) / 4)


def test_inverse_propensities():
    train = Pattern(np.array([0, 2, 3]), np.array([1, 0, 1], np.int32))
    c = (math.log(2) - 1) * 2.5**0.55
    expected = [1 + c * (n + 1.5) ** -0.55 for n in (1, 2, 0)]
    np.testing.assert_allclose(metrics.inverse_propensities(train, 3), expected)
    other = metrics.inverse_propensities(train, 3, a=0.6, b=2.6)
    np.testing.assert_allclose(other[0], 1 + (math.log(2) - 1) * 3.6**0.6 * 3.6**-0.6)


def test_propensity_scored_precision():
    inverse = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    best = (4 + 2) + 0 + 6 + (7 + 5 + 3)
    found = (2 + 4) + 0 + 6 + (7 + 5 + 1)
    assert metrics.psp_at_k(PREDICTED, LABELS, 3, inverse) == pytest.approx(found / best)
    assert metrics.psp_at_k(PREDICTED, LABELS, 1, inverse) == pytest.approx((2 + 7) / (4 + 6 + 7))


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_against_loops(seed, k):
    rng = np.random.default_rng(seed)
    labels = make_pattern(rng, rng.integers(0, 8, 25), 12)
    predicted = np.array([rng.permutation(12)[:5] for _ in range(25)])
    predicted[rng.random((25, 5)).cumsum(1) > 2.5] = -1
    rows = naive.rows_of(*labels)
    inverse = rng.random(12) + 1
    assert metrics.precision_at_k(predicted, labels, k) == pytest.approx(
        naive.precision(predicted, rows, k)
    )
    assert metrics.ndcg_at_k(predicted, labels, k) == pytest.approx(naive.ndcg(predicted, rows, k))
    assert metrics.psp_at_k(predicted, labels, k, inverse) == pytest.approx(
        naive.psp(predicted, rows, k, inverse)
    )


def test_perfect_and_useless_predictions():
    labels = Pattern(np.array([0, 2, 4]), np.array([0, 1, 2, 3], np.int32))
    inverse = np.arange(1.0, 9.0)
    for predicted, value in (([[1, 0], [3, 2]], 1.0), ([[4, 5], [6, 7]], 0.0)):
        ids = np.array(predicted)
        assert metrics.precision_at_k(ids, labels, 2) == value
        assert metrics.ndcg_at_k(ids, labels, 2) == value
        assert metrics.psp_at_k(ids, labels, 2, inverse) == value


def test_no_labels_at_all():
    labels = Pattern(np.zeros(3, np.int64), np.empty(0, np.int32))
    predicted = np.array([[0], [-1]])
    assert metrics.precision_at_k(predicted, labels, 1) == 0
    assert metrics.ndcg_at_k(predicted, labels, 1) == 0
    assert metrics.psp_at_k(predicted, labels, 1, np.ones(1)) == 0


@pytest.mark.parametrize("k", [0, -1, 4, 1.5])
@pytest.mark.parametrize("name", ["precision_at_k", "ndcg_at_k", "psp_at_k"])
def test_there_are_as_many_predictions_as_count(name, k):
    more = [np.ones(7)] if name == "psp_at_k" else []
    with pytest.raises(ValueError, match=rf"^k must be a whole number in \[1, 3\], .* not {k}$"):
        getattr(metrics, name)(PREDICTED, LABELS, k, *more)


@pytest.mark.parametrize("name", ["precision_at_k", "ndcg_at_k", "psp_at_k"])
def test_there_must_be_rows(name):
    more = [np.ones(7)] if name == "psp_at_k" else []
    with pytest.raises(ValueError, match="there are no rows"):
        getattr(metrics, name)(PREDICTED[:0], LABELS.slice(0, 0), 1, *more)


def test_rows_must_match():
    with pytest.raises(ValueError, match="3 predictions do not fit 4 rows"):
        metrics.hits(PREDICTED[:3], LABELS)
