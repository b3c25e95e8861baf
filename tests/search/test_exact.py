"""Exact search against the full product."""

import pytest
import torch

from slide.ops.backend import backend
from slide.search.exact import exact_top_k


def draw(num_rows=70, width=5, num_queries=23, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(num_queries, width, dtype=dtype, generator=generator),
        torch.randn(num_rows, width, dtype=dtype, generator=generator),
        torch.randn(num_rows, dtype=dtype, generator=generator),
    )


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("k", [1, 6, 70])
@pytest.mark.parametrize(("rows", "queries"), [(16, 7), (70, 23), (1, 1), (4, 100), (69, 22)])
def test_exact_in_blocks(rows, queries, k, has_bias, monkeypatch):
    monkeypatch.setattr("slide.search.exact._ROW_BLOCK", rows)
    monkeypatch.setattr("slide.search.exact._QUERY_BLOCK", queries)
    x, weight, bias = draw()
    scores, ids = exact_top_k(x, weight, bias if has_bias else None, k)
    full = x @ weight.T + (bias if has_bias else 0)
    expected = full.topk(k)
    torch.testing.assert_close(scores, expected.values)
    assert torch.equal(ids, expected.indices)
    torch.testing.assert_close(full.gather(1, ids), scores)


@pytest.mark.not_as_python
def test_exact_in_the_blocks_that_are_used():
    x, weight, bias = draw(num_rows=40_000, width=2, num_queries=600, dtype=torch.float32)
    scores, ids = exact_top_k(x, weight, bias, 3)
    full = x @ weight.T + bias
    torch.testing.assert_close(scores, full.topk(3).values)
    torch.testing.assert_close(full.gather(1, ids), scores)


def test_no_queries():
    x, weight, bias = draw()
    scores, ids = exact_top_k(x[:0], weight, bias, 4)
    assert scores.shape == ids.shape == (0, 4)
    assert ids.dtype == torch.int64


@pytest.mark.parametrize("name", ["kernels", "torch"])
def test_scores_that_are_no_numbers_are_no_answers(name):
    x, weight, bias = draw()
    weight[5], bias[9] = torch.nan, -torch.inf
    with backend(name):
        scores, ids = exact_top_k(x, weight, bias, 70)
    assert (ids[:, -2:] == -1).all()
    assert (scores[:, -2:] == -torch.inf).all()
    others = sorted({*range(70)} - {5, 9})
    assert ids[:, :-2].sort(1).values.tolist() == [others] * len(x)


@pytest.mark.parametrize("k", [0, 71])
def test_k_out_of_range(k):
    with pytest.raises(ValueError, match=rf"k must be in \[1, 70\], not {k}"):
        exact_top_k(*draw(), k)
