"""The index over weight rows, and its lists, against exact search."""

import numpy as np
import pytest
import torch
from helpers.inner_products import ROWS, draw_clusters, queries_for, recall

from slide.search import RowIndex, exact_top_k
from slide.search.exact import rounded_top_k
from slide.search.row_index import GROWTH, LEAST_ROWS, SHARE
from slide.utils.quantized import QuantizedRows

D = 24


def draw(rows=ROWS, width=D, dtype=torch.float32):
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
        assert 0 < index.seen < 0.25 * ROWS
        assert ids.dtype == torch.int64
        exact = (layer[0][ids] * queries[:, None]).sum(-1) + layer[1][ids]
        torch.testing.assert_close(scores, exact, rtol=1e-4, atol=1e-4)
        assert (scores.diff(dim=1) <= 0).all()

    @pytest.mark.compiled_only
    def test_a_larger_share_finds_more_until_it_finds_all(self):
        """Rows without clusters are the hard case."""
        torch.manual_seed(0)
        weight, queries = torch.randn(ROWS, D), torch.randn(100, D)
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

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_types_of_weights(self, layer, dtype):
        weight, bias = (tensor.to(dtype) for tensor in layer)
        queries = queries_for(weight)
        scores, ids = RowIndex(weight, bias).top_k(queries, 5)
        assert scores.dtype == dtype
        assert recall(ids, exact_top_k(queries, weight, bias, 5)[1]) > 0.9

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
        nothing = RowIndex(torch.full((9, 2), torch.nan), None).top_k(torch.ones(1, 2), 3)
        assert [each.tolist() for each in nothing] == [[[-torch.inf] * 3], [[-1] * 3]]


class TestChanges:
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


@pytest.fixture(params=[False, True], ids=["float32", "bfloat16"])
def rounded(request, monkeypatch):
    """Whether means are multiplied as bfloat16, which processors do that are quick at it."""
    monkeypatch.setattr("slide.search.row_index.has_bfloat16", lambda: request.param)
    return request.param


class TestBounds:
    def bounds(self, index, layer, queries, deviations):
        """What a row of each list may score, from its mean and spread in float64."""
        lists = index.lists
        rows = torch.cat([layer[0], layer[1][:, None]], 1).double()[lists.ids.astype(np.int64)]
        out = []
        for own in rows.split(np.diff(lists.starts).tolist()):
            spread = (own - own.mean(0)).square().sum(1).mean().sqrt()
            x = torch.nn.functional.pad(queries.double(), (0, 1), value=1.0)
            out.append(x @ own.mean(0) + deviations * x.norm(dim=1) * spread / x.shape[1] ** 0.5)
        return torch.stack(out, 1)

    def test_of_all_lists(self, rounded):
        weight, bias = draw_clusters(seed=3)
        queries, index = queries_for(weight, 9), RowIndex(weight, bias)
        # The spread of a list of few rows is the difference of two sums of squares.
        for deviations, near in ((0, 0.06 if rounded else 0.02), (4.5, 0.8)):
            wanted = self.bounds(index, (weight, bias), queries, deviations)[:, :-1]
            assert len(wanted[0]) > ROWS // 100
            for part in (queries, queries[:1]):
                found = index._bounds(part, deviations)
                assert (found[:, -1] == torch.inf).all(), "the longest rows are seen by all"
                assert (found[:, :-1] - wanted[: len(part)]).abs().max() < near

    def test_the_limit_of_rows(self, monkeypatch):
        """By default a share of them, where these are more than some."""
        weight, limits = torch.randn(6_000, 2), []
        index = RowIndex(weight, None)
        for name, value in (
            ("scan_lists", lambda *arguments: limits.append(arguments[6])),
            *(("_LEAST_SEEN", 100), ("_SEEN_EACH", 1)),
        ):
            monkeypatch.setattr(f"slide.search.row_index.{name}", value)
        for options in ({}, {"share": 0.1}, {"share": 0.001}, {"most_seen": 77}):
            index.top_k(weight[:2], 5, **options)
        assert limits == [SHARE * 6_000, 600, 100, 77]


def test_a_row_that_is_not_finite_moves_no_other():
    weight, bias = draw_clusters()
    bias[7], weight[9, 3] = -torch.inf, torch.nan
    zeros = weight.clone(), bias.clone()
    for tensor in zeros:
        tensor[[7, 9]] = 0
    orders = [RowIndex(*rows).lists.ids for rows in ((weight, bias), zeros)]
    np.testing.assert_array_equal(*orders)


def test_lists_that_no_row_is_nearest_to_are_left_out():
    assert len(RowIndex(torch.ones(4 * LEAST_ROWS, 3), None).lists.starts) == 3


def test_lists_hold_each_row_once():
    """None is empty, and the last one is that of the longest rows."""
    lists = RowIndex(*draw_clusters()).lists
    assert sorted(lists.ids) == list(range(ROWS))
    assert lists.starts[0] == 0
    assert lists.starts[-1] == ROWS
    assert (np.diff(lists.starts) > 0).all()
    assert LEAST_ROWS <= ROWS - lists.starts[-2] < GROWTH * LEAST_ROWS


MANY = min(ROWS, 9_000)
DTYPES = pytest.mark.parametrize("dtype", ["bfloat16", "int8"])


def draw_stored(dtype, num_rows=300, width=9, num_queries=6):
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(num_rows, width, generator=generator)
    weight *= torch.rand(num_rows, 1, generator=generator)
    rows = QuantizedRows.of(weight, dtype)
    queries = torch.randn(num_queries, width, generator=generator)
    return queries, rows, torch.randn(num_rows, generator=generator)


@DTYPES
def test_exact_search_converts_blocks(dtype, monkeypatch):
    x, rows, bias = draw_stored(dtype)
    expected = exact_top_k(x, rows.float(), bias, 7)
    found = exact_top_k(x, rows, bias, 7)  # In one block, as the floats: bit by bit.
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    monkeypatch.setattr("slide.utils.quantized._NUMBERS", 9 * 64)
    found = exact_top_k(x, rows, bias, 7)
    torch.testing.assert_close(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    with pytest.raises(ValueError, match=r"k must be in \[1, 300\], not 301"):
        exact_top_k(x, rows, bias, 301)


@DTYPES
def test_rounded_scan(dtype):
    x, rows, bias = draw_stored(dtype, num_rows=5_000)
    x[1], rows.codes[7] = 0, 0  # Vectors without a direction.
    found, expected = (rounded_top_k(x, weight, bias, 4) for weight in (rows, rows.float()))
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert found[2].sum() >= 5


@DTYPES
@pytest.mark.parametrize("queries", [1, 20])
def test_an_index_scores_its_candidates_from_the_rows(dtype, queries):
    x, rows, bias = draw_stored(dtype, num_rows=MANY, num_queries=queries)
    index, expected = RowIndex(rows, bias), RowIndex(rows.float(), bias)
    found = index.top_k(x, 5, most_seen=1_000)
    for one, other in zip(found, expected.top_k(x, 5, most_seen=1_000), strict=True):
        assert torch.equal(one, other)
    assert index.seen < MANY
    assert index.fits(rows, bias)
    assert not index.fits(QuantizedRows(*rows), bias)
    rows.codes[0] = 1
    assert not index.fits(rows, bias)
