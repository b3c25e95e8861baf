"""Kernels of sets of features, against looped twins."""

from itertools import combinations

import numpy as np
import pytest
from helpers.matrices import make_csr, make_pattern

from slide.ops.conjunctions import list_sets, mix_shares

FEATURES, LABELS, SETS = 13, 8, 20


@pytest.mark.parametrize("most", [1, 2, 3, 6])
def test_list_sets(most):
    rng = np.random.default_rng(most)
    sizes = [0, 1, 6, 2, 5]
    rows = make_pattern(rng, sizes, FEATURES)
    hashes = rng.integers(2**64, size=len(rows.indices), dtype=np.uint64)
    groups = rng.integers(8, size=len(rows.indices), dtype=np.uint8)
    chosen = [
        [c for size in range(1, most + 1) for c in combinations(range(a, b), size)]
        for a, b in zip(rows.indptr[:-1], rows.indptr[1:], strict=True)
    ]
    starts = np.cumsum([0, *map(len, chosen)])
    keys, kinds = np.full(starts[-1] + 1, 7, np.uint64), np.full(starts[-1] + 1, 7, np.uint8)
    list_sets(rows, hashes, groups, np.full(len(sizes), most), starts, keys[:-1], kinds[:-1])
    every = [list(own) for row in chosen for own in row]
    assert keys[:-1].tolist() == [int(hashes[own].sum()) for own in every]
    assert kinds[:-1].tolist() == [int(groups[own].sum()) for own in every]
    assert keys[-1] == kinds[-1] == 7, "beyond the sets"


@pytest.mark.parametrize("threads", [1, 3])
def test_mix_shares(threads):
    rng = np.random.default_rng(0)
    sets = make_csr(rng, [0, 3, 1, 6, 4], SETS)
    lists = make_csr(rng, [0, *rng.integers(1, LABELS, SETS - 1)], LABELS)
    ids = np.stack([rng.permutation(LABELS) for _ in range(5)])
    ids[rng.random(ids.shape) < 0.4] = -1
    ids[2] = -1
    starts = np.cumsum([0, *(ids >= 0).sum(1)])
    positions = np.zeros((threads, LABELS), np.int32)
    found = np.full(starts[-1] + 1, -7, np.float32)
    mix_shares(sets, lists, ids, starts, positions, found[:-1])
    assert not positions.any(), "the scratch is not handed back as it was"
    assert found[-1] == -7, "beyond the candidates"
    expected = []
    for b, candidates in enumerate(ids.tolist()):
        for label in (n for n in candidates if n >= 0):
            total = 0.0
            for p in range(sets.indptr[b], sets.indptr[b + 1]):
                own = slice(*lists.indptr[sets.indices[p] :][:2])
                total += sets.values[p] * lists.values[own][lists.indices[own] == label].sum()
            expected.append(total)
    np.testing.assert_allclose(found[:-1], expected, rtol=1e-5, atol=1e-6)
