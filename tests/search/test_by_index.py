"""Search among candidates against exact search among the same."""

import numpy as np
import pytest
import torch
from helpers.matrices import make_pattern

from slide.search import exact_top_k, index_top_k
from slide.sparse import Pattern

N, D = 50, 6


def draw(lengths, seed=0):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.standard_normal((len(lengths), D))).float()
    weight, bias = (torch.from_numpy(rng.standard_normal(s)).float() for s in ((N, D), N))
    return x, weight, bias, make_pattern(rng, lengths, N)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("k", [1, 4, 60])
def test_equals_exact_search_among_the_candidates_of_each_row(k, with_bias):
    x, weight, bias, found = draw([7, 0, 1, 50, 4])
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


def test_types_of_weights():
    x, weight, bias, found = draw([9, 3])
    expected = index_top_k(x.double(), weight.double(), bias.double(), found, 3)[1]
    assert torch.equal(index_top_k(x, weight, bias, found, 3)[1], expected)
    scores, _ = index_top_k(x.bfloat16(), weight.bfloat16(), bias.bfloat16(), found, 3)
    assert scores.dtype == torch.bfloat16


def test_float64_scores_are_ranked_as_they_are():
    """Rounded to float32 they would be equal."""
    weight = 1 + 1e-12 * torch.arange(4, dtype=torch.float64)[:, None]
    found = Pattern.from_lists([[0, 1, 2, 3]])
    ids = index_top_k(torch.ones(1, 1, dtype=torch.float64), weight, None, found, 2)[1]
    assert ids.tolist() == [[3, 2]]


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
        ([[0], [0], [0]], "3 rows of candidates do not fit 2 inputs"),
        ([[0], [N]], rf"candidates must lie in \[0, {N}\), and row 1 has {N}"),
        ([[-1], [0]], rf"candidates must lie in \[0, {N}\), and row 0 has -1"),
    ],
)
def test_candidates_that_do_not_fit(rows, message):
    x, weight, bias, _ = draw([1, 1])
    with pytest.raises(ValueError, match=message):
        index_top_k(x, weight, bias, Pattern.from_lists(rows), 2)


def test_k_out_of_range():
    with pytest.raises(ValueError, match="k must be at least 1, not 0"):
        index_top_k(*draw([1]), 0)
