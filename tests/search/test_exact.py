"""Search of all rows, or of candidates, against full products."""

import numpy as np
import pytest
import torch
from helpers.grids import pairs
from helpers.matrices import make_pattern

from slide.backend import backend
from slide.search import index_top_k
from slide.search.exact import exact_top_k, rounded_top_k
from slide.sparse import Pattern


def draw(num_rows=70, width=5, num_queries=23, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(num_queries, width, dtype=dtype, generator=generator),
        torch.randn(num_rows, width, dtype=dtype, generator=generator),
        torch.randn(num_rows, dtype=dtype, generator=generator),
    )


@pairs(blocks=[(16, 7), (70, 23), (1, 1), (4, 100), (69, 22)], k=[1, 6, 70], has_bias=[False, True])
def test_exact_in_blocks(blocks, k, has_bias, monkeypatch):
    rows, queries = blocks
    monkeypatch.setattr("slide.search.exact._ROW_BLOCK", rows)
    monkeypatch.setattr("slide.search.exact._QUERY_BLOCK", queries)
    x, weight, bias = draw()
    scores, ids = exact_top_k(x, weight, bias if has_bias else None, k)
    full = x @ weight.T + (bias if has_bias else 0)
    expected = full.topk(k)
    torch.testing.assert_close(scores, expected.values)
    assert torch.equal(ids, expected.indices)
    torch.testing.assert_close(full.gather(1, ids), scores)


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


pytestmark = pytest.mark.usefixtures("one_thread")


def draw_long(num_rows=3000, width=48, num_queries=70, seed=0):
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


@pairs(blocks=[(100, 7), (3000, 70), (2999, 69)], k=[1, 5, 50], has_bias=[False, True])
def test_what_is_proven_is_right(blocks, k, has_bias, monkeypatch):
    rows, queries = blocks
    monkeypatch.setattr("slide.search.exact._ROW_BLOCK", rows)
    monkeypatch.setattr("slide.search.exact._QUERY_BLOCK", queries)
    x, weight, bias = draw_long()
    bias = bias if has_bias else None
    scores, ids, proven = rounded_top_k(x, weight, bias, k)
    assert proven.all()
    every = scores_of(x, weight, bias)
    assert torch.equal(ids.sort(1).values, every.topk(k).indices.sort(1).values)
    torch.testing.assert_close(scores.double(), every.gather(1, ids), rtol=1e-5, atol=1e-5)


# As plain Python, the kernel warns of a sum of inf and -inf.
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_numbers_that_are_not_finite_are_not_proven(value):
    x, weight, bias = draw_long()
    x[3, 1] = value
    proven = rounded_top_k(x, weight, bias, 5)[2]
    assert proven.sum() == len(x) - 1
    assert not proven[3]
    weight[7, 0] = value
    assert not rounded_top_k(x, weight, bias, 5)[2].any()


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_rounding_moves_no_score_further_than_the_bound(offset):
    """Whatever is kept first, an upper bound is not below its score."""
    x, weight, bias = draw_long(num_rows=200)
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
    x, weight, bias = draw_long(num_rows=5000)
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


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_squares_that_float32_cannot_hold_are_not_proven(scale):
    x, weight, _ = draw_long()
    assert not rounded_top_k(x, weight * scale, None, 5)[2].any()


CANDIDATES, WIDTH = 50, 6


def draw_candidates(lengths, seed=0):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.standard_normal((len(lengths), WIDTH))).float()
    weight, bias = (
        torch.from_numpy(rng.standard_normal(s)).float() for s in ((CANDIDATES, WIDTH), CANDIDATES)
    )
    return x, weight, bias, make_pattern(rng, lengths, CANDIDATES)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("k", [1, 4, 60])
def test_equals_exact_search_among_the_candidates_of_each_row(k, with_bias):
    x, weight, bias, found = draw_candidates([7, 0, 1, 50, 4])
    bias = bias if with_bias else None
    # Each candidate twice: votes make no difference here.
    twice = Pattern(2 * found.indptr, np.repeat(found.indices, 2))
    scores, ids = index_top_k(x, weight, bias, twice, k)
    assert scores.shape == ids.shape == (5, k)
    for b in range(5):
        own = torch.from_numpy(np.sort(found.indices[found.indptr[b] : found.indptr[b + 1]])).long()
        most = min(k, len(own))
        assert (ids[b, most:] == -1).all()
        assert (scores[b, most:] == -torch.inf).all()
        if most:
            some = None if bias is None else bias[own]
            values, places = exact_top_k(x[b : b + 1], weight[own], some, most)
            assert ids[b, :most].tolist() == own[places[0]].tolist()
            torch.testing.assert_close(scores[b, :most], values[0])


def test_scores_that_are_not_numbers_come_last():
    weight = torch.tensor([[float("nan")], [-1.0], [-torch.inf], [2.0]])
    found = Pattern.from_lists([[0, 1, 2, 3], [0, 2]])
    scores, ids = index_top_k(torch.ones(2, 1), weight, None, found, 3)
    assert ids.tolist() == [[3, 1, -1], [-1, -1, -1]]
    assert scores.tolist() == [[2, -1, -torch.inf], [-torch.inf] * 3]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0]], "1 rows of candidates do not fit 2 inputs"),
        (
            [[0], [CANDIDATES]],
            rf"candidates must lie in \[0, {CANDIDATES}\), and row 1 has {CANDIDATES}",
        ),
    ],
)
def test_candidates_that_do_not_fit(rows, message):
    x, weight, bias, _ = draw_candidates([1, 1])
    with pytest.raises(ValueError, match=message):
        index_top_k(x, weight, bias, Pattern.from_lists(rows), 2)


def test_k_out_of_range():
    with pytest.raises(ValueError, match="k must be at least 1, not 0"):
        index_top_k(*draw_candidates([1]), 0)
    for k in (0, 71):
        with pytest.raises(ValueError, match=rf"k must be in \[1, 70\], not {k}"):
            exact_top_k(*draw(), k)
