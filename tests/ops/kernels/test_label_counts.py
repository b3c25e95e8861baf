"""Counts of labels of features, and what features say of candidates, against looped twins."""

import numpy as np
import pytest
from helpers import naive_ranking
from helpers.matrices import make_csr, make_pattern

from slide.ops.kernels.base_scorers import count_labels, relate_candidates
from slide.ops.kernels.ragged import RowRoom
from slide.sparse import Pattern

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
