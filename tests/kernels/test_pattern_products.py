"""Products on patterns, active sets, and the gradients that live on them."""

import copy
import pickle

import numpy as np
import pytest
import torch
from helpers import naive
from helpers.matrices import make_pattern

from slide.active_set import ActiveSet, transpose
from slide.kernels import pattern_products as kernels
from slide.row_gradients import (
    FactoredRowGradient,
    RowGradient,
    add_row_gradient,
    as_rows,
    dense_gradient,
)
from slide.scratch import Scratch
from slide.sparse import Pattern

# lengths of the samples' sets, number of rows, width
SHAPES = {
    "ordinary": ([3, 0, 5, 1, 0], 9, 6),
    "no samples": ([], 4, 3),
    "one sample": ([4], 7, 2),
    "all empty": ([0, 0, 0], 4, 3),
    "one id for all": ([1] * 6, 1, 3),
    "width one": ([2, 3, 0, 2], 5, 1),
    "complete": ([4, 4], 4, 5),
}
TYPES = [np.float32, np.float64]


def tolerance(dtype):
    return 1e-5 if dtype == np.float32 else 1e-12


def draw(shape, dtype, seed):
    """Pattern, coefficients ``(nnz,)``, vectors ``(B, D)``, rows ``(N, D)``, bias ``(N,)``."""
    lengths, num_rows, width = SHAPES[shape]
    rng = np.random.default_rng(seed)
    pattern = make_pattern(rng, lengths, num_rows)
    sizes = len(pattern.indices), (len(lengths), width), (num_rows, width), num_rows
    return pattern, *(rng.standard_normal(size).astype(dtype) for size in sizes)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
class TestProducts:
    def test_sampled_product(self, shape, dtype, seed):
        pattern, _, vectors, rows, bias = draw(shape, dtype, seed)
        for b in (bias, bias[:0]):
            out = np.full(len(pattern.indices), np.nan, dtype)
            kernels.sampled_product(*pattern, vectors, rows, b, out)
            expected = naive.sampled_product(*pattern, vectors, rows, b)
            np.testing.assert_allclose(out, expected, atol=tolerance(dtype))

    def test_weighted_sum_adds_to_what_is_there(self, shape, dtype, seed):
        pattern, coefficients, vectors, rows, _ = draw(shape, dtype, seed)
        coefficients[::3] = 0
        out = vectors.copy()
        kernels.weighted_sum(*pattern, coefficients, rows, out)
        expected = naive.weighted_sum(*pattern, coefficients, rows, vectors)
        np.testing.assert_allclose(out, expected, atol=tolerance(dtype))

    def test_row_gradient(self, shape, dtype, seed):
        pattern, coefficients, vectors, rows, _ = draw(shape, dtype, seed)
        t = transpose(pattern, Scratch(len(rows)))
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
    pattern, _, _, rows, _ = draw(shape, np.float32, seed)
    scratch = Scratch(len(rows))
    t = transpose(pattern, scratch)
    expected = naive.transpose(*pattern)
    assert t.ids.tolist() == list(expected)
    assert len(t.starts) == len(t.ids) + 1
    for u, group in enumerate(expected.values()):
        at = slice(t.starts[u], t.starts[u + 1])
        assert list(zip(t.entries[at].tolist(), t.samples[at].tolist(), strict=True)) == group
    assert (scratch.slots() == -1).all()


def test_transpose_of_one_id_shared_by_all_samples():
    pattern = Pattern(np.arange(6), np.full(5, 3, np.int32))
    t = transpose(pattern, Scratch(8))
    assert t.ids.tolist() == [3]
    assert t.starts.tolist() == [0, 5]
    assert t.samples.tolist() == [0, 1, 2, 3, 4]


class TestScratch:
    def test_is_made_once(self):
        scratch = Scratch(5)
        scratch.slots()[2] = 7
        assert scratch.slots().tolist() == [-1, -1, 7, -1, -1]

    def test_fills_and_shapes(self):
        scratch = Scratch(3)
        assert (scratch.slots() == -1).all()
        for array, shape in (
            (scratch.marks(2), (2, 3)),
            (scratch.marks(1), (1, 3)),
            (scratch.ballot_box(2, 5, 7, 4).hits, (2, 7)),
            (scratch.ballot_box(2, 6, 7, 4).weights, (2, 6)),
            (scratch.ballot_box(2, 5, 3, 4).ids, (2 * 3,)),  # A table holds each of the 3 once.
        ):
            assert array.shape == shape
            assert not array.any()

    @pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
    def test_copies_have_memory_of_their_own(self, duplicate):
        scratch = Scratch(3)
        scratch.marks(1)[0] = 9
        other = duplicate(scratch)
        assert other.out_features == 3
        assert not other.marks(1).any()


class TestActiveSet:
    def test_per_sample(self):
        active = ActiveSet(6, np.array([4, 1, 5], np.int32), np.array([0, 2, 2, 3]))
        assert not active.shared
        assert not active.complete
        assert [active.row(b).tolist() for b in range(3)] == [[4, 1], [], [5]]
        assert active.mean_size() == 1
        assert active.transposed is active.transposed

    def test_shared(self):
        active = ActiveSet(6, np.array([4, 1], np.int32))
        assert active.shared
        assert not active.complete
        assert active.row(17).tolist() == [4, 1]
        assert active.mean_size() == 2

    def test_complete_means_in_order(self):
        assert ActiveSet(3, np.arange(3, dtype=np.int32)).complete
        assert not ActiveSet(3, np.array([2, 0, 1], np.int32)).complete
        assert not ActiveSet(3, np.arange(3, dtype=np.int32), np.array([0, 3])).complete


class TestGradients:
    def test_factored_values(self):
        pattern, coefficients, vectors, rows, _ = draw("ordinary", np.float64, 3)
        gradient = FactoredRowGradient(
            transpose(pattern, Scratch(len(rows))), coefficients, vectors
        )
        expected = naive.row_gradient(*pattern, coefficients, vectors)
        assert gradient.ids.tolist() == list(expected)
        np.testing.assert_allclose(gradient.values(), list(expected.values()), atol=1e-12)

    def test_pending_gradients_add_up(self):
        weight = torch.nn.Parameter(torch.zeros(4, 2))
        assert not dense_gradient(weight).any()
        rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        add_row_gradient(weight, RowGradient(np.array([3, 1], np.int32), rows))
        add_row_gradient(weight, RowGradient(np.array([1, 0], np.int32), rows))
        assert dense_gradient(weight).tolist() == [[3, 4], [4, 6], [0, 0], [1, 2]]

    def test_bias_counts_as_one_column(self):
        bias = torch.nn.Parameter(torch.zeros(3))
        add_row_gradient(bias, RowGradient(np.array([2], np.int32), torch.tensor([[5.0]])))
        assert dense_gradient(bias).tolist() == [0, 0, 5]
        as_rows(bias)[1, 0] = 4
        assert bias.tolist() == [0, 4, 0]
