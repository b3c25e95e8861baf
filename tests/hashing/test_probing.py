"""Further buckets of the hash families: which ones, in which order, and what they find."""

from itertools import combinations

import numpy as np
import pytest
import torch
from helpers import naive_hashing

from slide.hashing import DWTA, SimHash, simhash
from slide.hashing.probing import MOST_PROBES, flip_sets


@pytest.mark.parametrize(("hashes", "probes"), [(1, 1), (3, 7), (5, 4), (8, 30), (24, 64)])
def test_the_cheapest_sets_are_among_those_that_are_looked_at(hashes, probes):
    chosen = flip_sets(hashes, probes)
    bounds = zip(chosen.indptr[:-1], chosen.indptr[1:], strict=True)
    sets = [chosen.indices[begin:end].tolist() for begin, end in bounds]
    assert len({tuple(one) for one in sets}) == len(sets) >= probes
    assert all(sets)
    rng, width = np.random.default_rng(hashes), min(hashes, 8)
    for power in (0.3, 1, 4):
        costs = np.sort(rng.random(hashes) ** power)
        found = np.sort([sum(costs[one]) for one in sets])[:probes]
        every = [s for n in range(1, width + 1) for s in combinations(costs[:width], n)]
        expected = np.sort([sum(s) for s in every])[:probes]
        # Of many hashes the dearest ones are left out here, so the others may cost more.
        assert (found <= expected + 1e-12).all()
        if width == hashes:
            np.testing.assert_allclose(found, expected)


def test_few_sets_are_looked_at():
    assert flip_sets(11, 4).num_rows == 5
    assert flip_sets(11, 16).num_rows < 40
    assert flip_sets(24, MOST_PROBES).num_rows < 300


@pytest.mark.parametrize("rounds", [False, True])
def test_simhash_flips_the_smallest_projections(monkeypatch, rounds):
    monkeypatch.setattr(simhash, "has_bfloat16", lambda: rounds)
    family, vectors = SimHash(24, 5, 4), torch.randn(9, 24)
    codes = family.probe_codes(vectors, 6)
    assert codes.shape == (7 * 4, 9)
    assert codes.dtype == np.int32
    np.testing.assert_array_equal(codes[:4], family.codes(vectors))
    if rounds:
        vectors = vectors.bfloat16()
    projections = (vectors @ torch.from_numpy(family.directions).to(vectors.dtype)).double().abs()
    for i in range(9):
        for table in range(4):
            costs = projections[i, 5 * table : 5 * table + 5].tolist()
            one = codes[table, i], costs, [1, 2, 4, 8, 16]
            assert codes[table::4, i].tolist() == naive_hashing.probe_codes(*one, 6)


def test_dwta_takes_the_second_largest_of_a_bin():
    family, vectors = DWTA(24, 2, 3, bin_size=4), torch.randn(9, 24, dtype=torch.float64)
    codes = family.probe_codes(vectors, 2)
    np.testing.assert_array_equal(codes[:3], family.codes(vectors))
    for i in range(9):
        costs, flips = naive_hashing.dwta_runners(vectors[i].tolist(), family.coordinates, 2, 2)
        for table in range(3):
            own = slice(2 * table, 2 * table + 2)
            one = codes[table, i], costs[own], flips[own]
            assert codes[table::3, i].tolist() == naive_hashing.probe_codes(*one, 2)


@pytest.mark.parametrize("family", [SimHash(24, 2, 5), DWTA(24, 2, 5, bin_size=4)])
def test_no_more_buckets_than_there_are(family):
    codes = family.probe_codes(torch.randn(3, 24), 9).reshape(-1, 5, 3)
    assert len(codes) == 4
    assert all(len(np.unique(codes[:, table, i])) == 4 for table in range(5) for i in range(3))


@pytest.mark.parametrize("family", [SimHash(66, 6, 16), DWTA(66, 2, 16)])
def test_a_near_row_is_found_in_more_tables(family):
    """A further bucket holds it more often than a bucket that is not the next one."""
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(200, 66, generator=generator)
    near = vectors + 0.4 * torch.randn(200, 66, generator=generator)
    probed = family.probe_codes(near, 2).reshape(3, 16, 200)
    hits = (probed == family.codes(vectors)).mean((1, 2))
    assert hits[0] > hits[1] > hits[2] > 3 / family.num_buckets
    assert hits.sum() > 1.5 * hits[0]
