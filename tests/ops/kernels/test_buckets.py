"""Kernels of the hash tables; `tests/hashing/test_tables.py` compares their contents."""

import numpy as np
from helpers.buckets import as_codes

from slide.hashing.tables import HashTables
from slide.ops.kernels import buckets as kernels


def test_a_full_pool_stops_a_table():
    buckets = HashTables(2, 2, 8).buckets._replace(pool=np.empty((2, 4), np.int32))
    ids, done = np.arange(6, dtype=np.int32), np.zeros(2, np.int64)
    codes = as_codes([[0, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0]])
    kernels.insert(buckets, ids, codes, 8, kernels.FIFO, np.uint64(0), done)
    assert done.tolist() == [4, 2]
    assert buckets.seen.tolist() == [[4, 0], [2, 0]]
