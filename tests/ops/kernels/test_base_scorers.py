"""Kernels of base scorers, against looped twins."""

import numpy as np
import pytest
from helpers import naive_experts, naive_ranking
from helpers.matrices import make_csr, make_pattern

from slide.ops.kernels.base_scorers import (
    Questions,
    ask_similar,
    count_labels,
    regress_items,
    relate_candidates,
)
from slide.ops.kernels.ragged import RowRoom
from slide.sparse import CSR, Pattern

ITEMS, INPUTS = 14, 11


def draw_lists(rng):
    """The number of rows of two items, for 200 rows, with lists that lack some small numbers."""
    rows = rng.random((200, ITEMS)) < rng.uniform(0.05, 0.5, ITEMS)
    rows[:, 3] = False  # An item without a row.
    products = rows.T.astype(np.float32) @ rows
    lists = [{int(n): float(own[n]) for n in np.flatnonzero(own)} for own in products]
    del lists[5][7], lists[0][1]
    return lists, rows.sum(0)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("most", "first"), [(ITEMS, 0), (4, 0), (4, 6)])
def test_regress_items(most, first, threads):
    lists, counts = draw_lists(np.random.default_rng(most))
    bounds = np.concatenate([[0], np.cumsum([len(own) for own in lists])])
    columns = np.array([n for own in lists for n in own], np.int32)
    values = np.array([x for own in lists for x in own.values()], np.float32)
    room = RowRoom(
        np.arange(ITEMS - first) * most,
        np.full(ITEMS - first, -1),
        np.full((ITEMS - first) * most, -7, np.int32),
        np.full((ITEMS - first) * most, -7, np.float32),
    )
    places, close = np.zeros((threads, ITEMS), np.int32), np.empty((threads, most), np.int32)
    gram = np.full((threads, most + 1, most + 1), -7, np.float32)
    how = first, INPUTS, np.float32(3), 200
    regress_items(CSR(bounds, columns, values), counts, *how, places, close, gram, room)
    assert not places.any(), "the scratch is not handed back as it was"
    expected = naive_experts.regress_items(lists, counts.tolist(), INPUTS, 3.0, most)[first:]
    for begin, size, own in zip(room.starts, room.counts, expected, strict=True):
        assert room.columns[begin : begin + size].tolist() == list(own)
        found = room.values[begin : begin + size]
        np.testing.assert_allclose(found, list(own.values()), rtol=1e-3, atol=1e-5)
    sizes = [len(own) for own in expected]
    assert max(sizes) == min(most, INPUTS - 1)
    assert (min(sizes) == 0) == (first == 0), "of the item without a row"


FEATURES, ROWS, LABELS = 13, 30, 8


def as_lists(pattern):
    return [
        pattern.indices[a:b].tolist()
        for a, b in zip(pattern.indptr[:-1], pattern.indptr[1:], strict=True)
    ]


def counted(rows, labels, longest, threads):
    """``{label: count}`` of each feature, in the order of the kernel."""
    sums = np.zeros((threads, LABELS), np.int32)
    starts = np.arange(rows.num_rows) * (longest + 1)
    columns, values = np.full((2, rows.num_rows * (longest + 1)), -1)
    room = RowRoom(
        starts,
        np.full(rows.num_rows, -1),
        columns.astype(np.int32),
        values.astype(np.float32),
    )
    touched = np.full((threads + 1, LABELS + 1), -7, np.int32)
    count_labels(rows, labels, longest, sums, touched[:threads], room)
    assert (touched[threads] == -7).all(), "beyond the scratch"
    assert not sums.any(), "the scratch is not handed back as it was"
    found = []
    for start, count in zip(starts, room.counts, strict=True):
        own = slice(start, start + count)
        assert 0 <= count <= longest
        assert (room.columns[own.stop : start + longest + 1] == -1).all(), "beyond its entries"
        found.append(dict(zip(room.columns[own].tolist(), room.values[own].tolist(), strict=True)))
    return found


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("longest", [1, 3, LABELS])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_count_labels(seed, longest, threads):
    rng = np.random.default_rng(seed)
    rows = make_pattern(rng, [0, 1, ROWS, *rng.integers(0, 12, FEATURES - 3)], ROWS)
    labels = make_pattern(rng, rng.integers(0, 5, ROWS), LABELS)
    found = counted(rows, labels, longest, threads)
    expected = naive_ranking.count_labels(as_lists(rows), as_lists(labels), longest)
    assert [list(own.items()) for own in found] == [list(own.items()) for own in expected]
    assert any(len(own) == longest for own in found)


def test_repeated_rows_and_labels_count_again():
    rows, labels = Pattern.from_lists([[1, 1, 0]]), Pattern.from_lists([[2], [4, 4]])
    assert counted(rows, labels, 3, 1) == [{2: 1, 4: 4}]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_relate_candidates(seed, threads):
    rng = np.random.default_rng(seed)
    features = make_csr(rng, [0, *rng.integers(1, 6, ROWS - 1)], FEATURES)
    lists = make_csr(rng, [0, *rng.integers(1, LABELS, FEATURES - 1)], LABELS)
    lists = lists._replace(values=rng.random(len(lists.values)).astype(np.float32))
    unseen, shares = (rng.random(n).astype(np.float32) + 0.05 for n in (FEATURES, LABELS))
    ids = np.stack([rng.permutation(LABELS) for _ in range(ROWS)])
    ids[rng.random(ids.shape) < 0.4] = -1
    ids[2] = -1
    starts = np.concatenate([[0], np.cumsum((ids >= 0).sum(1))])
    found = np.full((starts[-1] + 1, 3), -7, np.float32)
    places = np.zeros((threads, LABELS), np.int32)
    relate_candidates(features, lists, unseen, shares, ids, starts, places, found[:-1])
    assert (found[-1] == -7).all(), "beyond the candidates"
    assert not places.any(), "the scratch is not handed back as it was"
    of_feature = [
        dict(zip(own.tolist(), values.tolist(), strict=True)) for own, values in entries(lists)
    ]
    for b, (own, values) in enumerate(entries(features)):
        row = list(zip(own.tolist(), values.tolist(), strict=True))
        expected = naive_ranking.relate(row, of_feature, unseen, shares, ids[b].tolist())
        part = found[starts[b] : starts[b + 1]]
        np.testing.assert_allclose(part, np.reshape(expected, part.shape), rtol=1e-4, atol=1e-5)


def entries(matrix):
    """Columns and values of each row."""
    bounds = zip(matrix.indptr[:-1], matrix.indptr[1:], strict=True)
    return [(matrix.indices[a:b], matrix.values[a:b]) for a, b in bounds]


WORDS, ANSWERS, GROUPS, QUESTIONS = 20, 9, 6, 14


def ascending(matrix):
    """The same rows with ascending columns, and values above 0."""
    order = np.lexsort((matrix.indices, matrix.entry_rows()))
    return CSR(matrix.indptr, matrix.indices[order], np.abs(matrix.values[order]) + 0.1)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("similar", "beside"), [(3, 15), (15, 3), (8, 8)])
def test_ask_similar(similar, beside, threads):
    """Either list may be the shorter one; a question may stand there several times."""
    rng = np.random.default_rng(similar)
    features = make_csr(rng, [0, *rng.integers(1, 5, QUESTIONS - 1)], WORDS)
    groups = rng.integers(-1, GROUPS, len(features.indices))
    lists = ascending(make_csr(rng, [0, *rng.integers(1, similar, WORDS - 1)], WORDS))
    others = np.sort(rng.integers(WORDS, size=(GROUPS, beside)), axis=1).astype(np.int32)
    rows = rng.permutation(others.size).astype(np.int32)
    labels = make_pattern(rng, rng.integers(0, 4, others.size), ANSWERS)
    questions = Questions(np.arange(GROUPS + 1) * beside, others.ravel(), rows)
    ids = np.stack([rng.permutation(ANSWERS) for _ in range(QUESTIONS)])
    ids[rng.random(ids.shape) < 0.3] = -1
    ids[2] = -1
    starts = np.concatenate([[0], np.cumsum((ids >= 0).sum(1))])
    found = np.zeros((starts[-1] + 1, 2), np.float32)
    found[-1], places = -7, np.zeros((threads, ANSWERS), np.int32)
    ask_similar(features, groups, lists, questions, labels, ids, starts, places, found[:-1])
    assert (found[-1] == -7).all(), "beyond the candidates"
    assert not places.any(), "the scratch is not handed back as it was"
    weights = [dict(zip(*pair, strict=True)) for pair in lists_of(lists)]
    answers = [labels.indices[a:b].tolist() for a, b in zip(*bounds(labels), strict=True)]
    asked = [
        [(other, answers[row]) for other, row in zip(own, numbers, strict=True)]
        for own, numbers in zip(others.tolist(), rows.reshape(GROUPS, -1).tolist(), strict=True)
    ]
    for b, (own, its_groups) in enumerate(lists_of(features._replace(values=groups))):
        row = list(zip(own, its_groups, strict=True))
        expected = naive_experts.ask_similar(row, weights, asked, ids[b].tolist())
        part = found[starts[b] : starts[b + 1]]
        np.testing.assert_allclose(part, np.reshape(expected, part.shape), rtol=1e-5)
    assert (found[:-1] > 0).any(0).all()


def bounds(matrix):
    return matrix.indptr[:-1], matrix.indptr[1:]


def lists_of(matrix):
    """Columns and values of each row, as lists."""
    return [
        (matrix.indices[a:b].tolist(), matrix.values[a:b].tolist())
        for a, b in zip(*bounds(matrix), strict=True)
    ]
