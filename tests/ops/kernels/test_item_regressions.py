"""Regressions of items: the kernel against its naive twin."""

import numpy as np
import pytest
from helpers import naive_experts

from slide.ops.kernels.base_scorers import regress_items
from slide.ops.kernels.ragged import RowRoom
from slide.sparse import CSR

ITEMS, FEATURES = 14, 11


def counted(rng):
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
    lists, counts = counted(np.random.default_rng(most))
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
    how = first, FEATURES, np.float32(3), 200
    regress_items(CSR(bounds, columns, values), counts, *how, places, close, gram, room)
    assert not places.any(), "the scratch is not handed back as it was"
    expected = naive_experts.regress_items(lists, counts.tolist(), FEATURES, 3.0, most)[first:]
    for begin, size, own in zip(room.starts, room.counts, expected, strict=True):
        assert room.columns[begin : begin + size].tolist() == list(own)
        found = room.values[begin : begin + size]
        np.testing.assert_allclose(found, list(own.values()), rtol=1e-3, atol=1e-5)
    sizes = [len(own) for own in expected]
    assert max(sizes) == min(most, FEATURES - 1)
    assert (min(sizes) == 0) == (first == 0), "of the item without a row"
