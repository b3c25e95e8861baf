"""Search by rounded scores against all scores in float64."""

import pytest
import torch

from slide.search.exact import exact_top_k
from slide.search.rounded import rounded_top_k


def draw(num_rows=3000, width=48, num_queries=70, seed=0):
    """Queries, rows of very different lengths, and biases."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.empty(num_rows, 1).exponential_(generator=generator)
    return (
        torch.randn(num_queries, width, generator=generator),
        torch.randn(num_rows, width, generator=generator) * lengths,
        torch.randn(num_rows, generator=generator),
    )


def scores_of(x, weight, bias):
    scores = x.double() @ weight.double().T
    return scores if bias is None else scores + bias


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("rows", "queries"), [(100, 7), (3000, 70), (2999, 69)])
@pytest.mark.parametrize("k", [1, 5, 50])
def test_what_is_proven_is_right(rows, queries, k, has_bias, monkeypatch):
    monkeypatch.setattr("slide.search.rounded._ROW_BLOCK", rows)
    monkeypatch.setattr("slide.search.rounded._QUERY_BLOCK", queries)
    x, weight, bias = draw()
    bias = bias if has_bias else None
    scores, ids, proven = rounded_top_k(x, weight, bias, k)
    assert proven.all()
    every = scores_of(x, weight, bias)
    assert torch.equal(ids.sort(1).values, every.topk(k).indices.sort(1).values)
    torch.testing.assert_close(scores.double(), every.gather(1, ids), rtol=1e-5, atol=1e-5)


def test_all_rows_are_kept_if_they_are_few():
    x, weight, bias = draw(num_rows=60)
    scores, ids, proven = rounded_top_k(x, weight, bias, 60)
    assert proven.all()
    expected = scores_of(x, weight, bias).gather(1, ids)
    torch.testing.assert_close(scores.double(), expected, rtol=1e-5, atol=1e-5)


def test_nearly_equal_scores_are_not_proven():
    """Rounding makes these rows equal, so those that are kept are any of them."""
    x, weight, _ = draw(width=8)
    weight = weight[:1] * (1 + 1e-5 * torch.randn(3000, 1))
    _, ids, proven = rounded_top_k(x, weight, None, 5)
    best = scores_of(x, weight, None).topk(5).indices
    wrong = (ids.sort(1).values != best.sort(1).values).any(1)
    assert wrong.any()
    assert not proven[wrong].any()


# As plain Python, the kernel warns of a sum of inf and -inf.
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_numbers_that_are_not_finite_are_not_proven(value):
    x, weight, bias = draw()
    x[3, 1] = value
    proven = rounded_top_k(x, weight, bias, 5)[2]
    assert proven.sum() == len(x) - 1
    assert not proven[3]
    weight[7, 0] = value
    assert not rounded_top_k(x, weight, bias, 5)[2].any()


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_rounding_moves_no_score_further_than_the_bound(offset):
    """Whatever is kept first, an upper bound is not below its score."""
    x, weight, bias = draw(num_rows=200)
    x, weight = x + offset, weight - offset
    _, ids, proven = rounded_top_k(x, weight, bias, 68)  # All 200 rows are kept.
    assert proven.all()
    every = scores_of(x, weight, bias)
    wanted = every.topk(68).values
    found = every.gather(1, ids).sort(1, descending=True).values
    # In float32, scores that differ by less are equal.
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)


@pytest.mark.kernels_only  # Plain torch rounds nothing.
@pytest.mark.parametrize("equal", [False, True])
def test_exact_search_takes_it_where_it_pays(equal, monkeypatch):
    """Queries whose answers are not proven are searched once more."""
    monkeypatch.setattr("slide.search.exact.has_bfloat16", lambda: True)
    x, weight, bias = draw(num_rows=5000)
    if equal:
        weight = weight[:1] * (1 + 1e-4 * torch.randn(5000, 1))
    asked = []

    def noted(*arguments):
        asked.append(rounded_top_k(*arguments))
        return asked[-1]

    monkeypatch.setattr("slide.search.exact.rounded_top_k", noted)
    scores, ids = exact_top_k(x, weight, None if equal else bias, 5)
    every = scores_of(x, weight, None if equal else bias)
    assert bool(asked[0][2].all()) is not equal
    torch.testing.assert_close(scores.double(), every.topk(5).values, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scores.double(), every.gather(1, ids), rtol=1e-5, atol=1e-5)
    monkeypatch.setattr("slide.search.exact.has_bfloat16", lambda: False)
    exact_top_k(x, weight, bias, 5)
    assert len(asked) == 1


def test_rows_that_no_score_may_have_are_not_returned():
    """With biases of -inf, fewer than k rows have a score."""
    x, weight, bias = draw(num_rows=300)
    bias[:-10] = -torch.inf
    _, ids, proven = rounded_top_k(x, weight, bias, 20)
    assert not proven.any()
    for row in ids.tolist():
        assert set(row) >= set(range(290, 300))


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_squares_that_float32_cannot_hold_are_not_proven(scale):
    x, weight, _ = draw()
    assert not rounded_top_k(x, weight * scale, None, 5)[2].any()
