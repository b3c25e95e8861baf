"""SimHash against the theory of its collisions."""

import math

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr, to_dense, z_score

from slide.hashing import simhash
from slide.hashing.simhash import SimHash


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

    def test_parallel_and_opposite_vectors(self):
        x = torch.randn(64)
        codes = SimHash(64, 4, 200).codes(torch.stack([x, 3 * x, -x]))
        assert (codes[:, 0] == codes[:, 1]).all()
        assert (codes[:, 0] == 15 - codes[:, 2]).all()

    def test_entries_of_directions(self):
        directions = SimHash(200, 10, 10).directions
        for entry, p in ((1, 1 / 6), (-1, 1 / 6), (0, 2 / 3)):
            hits = int((directions == entry).sum())
            assert abs(z_score(hits, directions.size, p)) < 4

    def test_dense_and_sparse_agree(self):
        x = make_csr(np.random.default_rng(0), [4, 0, 20, 1], 20)
        family = SimHash(20, 4, 30)
        np.testing.assert_array_equal(family.codes(to_dense(x, 20)), family.sparse_codes(x))


@pytest.mark.parametrize("rounds", [False, True])
def test_signs_with_and_without_bfloat16(monkeypatch, rounds):
    monkeypatch.setattr(simhash, "has_bfloat16", lambda: rounds)
    family = SimHash(40, hashes_per_table=5, num_tables=6)
    vectors = torch.randn(300, 40, generator=torch.Generator().manual_seed(0))
    exact = family.codes(vectors.double())
    # A projection changes its sign where it is smaller than the rounding of what it sums.
    changed = np.bitwise_count(exact ^ family.codes(vectors)).sum() / (300 * 30)
    assert changed < 0.01 if rounds else changed < 0.001


def test_double_vectors_are_not_rounded(monkeypatch):
    monkeypatch.setattr(simhash, "has_bfloat16", lambda: True)
    family = SimHash(40, hashes_per_table=5, num_tables=6)
    vectors = torch.randn(300, 40, dtype=torch.float64)
    signs = (vectors @ torch.from_numpy(family.directions).double() > 0).view(300, 6, 5)
    expected = (signs * 2 ** torch.arange(5)).sum(2).T
    np.testing.assert_array_equal(family.codes(vectors), expected)


def test_directions_are_copied_to_a_device_once():
    family = SimHash(40, hashes_per_table=5, num_tables=6)
    first = family._directions(torch.device("cpu"))
    assert family._directions(torch.device("cpu")) is first
    family.redraw(1)
    assert family._directions(torch.device("cpu")) is not first
