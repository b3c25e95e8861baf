"""Codes for hash tables, and what lies in their buckets."""

import numpy as np


def draw_codes(seed, num_tables=3, num_ids=40, num_buckets=5):
    """Random codes, some buckets fuller than others."""
    rng = np.random.default_rng(seed)
    shape = (num_tables, num_ids)
    return np.minimum(rng.integers(0, num_buckets, shape), rng.integers(0, num_buckets, shape))


def as_codes(values):
    return np.array(values, np.int32)


def contents(tables):
    """The ids in each bucket of each table, in their order."""
    every = np.tile(np.arange(tables.num_buckets, dtype=np.int32), (tables.num_tables, 1))
    b = tables.buckets
    return [
        [b.pool[l, b.starts[l, c] :][: min(b.seen[l, c], tables.capacity)].tolist() for c in row]
        for l, row in enumerate(every)
    ]
