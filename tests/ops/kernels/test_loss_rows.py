"""The functions that losses share, against their scalar twins."""

import numpy as np
import pytest
from helpers import naive_losses as naive

from slide.ops.kernels import losses as kernels

NUMBERS = [-1e4, -800.0, -30.0, -1.5, -0.0, 0.0, 1e-8, 0.7, 29.0, 31.0, 800.0, 1e4]


@pytest.mark.parametrize("name", ["softplus", "sigmoid", "hinge"])
def test_functions_of_one_number(name):
    for z in NUMBERS:
        found, expected = getattr(kernels, name)(z), getattr(naive, name)(z)
        assert found == pytest.approx(expected, rel=1e-12, abs=1e-12)


def test_hinge_keeps_nan():
    assert np.isnan(kernels.hinge(np.nan))


@pytest.mark.parametrize("weighted", [False, True])
def test_add_weights(weighted):
    rng = np.random.default_rng(0)
    scores = rng.standard_normal(7)
    log_weights = rng.standard_normal(7 if weighted else 0)
    out = np.empty(7)
    kernels.add_weights(scores, log_weights, out)
    np.testing.assert_array_equal(out, naive.add_weights(scores.tolist(), log_weights.tolist()))


@pytest.mark.parametrize(
    "logits", [[0.3, -2.0, 5.0], [1e4, 1e4, -1e4], [-1e4, -1e4], [-np.inf, 0.0], [-np.inf] * 3]
)
def test_normalise(logits):
    out = np.array(logits)
    total = kernels.normalise(out, 0.5)
    expected, wanted = naive.normalise(logits, 0.5)
    np.testing.assert_allclose(out, expected, rtol=1e-12, atol=1e-300)
    assert total == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_score_row(shared, weighted):
    rng = np.random.default_rng(1)
    indptr = np.array([0, 4, 8] if shared else [0, 3, 3, 8])
    targets = np.array([0, 2, 3] if shared else [0, 1, 1, 3])
    size = 4 if shared else 8
    rows = kernels.Rows(
        *(indptr, rng.standard_normal(8), targets, np.array([1, 0, 2], np.int32)),
        *(rng.standard_normal(size if weighted else 0), shared, 1.0),
    )
    for b in range(len(indptr) - 1):
        found = [part.tolist() for part in kernels.score_row(rows, b)]
        assert found == list(naive.score_row(rows, b))
