"""Matrices whose rows are written block by block."""

import tracemalloc

import numpy as np
import pytest
from helpers.matrices import make_pattern, rows_of

from slide.search import row_blocks
from slide.search.row_blocks import collect_rows, count_together, sums_over
from slide.sparse import Pattern


@pytest.mark.parametrize("most", [1, 5, 1000])
def test_rows_are_collected(monkeypatch, most):
    monkeypatch.setattr(row_blocks, "MOST_ROOM", most)
    rng = np.random.default_rng(0)
    needed = rng.integers(0, 8, 40)
    sizes = [int(rng.integers(0, n + 1)) for n in needed]
    rows = [(rng.integers(0, 99, size), rng.random(size)) for size in sizes]
    blocks = []

    def write(begin, end, room):
        assert len(room.columns) <= max(most, needed[begin])
        for place, n in enumerate(range(begin, end)):
            own = slice(room.starts[place], room.starts[place] + sizes[n])
            room.columns[own], room.values[own] = rows[n]
            room.counts[place] = sizes[n]
        blocks.append((begin, end))

    found = collect_rows(needed, write, "rows")
    assert np.diff(found.indptr).tolist() == sizes
    np.testing.assert_array_equal(found.indices, np.concatenate([ids for ids, _ in rows]))
    np.testing.assert_allclose(found.values, np.concatenate([own for _, own in rows]))
    assert [begin for begin, _ in blocks] == [0, *(end for _, end in blocks[:-1])]
    assert blocks[-1][1] == len(needed)
    assert (len(blocks) == 1) == (most == 1000)


@pytest.mark.not_as_python
def test_the_matrix_never_stands_beside_its_parts(monkeypatch):
    monkeypatch.setattr(row_blocks, "MOST_ROOM", 1 << 16)

    def write(begin, end, room):
        room.counts[:] = 1000
        room.columns[:], room.values[:] = 1, 1

    tracemalloc.start()
    found = collect_rows(np.full(1500, 1000), write, "rows")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.1 * (found.indices.nbytes + found.values.nbytes)


@pytest.mark.parametrize("num_labels", [100, 5000, 70_000])
@pytest.mark.parametrize("longest", [40, 10_000])
def test_labels_of_the_rows_of_a_feature_are_counted(num_labels, longest):
    """Few labels of a feature are sorted in another way than many."""
    rng = np.random.default_rng(0)
    ids = rng.integers(num_labels, size=(60, 20))
    ids[:, ::2] //= 30  # Of these, rows share some.
    labels = Pattern.from_lists(ids.tolist())
    rows = make_pattern(rng, [0, 1, 3, 30, 60], 60)
    found = count_together(rows, labels, num_labels, longest, "counts")
    for own, ids, counts in zip(
        rows_of(rows), rows_of(found), np.split(found.values, found.indptr[1:-1]), strict=True
    ):
        every = np.concatenate([np.array(rows_of(labels))[own].ravel(), []]).astype(int)
        numbers, times = np.unique(every, return_counts=True)
        assert ids == sorted(ids)
        assert len(ids) == min(len(numbers), longest)
        assert sorted(counts)[::-1] == sorted(times)[::-1][:longest]
        assert counts.tolist() == [times[numbers == each].item() for each in ids]


def test_of_no_rows_there_is_an_empty_matrix():
    found = collect_rows(np.empty(0, np.int64), lambda *_: None, "rows")
    assert (found.num_rows, len(found.indices)) == (0, 0)


@pytest.mark.parametrize("most", [1, 6, 100])
def test_sums_of_lengths(monkeypatch, most):
    monkeypatch.setattr(row_blocks, "MOST_ROOM", most)
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 9, 20).astype(np.int32)
    rows = make_pattern(rng, [3, 0, 0, 5, 1, 0, 20, 0], 20)
    own = [rows.indices[a:b] for a, b in zip(rows.indptr, rows.indptr[1:], strict=False)]
    assert sums_over(lengths, rows).tolist() == [lengths[each].sum() for each in own]
    assert not sums_over(lengths, Pattern.from_lists([[], []])).any()
