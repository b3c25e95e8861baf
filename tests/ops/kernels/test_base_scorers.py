"""Ranking features that follow from scores and lists, at numbers that no scorer gives in tests."""

import numpy as np

from slide.ops.base_scorers import look_up_lists, rank_scores


def test_what_follows_from_scores():
    """Equal scores keep their order; a best score that is not finite counts as 0."""
    starts, found = np.array([0, 3, 3, 4]), np.zeros((4, 5), np.float32)
    found[:, 1], found[:, 3] = [2, 5, 2, -np.inf], [1, 2, 3, 4]
    rank_scores(starts, np.array([[1, 0, 4, 2], [3, -1, -1, -1]]), found)
    assert found[:, [0, 4, 2]].tolist() == [[-3, 1, 5], [0, 0, 5], [-3, 2, 5], [-np.inf, 0, 0]]
    assert found[:, 3].tolist() == [1, 2, 3, 4]


def test_lists_are_looked_up():
    ids, starts = np.array([[7, 3, 1], [2, -1, -1], [-1, -1, -1]]), np.array([0, 3, 4, 4])
    listed = np.array([[1, -1, 7], [-1, 5, 6], [1, 2, 3]], np.int32)
    values = np.arange(9, dtype=np.float32).reshape(3, 3)
    found = np.full((4, 2), np.nan, np.float32)
    look_up_lists(ids, starts, listed, (values, -values), found)
    assert found.tolist() == [[2, -2], [0, 0], [0, 0], [0, 0]]
