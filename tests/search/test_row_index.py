"""The index over weight rows against exact search."""

import numpy as np
import pytest
import torch
from helpers.inner_products import queries_for, recall

from slide.search import RowIndex, exact_top_k
from slide.search.clusters import GROWTH, LEAST_ROWS

N, D = 20_000, 24


def draw(rows=N, width=D, dtype=torch.float32):
    """Rows around some centres; a few are many times as long as most, as those of a layer are."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, dtype=dtype, generator=generator)

    owner = torch.randint(200, (rows,), generator=generator)
    length = torch.exp(1.2 * normal(rows))[:, None]
    return length * (normal(200, width)[owner] + 0.3 * normal(rows, width)), normal(rows) - 3


@pytest.fixture(scope="module")
def layer():
    return draw()


@pytest.fixture(scope="module")
def index(layer):
    return RowIndex(*layer)


class TestTopK:
    @pytest.mark.parametrize("k", [1, 5, 30])
    def test_recall(self, layer, index, k):
        queries = queries_for(layer[0])
        wanted = exact_top_k(queries, *layer, k)
        scores, ids = index.top_k(queries, k)
        assert recall(ids, wanted[1]) > 0.97
        assert 0 < index.seen < 0.25 * N
        assert ids.dtype == torch.int64
        exact = (layer[0][ids] * queries[:, None]).sum(-1) + layer[1][ids]
        torch.testing.assert_close(scores, exact, rtol=1e-4, atol=1e-4)
        assert (scores.diff(dim=1) <= 0).all()

    @pytest.mark.not_as_python
    def test_one_query_gets_what_it_gets_in_a_batch(self, layer, index):
        queries = queries_for(layer[0], 40)
        scores, ids = index.top_k(queries, 5)
        for b in range(40):
            own = index.top_k(queries[b : b + 1], 5)
            torch.testing.assert_close(own[0][0], scores[b])
            assert own[1][0].tolist() == ids[b].tolist()

    @pytest.mark.compiled_only
    def test_a_larger_share_finds_more_until_it_finds_all(self):
        """Rows without clusters are the hard case."""
        torch.manual_seed(0)
        weight, queries = torch.randn(N, D), torch.randn(100, D)
        index, wanted = RowIndex(weight, None), exact_top_k(queries, weight, None, 10)[1]
        found = []
        for share in (0.001, 0.3, 1.0):
            found.append(recall(index.top_k(queries, 10, share)[1], wanted))
        assert found[0] < found[1] < found[2]
        assert found[2] > 0.99

    @pytest.mark.parametrize("has_bias", [True, False])
    def test_a_layer_of_few_rows_is_seen_whole(self, has_bias):
        weight, bias = draw(GROWTH * LEAST_ROWS - 1, 5, torch.float64)
        bias = bias if has_bias else None
        queries, index = queries_for(weight), RowIndex(weight, bias)
        for k in (1, 5, len(weight)):
            wanted, found = exact_top_k(queries, weight, bias, k), index.top_k(queries, k)
            torch.testing.assert_close(found[0], wanted[0])
            assert torch.equal(found[1], wanted[1])

    def test_the_bias_counts(self, layer):
        weight, bias = layer[0], layer[1].clone()
        bias[77] = 1_000
        assert (RowIndex(weight, bias).top_k(queries_for(weight), 1)[1] == 77).all()

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_types_of_weights(self, layer, dtype):
        weight, bias = (tensor.to(dtype) for tensor in layer)
        queries = queries_for(weight)
        scores, ids = RowIndex(weight, bias).top_k(queries, 5)
        assert scores.dtype == dtype
        assert recall(ids, exact_top_k(queries, weight, bias, 5)[1]) > 0.9

    def test_no_queries(self, layer, index):
        scores, ids = index.top_k(layer[0][:0], 4)
        assert scores.shape == ids.shape == (0, 4)

    def test_scores_that_are_no_numbers_are_not_found(self, layer):
        weight = layer[0].clone()
        weight[5] = torch.nan
        scores, ids = RowIndex(weight, layer[1]).top_k(queries_for(layer[0]), 3)
        assert ((ids >= 0) == torch.isfinite(scores)).all()
        assert not (ids == 5).any()
        weight[5], masked = layer[0][5], layer[1].clone()
        masked[::20] = -torch.inf
        index, queries = RowIndex(weight, masked), queries_for(weight)
        wanted = exact_top_k(queries, weight, masked, 10)[1]
        assert recall(index.top_k(queries, 10)[1], wanted) > 0.9
        ids = RowIndex(torch.full((9, 2), torch.nan), None).top_k(torch.ones(1, 2), 3)[1]
        assert ids.tolist() == [[-1, -1, -1]]

    def test_memory(self, index, layer):
        # Rows are short here, so that ids, scales and biases count more than usual.
        held = sum(array.nbytes for array in index.state_dict().values())
        assert held <= index.nbytes < 1.05 * held
        assert index.nbytes < 0.5 * 4 * layer[0].numel() + 12 * N
        assert index.num_lists > 50


class TestChanges:
    def test_masked_rows_do_not_hide_the_others(self, layer):
        weight, bias = layer[0], layer[1].clone()
        queries, index = queries_for(weight), RowIndex(weight, bias)
        numbers = np.arange(0, len(weight), 50)
        for value in (-torch.inf, 0.0):
            bias[::50] = value
            index.update(numbers)
            wanted = exact_top_k(queries, weight, bias, 10)[1]
            assert recall(index.top_k(queries, 10)[1], wanted) > 0.9

    def test_what_it_notices(self):
        weight, bias = draw(300)
        index = RowIndex(weight, bias)
        assert index.fits(weight, bias)
        assert not index.fits(weight.clone(), bias)
        assert not index.fits(weight, None)
        changes = [
            lambda: weight[7].add_(1),
            lambda: bias.mul_(2),
            lambda: weight.data.mul_(2),  # Not counted by autograd.
            lambda: setattr(weight, "data", weight.data.clone()),
        ]
        for change in changes:
            index = RowIndex(weight, bias)
            assert index.fits(weight, bias)
            change()
            assert not index.fits(weight, bias)

    def test_a_number_that_is_none_is_no_change(self):
        weight = torch.full((300, 2), torch.nan)
        assert RowIndex(weight, None).fits(weight, None)

    def test_tensors_of_inference_mode(self):
        with torch.inference_mode():
            weight = torch.randn(300, 4)
            index = RowIndex(weight, None)
            assert index.fits(weight, None)
            weight.mul_(2)
            assert not index.fits(weight, None)


class TestErrors:
    def test_of_rows(self):
        ones = torch.ones(4, 2)
        for bad in (ones[0], ones[:0], ones.int()):
            with pytest.raises(ValueError, match=r"weight must be \(N, D\) floats, not torch"):
                RowIndex(bad, None)
        with pytest.raises(ValueError, match=r"a bias of shape .* does not fit 4 rows"):
            RowIndex(ones, torch.ones(3))

    def test_of_searches(self):
        index = RowIndex(torch.ones(4, 2), None)
        for k in (0, 5):
            with pytest.raises(ValueError, match=rf"k must be in \[1, 4\], not {k}"):
                index.top_k(torch.ones(1, 2), k)
        for share in (0, 1.5):
            with pytest.raises(ValueError, match=rf"share must be in \(0, 1\], not {share}"):
                index.top_k(torch.ones(1, 2), 1, share)
        with pytest.raises(ValueError, match="deviations must be a number of at least 0, not -1"):
            index.top_k(torch.ones(1, 2), 1, deviations=-1)
        with pytest.raises(ValueError, match=r"queries must be \(B, 2\), not \(1, 3\)"):
            index.top_k(torch.ones(1, 3), 1)


def test_a_restored_index_finds_the_same():
    generator = torch.Generator().manual_seed(0)
    weight, queries = (torch.randn(n, 3, generator=generator) for n in (50, 4))
    index = RowIndex(weight, None)
    twin = RowIndex.restored(weight, None, index.state_dict())
    assert twin.fits(weight, None)
    assert twin.nbytes == index.nbytes > 0
    for got, wanted in zip(twin.top_k(queries, 5), index.top_k(queries, 5), strict=True):
        assert torch.equal(got, wanted)
    with pytest.raises(ValueError, match=r"an index of \(50, 3\) does not fit rows of \(51, 3\)"):
        RowIndex.restored(torch.zeros(51, 3), None, index.state_dict())
