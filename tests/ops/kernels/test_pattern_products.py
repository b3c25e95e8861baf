"""Products on patterns, against the looped twins."""

import numpy as np
import pytest
from helpers import naive, naive_arrays
from helpers.products import SHAPES, draw_product

from slide.active_set import transpose
from slide.ops.kernels import pattern_products as kernels
from slide.sparse import Pattern

TYPES = [np.float32, np.float64]


def tolerance(dtype):
    return 1e-5 if dtype == np.float32 else 1e-12


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
class TestProducts:
    def test_sampled_product(self, shape, dtype, seed):
        pattern, _, vectors, rows, bias = draw_product(shape, dtype, seed)
        for b in (bias, bias[:0]):
            out = np.full(len(pattern.indices), np.nan, dtype)
            kernels.sampled_product(*pattern, vectors, rows, b, out)
            expected = naive.sampled_product(*pattern, vectors, rows, b)
            np.testing.assert_allclose(out, expected, atol=tolerance(dtype))

    @pytest.mark.parametrize("chunks", [1, 3, 50])
    def test_grouped_product(self, shape, dtype, seed, chunks):
        pattern, _, vectors, rows, bias = draw_product(shape, dtype, seed)
        for b in (bias, bias[:0]):
            out = np.full(len(pattern.indices), np.nan, dtype)
            groups = transpose(pattern, len(rows))
            kernels.grouped_product(groups, vectors, rows, b, chunks, out)
            expected = naive.sampled_product(*pattern, vectors, rows, b)
            np.testing.assert_allclose(out, expected, atol=tolerance(dtype))

    def test_weighted_sum_adds_to_what_is_there(self, shape, dtype, seed):
        pattern, coefficients, vectors, rows, _ = draw_product(shape, dtype, seed)
        coefficients[::3] = 0
        out = vectors.copy()
        kernels.weighted_sum(*pattern, coefficients, rows, out)
        expected = naive.weighted_sum(*pattern, coefficients, rows, vectors)
        np.testing.assert_allclose(out, expected, atol=tolerance(dtype))

    def test_row_gradient(self, shape, dtype, seed):
        pattern, coefficients, vectors, rows, _ = draw_product(shape, dtype, seed)
        t = transpose(pattern, len(rows))
        out = np.full((len(t.ids), vectors.shape[1]), np.nan, dtype)
        kernels.row_gradient(t.starts, t.entries, t.samples, coefficients, vectors, out)
        expected = naive.row_gradient(*pattern, coefficients, vectors)
        assert t.ids.tolist() == list(expected)
        np.testing.assert_allclose(
            out, np.reshape(list(expected.values()), out.shape), atol=tolerance(dtype)
        )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES)
def test_transpose_groups_entries_by_id(shape, seed):
    pattern, _, _, rows, _ = draw_product(shape, np.float32, seed)
    t = transpose(pattern, len(rows))
    expected = naive.transpose(*pattern)
    assert t.ids.tolist() == list(expected)
    assert len(t.starts) == len(t.ids) + 1
    for u, group in enumerate(expected.values()):
        at = slice(t.starts[u], t.starts[u + 1])
        assert list(zip(t.entries[at].tolist(), t.samples[at].tolist(), strict=True)) == group


def test_transpose_of_one_id_shared_by_all_samples():
    pattern = Pattern(np.arange(6), np.full(5, 3, np.int32))
    t = transpose(pattern, 8)
    assert t.ids.tolist() == [3]
    assert t.starts.tolist() == [0, 5]
    assert t.samples.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES)
def test_group_entries(shape, seed):
    pattern, _, _, rows, _ = draw_product(shape, np.float32, seed)
    # Groups of several ids, and groups without any.
    slots = np.random.default_rng(seed).integers(0, 4, len(rows)).astype(np.int32)
    starts, nnz = np.full(5, -1, np.int64), len(pattern.indices)
    entries, samples = np.empty(nnz, np.int64), np.empty(nnz, np.int32)
    kernels.group_entries(*pattern, slots, starts, entries, samples)
    pairs = list(zip(entries.tolist(), samples.tolist(), strict=True))
    found = [pairs[starts[u] : starts[u + 1]] for u in range(4)]
    assert found == naive_arrays.group_entries(*pattern, slots, 4)
