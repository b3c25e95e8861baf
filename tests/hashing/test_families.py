"""Hash families against theory and slow twins: codes, collisions, further buckets, errors."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr, to_dense, z_score

from slide.hashing import families
from slide.hashing.families import DWTA, SimHash
from slide.sparse import CSR

FAMILIES = {
    "simhash": lambda width, seed=0: SimHash(width, 3, 5, seed=seed),
    "dwta": lambda width, seed=0: DWTA(width, 2, 5, bin_size=4, seed=seed),
}


@pytest.mark.parametrize("family", FAMILIES)
class TestRedraw:
    def test_is_reproducible(self, family):
        x = torch.randn(40, 32)
        hash_family = FAMILIES[family](32, seed=1)
        first = hash_family.codes(x)
        hash_family.redraw(2)
        second = hash_family.codes(x)
        hash_family.redraw(1)
        np.testing.assert_array_equal(hash_family.codes(x), first)
        np.testing.assert_array_equal(FAMILIES[family](32, seed=2).codes(x), second)
        assert (first != second).mean() > 0.5

    def test_codes_of_dense_and_sparse_vectors(self, family):
        # DWTA looks at stored entries alone, so there are no zeros.
        x = make_csr(np.random.default_rng(0), [32] * 6, 32)
        hash_family, dense = FAMILIES[family](32), to_dense(x, 32)
        codes = hash_family.codes(dense)
        np.testing.assert_array_equal(codes, hash_family.codes(dense.double()))
        np.testing.assert_array_equal(codes, hash_family.sparse_codes(x))
        assert codes.dtype == np.int32
        assert 0 <= codes.min() <= codes.max() < hash_family.num_buckets
        assert hash_family.codes(dense[:0]).shape == (hash_family.num_tables, 0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SimHash(0, 3, 4), "in_features must be .* at least 1, not 0"),
        (lambda: SimHash(5, 32, 1), "codes of 32 bits.* be at most 31"),
        (lambda: DWTA(64, 11, 1), "codes of 33 bits.* at most 10"),
        (lambda: DWTA(64, 2, 1, packing="dense"), "packing must be one of"),
        (lambda: DWTA(64, 2, 1, bin_size=6), "bin_size must be a power of two"),
        (lambda: DWTA(64, 2, 1, bin_size=1), "bin_size must be .* at least 2, not 1"),
        (lambda: DWTA(7, 2, 1), "in_features >= bin_size = 8, not 7"),
    ],
)
def test_numbers_out_of_range(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def pair_at_angle(width, theta, generator):
    """Two random unit vectors ``(2, width)`` at an angle."""
    q, _ = torch.linalg.qr(torch.randn(width, 2, generator=generator, dtype=torch.float64))
    return torch.stack([q[:, 0], math.cos(theta) * q[:, 0] + math.sin(theta) * q[:, 1]])


class TestSimHash:
    @pytest.mark.parametrize("k", [1, 3])
    @pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.8])
    def test_collides_as_theory_says(self, share, k):
        family = SimHash(512, k, 6_000, seed=3)
        generator = torch.Generator().manual_seed(round(100 * share))
        codes = family.codes(pair_at_angle(512, share * math.pi, generator))
        hits = int((codes[:, 0] == codes[:, 1]).sum())
        assert abs(z_score(hits, 6_000, (1 - share) ** k)) < 4

    def test_entries_of_directions(self):
        directions = SimHash(200, 10, 10).directions
        for entry, p in ((1, 1 / 6), (-1, 1 / 6), (0, 2 / 3)):
            hits = int((directions == entry).sum())
            assert abs(z_score(hits, directions.size, p)) < 4


@pytest.mark.parametrize("rounds", [False, True])
def test_signs_with_and_without_bfloat16(monkeypatch, rounds):
    monkeypatch.setattr(families, "has_bfloat16", lambda: rounds)
    family = SimHash(40, hashes_per_table=5, num_tables=6)
    vectors = torch.randn(300, 40, generator=torch.Generator().manual_seed(0))
    exact = family.codes(vectors.double())
    # A projection changes its sign where it is smaller than the rounding of what it sums.
    changed = np.bitwise_count(exact ^ family.codes(vectors)).sum() / (300 * 30)
    assert changed < 0.01 if rounds else changed < 0.001


class TestDWTA:
    @pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.8])
    def test_pairs_of_coordinates_collide_as_signs_do(self, share):
        # All bins come from one permutation: they are disjoint, hence independent.
        family = DWTA(512, 1, 256, bin_size=2)
        theta = share * math.pi
        generator = torch.Generator().manual_seed(round(100 * share))
        a, b = torch.randn(2, 20, 512, generator=generator)
        b = math.cos(theta) * a + math.sin(theta) * b
        hits = int((family.codes(a) == family.codes(b)).sum())
        assert abs(z_score(hits, 20 * 256, 1 - share)) < 4

    @pytest.mark.parametrize(("k", "p"), [(1, 1 / 8), (2, 1 / 64)])
    def test_independent_vectors_collide_once_in_eight_a_digit(self, k, p):
        family = DWTA(512, k, 64 // k)
        a, b = torch.randn(2, 80, 512)
        codes = family.codes(a)
        trials = codes.size
        assert abs(z_score(int((codes == family.codes(b)).sum()), trials, p)) < 4
        np.testing.assert_array_equal(codes, family.codes(a.clone()))

    @pytest.mark.parametrize(
        ("packing", "bin_size", "base"),
        [("exact", 8, 8), ("exact", 2, 2), ("released", 8, 4), ("released", 4, 2)],
    )
    def test_codes_are_digits_to_a_base(self, packing, bin_size, base):
        """Which is smaller than a bin in released codes, so that digits overlap."""
        family = DWTA(30, 3, 7, bin_size=bin_size, packing=packing)
        assert family.num_buckets == (bin_size - 1) * (base**3 - 1) // (base - 1) + 1
        x = make_csr(np.random.default_rng(0), [30] * 4, 30)
        dense = to_dense(x, 30)
        codes = family.codes(dense)
        for i in range(4):
            digits = dense[i][family.coordinates].argmax(1).view(7, 3)
            assert codes[:, i].tolist() == (digits @ torch.tensor([base**2, base, 1])).tolist()
        np.testing.assert_array_equal(codes, family.sparse_codes(x))

    def test_released_codes_have_no_further_buckets(self):
        with pytest.raises(ValueError, match="probes need packing='exact'"):
            DWTA(30, 3, 7, packing="released").probe_codes(torch.randn(4, 30), 1)

    def test_empty_bins_borrow(self):
        family = DWTA(64, 1, 40, bin_size=4)
        for c in range(64):
            x = CSR(np.array([0, 1]), np.array([c], np.int32), np.array([-2.0], np.float32))
            filled, own = np.nonzero(family.coordinates == c)
            codes = family.sparse_codes(x)[:, 0]
            assert 0 < len(filled) < 40
            assert codes[filled].tolist() == own.tolist()
            # 100 draws among 40 bins miss the filled one with probability 0.08 each.
            borrowed = np.isin(codes, own)
            assert borrowed.mean() > 0.7
            assert (codes[~borrowed] == 0).all()

    def test_an_empty_vector_has_code_zero(self):
        empty = CSR(np.zeros(2, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
        assert not DWTA(64, 2, 30).sparse_codes(empty).any()

    def test_bins_are_cut_from_permutations(self):
        family = DWTA(21, 2, 9, bin_size=4)
        assert family.coordinates.shape == (18, 4)
        assert family.positions.shape == (21, 4), "no more than needed: 5 bins a permutation"
        for start in range(0, 18, 5):
            members = family.coordinates[start : start + 5].ravel()
            assert len(set(members.tolist())) == members.size
        for h, members in enumerate(family.coordinates):
            for place, c in enumerate(members):
                assert h * 4 + place in family.positions[c]
        assert (family.positions >= 0).sum() == family.coordinates.size


def cheapest(code, costs, flips, probes):
    """A code, then the codes after the cheapest sets of changes."""
    hashes = range(len(costs))
    sets = [s for size in range(len(costs) + 1) for s in combinations(hashes, size)]
    sets.sort(key=lambda changes: sum(costs[k] ** 2 for k in changes))
    return [int(code) ^ sum(int(flips[k]) for k in changes) for changes in sets[: 1 + probes]]


@pytest.mark.parametrize(
    ("hashes", "probes", "rounds"),
    [(1, 1, False), (3, 7, False), (5, 4, False), (5, 6, True), (8, 30, False), (8, 64, False)],
)
def test_simhash_flips_the_smallest_projections(monkeypatch, hashes, probes, rounds):
    monkeypatch.setattr(families, "has_bfloat16", lambda: rounds)
    family, vectors = SimHash(24, hashes, 4), torch.randn(9, 24)
    codes = family.probe_codes(vectors, probes)
    assert codes.shape == ((1 + probes) * 4, 9)
    assert codes.dtype == np.int32
    np.testing.assert_array_equal(codes[:4], family.codes(vectors))
    if rounds:
        vectors = vectors.bfloat16()
    projections = (vectors @ torch.from_numpy(family.directions).to(vectors.dtype)).double().abs()
    for i in range(9):
        for table in range(4):
            costs = projections[i, hashes * table : hashes * (table + 1)].tolist()
            one = codes[table, i], costs, [1 << k for k in range(hashes)]
            assert codes[table::4, i].tolist() == cheapest(*one, probes)


def test_dwta_takes_the_second_largest_of_a_bin():
    family, vectors = DWTA(24, 2, 3, bin_size=4), torch.randn(9, 24, dtype=torch.float64)
    codes = family.probe_codes(vectors, 2)
    np.testing.assert_array_equal(codes[:3], family.codes(vectors))
    values, digits = vectors[:, family.coordinates].sort(descending=True)
    costs, flips = values[..., 0] - values[..., 1], digits[..., 0] ^ digits[..., 1]
    flips <<= torch.tensor([2, 0] * 3)  # The first digit of a code is in front.
    for i in range(9):
        for table in range(3):
            own = slice(2 * table, 2 * table + 2)
            one = codes[table, i], costs[i, own].tolist(), flips[i, own].tolist()
            assert codes[table::3, i].tolist() == cheapest(*one, 2)


@pytest.mark.parametrize("family", [SimHash(24, 2, 5), DWTA(24, 2, 5, bin_size=4)])
def test_no_more_buckets_than_there_are(family):
    codes = family.probe_codes(torch.randn(3, 24), 9).reshape(-1, 5, 3)
    assert len(codes) == 4
    assert all(len(np.unique(codes[:, table, i])) == 4 for table in range(5) for i in range(3))
