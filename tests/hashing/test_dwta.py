"""DWTA against the theory of its collisions, and against the looped twin's digits."""

import math

import numpy as np
import pytest
import torch
from helpers import naive_hashing
from helpers.matrices import make_csr, to_dense, z_score

from slide.hashing.dwta import DWTA
from slide.ops.kernels.hash_codes import MAX_DENSIFY_ATTEMPTS
from slide.sparse import CSR


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

    def test_codes_depend_on_the_order_of_coordinates_alone(self):
        x = torch.rand(3, 40)
        family = DWTA(40, 2, 10)
        np.testing.assert_array_equal(family.codes(x), family.codes(torch.exp(5 * x)))

    @pytest.mark.parametrize(("bin_size", "k"), [(2, 4), (4, 3), (8, 2)])
    def test_all_buckets_are_reached(self, bin_size, k):
        family = DWTA(64, k, 1, bin_size=bin_size)
        assert family.num_buckets == bin_size**k
        codes = family.codes(torch.randn(1_500, 64))
        assert sorted(set(codes[0].tolist())) == list(range(family.num_buckets))

    def test_codes_decode_to_digits(self):
        family = DWTA(30, 3, 7)
        x = torch.randn(4, 30)
        codes = family.codes(x)
        for i in range(4):
            digits = [codes[l, i] >> 3 * (2 - k) & 7 for l in range(7) for k in range(3)]
            assert digits == naive_hashing.dwta_digits(x[i], family.coordinates)

    @pytest.mark.parametrize(("bin_size", "base"), [(8, 4), (4, 2)])
    def test_released_codes_add_up_digits_that_overlap(self, bin_size, base):
        shape = {"hashes_per_table": 3, "num_tables": 7, "bin_size": bin_size}
        family = DWTA(30, **shape, packing="released")
        assert family.num_buckets == (bin_size - 1) * (base**3 - 1) // (base - 1) + 1
        x = make_csr(np.random.default_rng(0), [30] * 4, 30)
        dense = to_dense(x, 30)
        codes = family.codes(dense)
        for i in range(4):
            digits = naive_hashing.dwta_digits(dense[i], family.coordinates)
            assert codes[:, i].tolist() == naive_hashing.digits_to_codes(digits, 3, base)
        np.testing.assert_array_equal(codes, family.sparse_codes(x))
        assert (codes != DWTA(30, **shape).codes(dense)).any()
        with pytest.raises(ValueError, match="probes need packing='exact'"):
            family.probe_codes(dense, 1)

    def test_released_codes_of_the_published_setting(self):
        assert DWTA(128, 6, 50, packing="released").num_buckets == 9_556

    @pytest.mark.parametrize("num_tables", [2, 9])
    def test_bins_are_cut_from_permutations(self, num_tables):
        family = DWTA(21, 2, num_tables, bin_size=4)
        assert family.coordinates.shape == (2 * num_tables, 4)
        assert family.places.shape == (21, math.ceil(2 * num_tables / 5)), "no more than needed"
        for start in range(0, 2 * num_tables, 5):
            members = family.coordinates[start : start + 5].ravel()
            assert len(set(members.tolist())) == members.size
        for h, members in enumerate(family.coordinates):
            for place, c in enumerate(members):
                assert h * 4 + place in family.places[c]
        assert (family.places >= 0).sum() == family.coordinates.size

    def test_dense_and_sparse_agree_without_zeros(self):
        x = make_csr(np.random.default_rng(0), [24] * 6, 24)
        family = DWTA(24, 3, 8, bin_size=4)
        np.testing.assert_array_equal(family.codes(to_dense(x, 24)), family.sparse_codes(x))

    def test_empty_bins_borrow(self):
        family = DWTA(64, 1, 40, bin_size=4)
        for c in range(64):
            x = CSR(np.array([0, 1]), np.array([c], np.int32), np.array([-2.0], np.float32))
            digits, filled = naive_hashing.dwta_sparse_digits(
                {c: -2.0}, family.coordinates, family.key, MAX_DENSIFY_ATTEMPTS
            )
            own = {d for d, full in zip(digits, filled, strict=True) if full}
            codes = family.sparse_codes(x)[:, 0]
            assert any(filled)
            assert not all(filled)
            # 100 draws among 40 bins miss the filled one with probability 0.08 each.
            borrowed = np.isin(codes, list(own))
            assert borrowed.mean() > 0.7
            assert (codes[~borrowed] == 0).all()

    def test_borrowing_is_the_same_for_all_vectors(self):
        x = make_csr(np.random.default_rng(1), [3], 64)
        twice = CSR(np.array([0, 3, 6]), np.tile(x.indices, 2), np.tile(x.values, 2))
        codes = DWTA(64, 2, 30).sparse_codes(twice)
        assert (codes[:, 0] == codes[:, 1]).all()

    def test_an_empty_vector_has_code_zero(self):
        empty = CSR(np.zeros(2, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
        assert not DWTA(64, 2, 30).sparse_codes(empty).any()
