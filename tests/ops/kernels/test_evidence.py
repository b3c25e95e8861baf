"""Numbers of candidates and votes of nearest rows: the kernels against their naive twins."""

from itertools import pairwise

import numpy as np
import pytest
from helpers import naive_ranking as naive
from helpers.matrices import make_pattern

from slide.ops.kernels.evidence import count_votes, look_up_lists, rank_scores
from slide.sparse import Pattern

LABELS, ROWS = 25, 12


def lists(rng, length):
    """Ids of labels and their values, for each row; some are missing."""
    ids = np.stack([rng.permutation(LABELS)[:length] for _ in range(ROWS)]).astype(np.int32)
    ids[rng.random(ids.shape) < 0.3] = -1
    return ids, rng.integers(1, 4, ids.shape).astype(np.float32)


def test_what_follows_from_scores():
    rng = np.random.default_rng(0)
    starts = np.concatenate([[0], np.cumsum([3, 0, 1, 7, 5])])
    found = rng.integers(-3, 3, (16, 5)).astype(np.float32)
    found[3, 1] = -np.inf  # The only score of its row.
    scores = found[:, [1, 3]].copy()
    rank_scores(starts, np.array([[1, 0, 4, 2], [3, -1, -1, -1]]), found)
    for a, b in pairwise(starts):
        expected = naive.rank_scores(scores[a:b, 0].tolist())
        np.testing.assert_array_equal(found[a:b, [0, 4, 2]], np.reshape(expected, (b - a, 3)))
    np.testing.assert_array_equal(found[:, [1, 3]], scores)


def test_lists_are_looked_up():
    rng = np.random.default_rng(0)
    ids = -np.sort(-np.stack([rng.permutation(LABELS)[:9] for _ in range(ROWS)]), axis=1)
    for row in range(ROWS):
        ids[row, 9 - row % 10 :] = -1  # Of one row nothing is left.
    (listed, one), (_, other) = lists(rng, 6), lists(rng, 6)
    starts = np.concatenate([[0], np.cumsum((ids >= 0).sum(1))])
    found = np.full((starts[-1], 2), np.nan, np.float32)
    look_up_lists(ids, starts, listed, (one, other), found)
    for b in range(ROWS):
        expected = naive.look_up_lists(ids[b], listed[b], one[b], other[b])
        np.testing.assert_array_equal(found[starts[b] : starts[b + 1]].tolist(), expected)


@pytest.mark.parametrize("k", [2, LABELS + 3])
def test_votes_of_near_rows(k):
    rng = np.random.default_rng(k)
    labels = make_pattern(rng, rng.integers(0, 6, 30), LABELS)
    near = np.stack([rng.permutation(30)[:7] for _ in range(ROWS)]).astype(np.int32)
    near[rng.random(near.shape) < 0.3] = -1
    weights = rng.random(near.shape).astype(np.float32)
    left_out = make_pattern(rng, rng.integers(0, 4, ROWS), LABELS)
    sums, touched = np.zeros((2, LABELS), np.float32), np.full((3, LABELS + 1), -7, np.int32)
    ids = np.full((ROWS, k), -1, np.int32)
    votes, sharp = (np.zeros((ROWS, k), np.float32) for _ in range(2))
    count_votes(near, weights, labels, left_out, sums, touched[:2], ids, votes, sharp)
    assert (touched[2] == -7).all(), "beyond the scratch"
    assert (sums == 0).all(), "the scratch is not handed back as it was"
    each, without = (
        [own.indices[a:b].tolist() for a, b in pairwise(own.indptr)] for own in (labels, left_out)
    )
    for b, expected in enumerate(naive.count_votes(near, weights, each, without)):
        own = ids[b][ids[b] >= 0].tolist()
        assert len(own) == min(k, len(expected))
        assert (np.diff(votes[b]) <= 0).all()
        for place, label in enumerate(own):
            np.testing.assert_allclose((votes[b, place], sharp[b, place]), expected[label], 1e-5)
        left = [pair[0] for label, pair in expected.items() if label not in own]
        assert not left or max(left) <= votes[b, k - 1] + 1e-5
        assert not votes[b, len(own) :].any()
        assert not sharp[b, len(own) :].any()


def test_votes_without_weight_stay_within_the_scratch():
    labels = make_pattern(np.random.default_rng(0), [3] * 30, 3)
    near = np.arange(30, dtype=np.int32)[None]
    sums, touched = np.zeros((1, 3), np.float32), np.full((2, 4), -7, np.int32)
    ids, votes, sharp = np.full((1, 2), -1, np.int32), *np.zeros((2, 1, 2), np.float32)
    nothing = Pattern.from_lists([[]])
    count_votes(near, np.zeros((1, 30)), labels, nothing, sums, touched[:1], ids, votes, sharp)
    assert (touched[1] == -7).all(), "beyond the scratch"
    assert ids.tolist() == [[-1, -1]]
    assert not sums.any()
