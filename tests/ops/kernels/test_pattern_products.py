"""Groups of the entries of a pattern, against looped twins."""

import numpy as np
import pytest
from helpers import naive, naive_arrays
from helpers.products import SHAPES, draw_product

from slide.active_set import transpose
from slide.ops.kernels import products as kernels
from slide.sparse import Pattern


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES)
def test_transpose_groups_entries_by_id(shape, seed):
    pattern, _, _, rows, _ = draw_product(shape, np.float32, seed)
    t = transpose(pattern, len(rows))
    expected = naive.transpose(*pattern)
    assert t.ids.tolist() == list(expected)
    assert len(t.starts) == len(t.ids) + 1
    for u, group in enumerate(expected.values()):
        at = slice(t.starts[u], t.starts[u + 1])
        assert list(zip(t.entries[at].tolist(), t.samples[at].tolist(), strict=True)) == group


def test_transpose_of_one_id_shared_by_all_samples():
    pattern = Pattern(np.arange(6), np.full(5, 3, np.int32))
    t = transpose(pattern, 8)
    assert t.ids.tolist() == [3]
    assert t.starts.tolist() == [0, 5]
    assert t.samples.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", SHAPES)
def test_group_entries(shape, seed):
    pattern, _, _, rows, _ = draw_product(shape, np.float32, seed)
    # Groups of several ids, and groups without any.
    slots = np.random.default_rng(seed).integers(0, 4, len(rows)).astype(np.int32)
    starts, nnz = np.full(5, -1, np.int64), len(pattern.indices)
    entries, samples = np.empty(nnz, np.int64), np.empty(nnz, np.int32)
    kernels.group_entries(*pattern, slots, starts, entries, samples)
    pairs = list(zip(entries.tolist(), samples.tolist(), strict=True))
    found = [pairs[starts[u] : starts[u + 1]] for u in range(4)]
    assert found == naive_arrays.group_entries(*pattern, slots, 4)
