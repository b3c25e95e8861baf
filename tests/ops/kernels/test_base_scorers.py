"""Base scorers and ranking features against formulas of NumPy."""

import numpy as np
import pytest
from helpers.matrices import make_csr, make_pattern, rows_of, to_dense

from slide.ops.base_scorers import (
    Questions,
    ask_similar,
    count_labels,
    count_votes,
    look_up_lists,
    rank_scores,
    regress_items,
)
from slide.ops.ragged import RowRoom
from slide.sparse import CSR, Pattern

ITEMS, INPUTS = 14, 11
FEATURES, ROWS, LABELS = 13, 30, 8
several_threads = pytest.mark.parametrize("threads", [1, 3])


def room_of(rows, each):
    """Room for some entries of each row, and one more that must stay free."""
    starts, size = np.arange(rows) * (each + 1), rows * (each + 1)
    return RowRoom(starts, np.full(rows, -1), np.full(size, -7, "i4"), np.full(size, -7, "f4"))


def found_in(room):
    """The columns and values of each row as a dictionary."""
    found, ends = [], room.starts + room.counts
    for begin, end, last in zip(room.starts, ends, [*room.starts[1:], None], strict=True):
        assert (room.columns[end:last] == -7).all(), "beyond its entries"
        pairs = room.columns[begin:end].tolist(), room.values[begin:end].tolist()
        found.append(dict(zip(*pairs, strict=True)))
    return found


@several_threads
@pytest.mark.parametrize(("most", "first"), [(ITEMS, 0), (4, 0), (4, 6)])
def test_regress_items(most, first, threads):
    """On the closest items; an item has no row, and the lists lack some small numbers."""
    rng = np.random.default_rng(most)
    rows = rng.random((200, ITEMS)) < rng.uniform(0.05, 0.5, ITEMS)
    rows[:, 3] = False
    counts, products = rows.sum(0), rows.T.astype(np.float32) @ rows
    lists = products.copy()
    lists[5, 7] = lists[0, 1] = 0
    either = np.where(lists > 0, lists, lists.T)
    owner, columns = np.nonzero(lists)
    bounds = np.searchsorted(owner, np.arange(ITEMS + 1))
    given = CSR(bounds, columns.astype(np.int32), lists[owner, columns])
    positions, close = np.zeros((threads, ITEMS), "i4"), np.empty((threads, most), np.int32)
    gram, room = (
        np.full((threads, most + 1, most + 1), -7, np.float32),
        room_of(ITEMS - first, most),
    )
    how = first, INPUTS, np.float32(3), 200
    regress_items(given, counts, *how, positions, close, gram, room)
    assert not positions.any(), "the scratch is not handed back as it was"
    found = found_in(room)
    for n, own in enumerate(found, first):
        others = [item for item in np.flatnonzero(lists[n]) if item != n and item < INPUTS]
        near = sorted(others, key=lambda item: -lists[n, item] / np.sqrt(counts[item] + 5))[:most]
        near.sort()
        matrix = either[np.ix_(near, near)]
        np.fill_diagonal(matrix, counts[near] + 3)
        assert list(own) == near
        expected = np.linalg.solve(matrix, lists[n, near])
        np.testing.assert_allclose(list(own.values()), expected, rtol=1e-3, atol=1e-5)
    sizes = [len(own) for own in found]
    assert max(sizes) == min(most, INPUTS - 1)
    assert (min(sizes) == 0) == (first == 0), "of the item without a row"


def counted(rows, labels, longest, threads):
    """``{label: count}`` of each feature, in the order of the kernel."""
    sums, room = np.zeros((threads, LABELS), np.int32), room_of(rows.num_rows, longest)
    touched = np.full((threads + 1, LABELS + 1), -7, np.int32)
    count_labels(rows, labels, longest, sums, touched[:threads], room)
    assert (touched[threads] == -7).all(), "beyond the scratch"
    assert not sums.any(), "the scratch is not handed back as it was"
    return found_in(room)


@several_threads
@pytest.mark.parametrize("longest", [1, 3, LABELS])
def test_count_labels(longest, threads):
    rng = np.random.default_rng(longest)
    rows = make_pattern(rng, [0, 1, ROWS, *rng.integers(0, 12, FEATURES - 3)], ROWS)
    labels = make_pattern(rng, rng.integers(0, 5, ROWS), LABELS)
    has = np.zeros((ROWS, LABELS), int)
    has[labels.entry_rows(), labels.indices] = 1
    for own, found in zip(rows_of(rows), counted(rows, labels, longest, threads), strict=True):
        counts = has[own].sum(0)
        assert sorted(found.values()) == sorted(counts[counts > 0])[-longest:]
        assert list(found.values()) == counts[list(found)].tolist()
        assert list(found) == sorted(found)


def test_repeated_rows_and_labels_count_again():
    rows, labels = Pattern.from_lists([[1, 1, 0]]), Pattern.from_lists([[2], [4, 4]])
    assert counted(rows, labels, 3, 1) == [{2: 1, 4: 4}]


def some_candidates(rng, rows):
    """All labels in random order, some of them missing, and where those of a row begin."""
    ids = np.stack([rng.permutation(LABELS) for _ in range(rows)])
    ids[rng.random(ids.shape) < 0.3] = -1
    ids[2] = -1
    return ids, np.concatenate([[0], np.cumsum((ids >= 0).sum(1))])


@several_threads
@pytest.mark.parametrize(("similar", "beside"), [(3, 15), (15, 3), (8, 8)])
def test_ask_similar(similar, beside, threads):
    """Either list may be the shorter one; a question may stand there several times."""
    rng, words, groups, asking = np.random.default_rng(similar), 20, 6, 14
    features = make_csr(rng, [0, *rng.integers(1, 5, asking - 1)], words)
    group = rng.integers(-1, groups, len(features.indices))
    lists = make_csr(rng, [0, *rng.integers(1, similar, words - 1)], words)
    order = np.lexsort((lists.indices, lists.entry_rows()))
    values = np.abs(lists.values[order]) + np.float32(0.1)
    lists = CSR(lists.indptr, lists.indices[order], values)
    others = np.sort(rng.integers(words, size=(groups, beside)), axis=1).astype(np.int32)
    rows = rng.permutation(others.size).astype(np.int32)
    labels = make_pattern(rng, rng.integers(0, 4, others.size), LABELS)
    questions = Questions(np.arange(groups + 1) * beside, others.ravel(), rows)
    ids, starts = some_candidates(rng, asking)
    found = np.zeros((starts[-1] + 1, 2), np.float32)
    found[-1], positions = -7, np.zeros((threads, LABELS), np.int32)
    ask_similar(features, group, lists, questions, labels, ids, starts, positions, found[:-1])
    assert (found[-1] == -7).all(), "beyond the candidates"
    assert not positions.any(), "the scratch is not handed back as it was"
    answers = np.zeros((others.size, LABELS))
    answers[labels.entry_rows(), labels.indices] = 1
    dense = to_dense(lists, words).numpy()
    expected = np.zeros((asking, LABELS, 2))
    for row, feature, g in zip(features.entry_rows(), features.indices, group, strict=True):
        if g < 0:
            continue
        weights, given = dense[feature, others[g]], answers[rows.reshape(groups, -1)[g]]
        expected[row, :, 0] += weights @ given / max(weights.sum(), 1e-30)
        best = (weights[:, None] * given).max(0)
        expected[row, :, 1] = np.maximum(expected[row, :, 1], best)
    at = np.nonzero(ids >= 0)
    np.testing.assert_allclose(found[:-1], expected[at[0], ids[at]], rtol=1e-5)
    assert (found[:-1] > 0).any(0).all()


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


def votes_of(neighbours, weights, labels, left_out, num_labels, k):
    rows = len(neighbours)
    sums, touched = (
        np.zeros((2, num_labels), np.float32),
        np.full((3, num_labels + 1), -7, np.int32),
    )
    ids, (votes, sharp) = np.full((rows, k), -1, np.int32), np.zeros((2, rows, k), np.float32)
    count_votes(neighbours, weights, labels, left_out, sums, touched[:2], ids, votes, sharp)
    assert (touched[2] == -7).all(), "beyond the scratch"
    assert not sums.any(), "the scratch is not handed back as it was"
    return ids, votes, sharp


@pytest.mark.parametrize("k", [2, 28])
def test_votes_of_neighbours(k):
    """Some neighbours are missing, and some labels left out."""
    rng, rows, num_labels = np.random.default_rng(k), 12, 25
    labels = make_pattern(rng, rng.integers(0, 6, 30), num_labels)
    neighbours = np.stack([rng.permutation(30)[:7] for _ in range(rows)]).astype(np.int32)
    neighbours[rng.random(neighbours.shape) < 0.3] = -1
    weights = rng.random(neighbours.shape).astype(np.float32)
    left_out = make_pattern(rng, rng.integers(0, 4, rows), num_labels)
    ids, *found = votes_of(neighbours, weights, labels, left_out, num_labels, k)
    has = np.zeros((31, num_labels))
    has[labels.entry_rows(), labels.indices] = 1  # Row -1 has none.
    kept = np.ones((rows, num_labels))
    kept[left_out.entry_rows(), left_out.indices] = 0
    for power, own in zip((1, 4), found, strict=True):
        every = ((weights**power)[:, :, None] * has[neighbours]).sum(1) * kept
        expected = np.where(ids < 0, 0, np.take_along_axis(every, ids.clip(0), 1))
        np.testing.assert_allclose(own, expected, rtol=1e-5)
        if power == 1:
            best = -np.sort(-every, axis=1)[:, :k]
            np.testing.assert_allclose(own[:, : best.shape[1]], best, rtol=1e-5)
    assert all(len({*row[row >= 0]}) == (row >= 0).sum() for row in ids)


def test_votes_without_weight_stay_within_the_scratch():
    labels = make_pattern(np.random.default_rng(0), [3] * 30, 3)
    neighbours, nothing = np.arange(30, dtype=np.int32)[None], Pattern.from_lists([[]])
    ids, *_ = votes_of(neighbours, np.zeros((1, 30), "f4"), labels, nothing, 3, 2)
    assert ids.tolist() == [[-1, -1]]
