"""Kernels of further buckets, against their looped twins."""

import numpy as np
import pytest
from helpers import naive_hashing

from slide.hashing.families import flip_sets
from slide.kernels import probes as kernels


@pytest.mark.parametrize(("tables", "k", "count"), [(1, 1, 4), (3, 4, 5), (2, 6, 0)])
@pytest.mark.parametrize("probes", [1, 3, 12])
def test_probe_codes(tables, k, count, probes):
    rng = np.random.default_rng(k)
    codes = rng.integers(0, 4**k, (tables, count), dtype=np.int32)
    costs = rng.random((count, tables * k)).astype(np.float32)
    # Digits of two bits, of which a change may flip one or both.
    flips = rng.integers(1, 4, (count, tables * k)) << np.tile(2 * np.arange(k), tables)
    probes = min(probes, 2**k - 1)
    out = np.full(((1 + probes) * tables, count), -1, np.int32)
    kernels.probe_codes(codes, costs, flips.astype(np.int32), flip_sets(k, probes), out)
    for i in range(count):
        for table in range(tables):
            own = slice(table * k, (table + 1) * k)
            one = codes[table, i], costs[i, own].astype(np.float64), flips[i, own]
            assert out[table::tables, i].tolist() == naive_hashing.probe_codes(*one, probes)


@pytest.mark.parametrize("wrong", [np.inf, np.nan, 0.0])
def test_buckets_are_distinct_whatever_the_costs(wrong):
    costs, flips = np.full((1, 4), wrong), np.array([[1, 2, 4, 8]], np.int32)
    out = np.empty((16, 1), np.int32)
    kernels.probe_codes(np.array([[5]], np.int32), costs, flips, flip_sets(4, 15), out)
    assert out[0, 0] == 5
    assert sorted(out[:, 0].tolist()) == list(range(16))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("bin_size", "bits"), [(2, 1), (8, 3)])
def test_dwta_runners(bin_size, bits, dtype):
    rng, k = np.random.default_rng(bits), 3
    # Few different values, so that ties occur.
    vectors = rng.integers(-3, 4, (6, 19)).astype(dtype)
    bins = np.stack([rng.permutation(19)[:bin_size] for _ in range(2 * k)]).astype(np.int32)
    costs, flips = np.empty((6, 2 * k), dtype), np.empty((6, 2 * k), np.int32)
    kernels.dwta_runners(vectors, bins, k, bits, costs, flips)
    for i in range(6):
        expected = naive_hashing.dwta_runners(vectors[i], bins, k, bits)
        assert (costs[i].tolist(), flips[i].tolist()) == expected
