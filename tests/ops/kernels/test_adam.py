"""Adam on some rows, against its looped twin."""

import numpy as np
import pytest
from helpers import naive
from helpers.matrices import make_pattern

from slide.active_set import transpose
from slide.ops.kernels import adam as kernels
from slide.ops.kernels.adam import AdamHyper, AdamRows, Factors

HYPER = AdamHyper(lr=0.03, beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.1, step=7)


def draw_state(rng, num_rows, width, dtype, corrected, rowwise=False, hyper=HYPER):
    """Random weight and moments, and steps of the past in which each row was touched.

    Without a first moment if ``hyper.beta1`` is 0.
    """
    shape = (num_rows, width)
    last = rng.integers(0, HYPER.step, num_rows if corrected else 0).astype(np.int32)
    return AdamRows(
        rng.standard_normal(shape).astype(dtype),
        rng.standard_normal(shape if hyper.beta1 else (0, 0)).astype(dtype),
        rng.random((num_rows, 1) if rowwise else shape).astype(dtype),
        last,
    )


def expected_state(state, ids, grads, hyper=HYPER):
    """The looped twin, on copies."""
    weight, first, second, last = (array.copy() for array in state)
    for r, gradient in zip(ids, grads, strict=True):
        skipped = hyper.step - 1 - last[r] if len(last) and last[r] else 0
        old = first[r] if len(first) else np.zeros_like(weight[r])
        weight[r], new, second[r] = naive.adam_row(
            weight[r], old, second[r], gradient, hyper, skipped
        )
        if len(first):
            first[r] = new
        if len(last):
            last[r] = HYPER.step
    return weight, first, second, last


def assert_states_equal(state, expected, tolerance):
    for array, wanted in zip(state, expected, strict=True):
        np.testing.assert_allclose(array, wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("hyper", [HYPER, HYPER._replace(beta1=0.0)])
@pytest.mark.parametrize("rowwise", [False, True])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("num_rows", "num_touched", "width"),
    [(8, 5, 3), (8, 1, 1), (8, 0, 2), (8, 8, 4), (1, 1, 1), (1, 1, 3)],
)
def test_adam_rows(num_rows, num_touched, width, dtype, corrected, rowwise, hyper):
    rng = np.random.default_rng(num_touched)
    state = draw_state(rng, num_rows, width, dtype, corrected, rowwise, hyper)
    ids = rng.permutation(num_rows)[:num_touched].astype(np.int32)
    grads = rng.standard_normal((num_touched, width)).astype(dtype)
    expected = expected_state(state, ids, grads, hyper)
    kernels.adam_rows(state, hyper, ids, grads, 2)
    assert_states_equal(state, expected, 1e-5 if dtype == np.float32 else 1e-12)


@pytest.mark.parametrize("hyper", [HYPER, HYPER._replace(beta1=0.0)])
@pytest.mark.parametrize("rowwise", [False, True])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("num_chunks", [1, 3, 16])
@pytest.mark.parametrize("lengths", [[3, 0, 5, 2], [1], [], [0, 0]])
def test_adam_factored(lengths, num_chunks, dtype, corrected, rowwise, hyper):
    rng = np.random.default_rng(num_chunks)
    state = draw_state(rng, 8, 3, dtype, corrected, rowwise, hyper)
    pattern = make_pattern(rng, lengths, 8)
    coefficients = rng.standard_normal(len(pattern.indices)).astype(dtype)
    vectors = rng.standard_normal((len(lengths), 3)).astype(dtype)
    gradient = naive.row_gradient(*pattern, coefficients, vectors)
    expected = expected_state(state, list(gradient), list(gradient.values()), hyper)
    t = transpose(pattern, 8)
    factors = Factors(t.ids, t.starts, t.entries, t.samples, coefficients, vectors)
    kernels.adam_factored(state, hyper, factors, num_chunks)
    assert_states_equal(state, expected, 1e-5 if dtype == np.float32 else 1e-12)
