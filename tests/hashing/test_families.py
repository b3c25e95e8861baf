"""Hash families against their looped twins and against the theory of their collisions."""

import math

import numpy as np
import pytest
import torch
from helpers import naive
from helpers.matrices import make_csr, make_pattern, to_dense
from scipy.stats import spearmanr

from slide.hashing import families as hashing
from slide.hashing.dwta import DWTA
from slide.hashing.inner_product import LENGTH_QUANTILE, NORMS, InnerProductHash
from slide.hashing.simhash import SimHash
from slide.kernels import hash_codes as kernels
from slide.search.exact import exact_top_k
from slide.sparse import CSR

FAMILIES = {
    "simhash": lambda width, seed=0: SimHash(width, 3, 5, seed=seed),
    "dwta": lambda width, seed=0: DWTA(width, 2, 5, bin_size=4, seed=seed),
}


def z_score(hits, trials, p):
    return (hits - trials * p) / math.sqrt(trials * p * (1 - p))


def pair_at_angle(width, theta, generator):
    """Two random unit vectors ``(2, width)`` at an angle."""
    q, _ = torch.linalg.qr(torch.randn(width, 2, generator=generator, dtype=torch.float64))
    return torch.stack([q[:, 0], math.cos(theta) * q[:, 0] + math.sin(theta) * q[:, 1]])


class TestKernels:
    @pytest.mark.parametrize("seed", [0, 1])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize(("num_vectors", "k", "tables"), [(4, 3, 5), (1, 1, 1), (0, 2, 3)])
    def test_pack_signs(self, num_vectors, k, tables, dtype, seed):
        rng = np.random.default_rng(seed)
        projections = rng.integers(-2, 3, (num_vectors, tables * k)).astype(dtype)
        out = np.full((tables, num_vectors), -1, np.int32)
        kernels.pack_signs(projections, k, out)
        assert out.T.tolist() == naive.pack_signs(projections, k).T.tolist()

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("lengths", [[3, 0, 6], [0], [], [1]])
    def test_project_sparse(self, lengths, dtype):
        rng = np.random.default_rng(len(lengths))
        x = make_csr(rng, lengths, 7, dtype)
        directions = rng.integers(-1, 2, (7, 6)).astype(np.int8)
        out = np.full((len(lengths), 6), np.nan, dtype)
        kernels.project_sparse(*x, directions, out)
        np.testing.assert_allclose(out, naive.project_sparse(*x, directions), atol=1e-5)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    @pytest.mark.parametrize("num_vectors", [0, 1, 6])
    @pytest.mark.parametrize("bin_size", [2, 8])
    def test_dwta_dense(self, bin_size, num_vectors, dtype):
        family = DWTA(19, 3, 4, bin_size=bin_size)
        # Few different values, so that ties occur.
        vectors = np.random.default_rng(0).integers(-3, 4, (num_vectors, 19)).astype(dtype)
        codes = family.codes(torch.from_numpy(vectors))
        assert codes.shape == (4, num_vectors)
        for i in range(num_vectors):
            digits = naive.dwta_digits(vectors[i], family.coordinates)
            assert codes[:, i].tolist() == naive.digits_to_codes(digits, 3, bin_size)

    @pytest.mark.parametrize("seed", [0, 1])
    @pytest.mark.parametrize("lengths", [[5, 0, 1, 19, 2], [0], [], [3]])
    @pytest.mark.parametrize("bin_size", [2, 8])
    def test_dwta_sparse(self, bin_size, lengths, seed):
        rng = np.random.default_rng(seed)
        family = DWTA(19, 3, 4, bin_size=bin_size, seed=seed)
        pattern = make_pattern(rng, lengths, 19)
        x = CSR(*pattern, rng.integers(-2, 3, len(pattern.indices)).astype(np.float32))
        codes = family.sparse_codes(x)
        assert codes.shape == (4, len(lengths))
        for b in range(len(lengths)):
            at = slice(x.indptr[b], x.indptr[b + 1])
            stored = dict(zip(x.indices[at].tolist(), x.values[at].tolist(), strict=True))
            digits, _ = naive.dwta_sparse_digits(
                stored, family.coordinates, family.key, kernels.MAX_DENSIFY_ATTEMPTS
            )
            assert codes[:, b].tolist() == naive.digits_to_codes(digits, 3, bin_size)


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
            assert digits == naive.dwta_digits(x[i], family.coordinates)

    @pytest.mark.parametrize("num_tables", [2, 9])
    def test_bins_are_cut_from_permutations(self, num_tables):
        family = DWTA(21, 2, num_tables, bin_size=4)
        assert family.coordinates.shape == (2 * num_tables, 4)
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
            digits, filled = naive.dwta_sparse_digits(
                {c: -2.0}, family.coordinates, family.key, kernels.MAX_DENSIFY_ATTEMPTS
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

    def test_codes_fit_the_tables(self, family):
        hash_family = FAMILIES[family](32)
        codes = hash_family.codes(torch.randn(50, 32))
        assert codes.dtype == np.int32
        assert codes.shape == (hash_family.num_tables, 50)
        assert codes.min() >= 0
        assert codes.max() < hash_family.num_buckets

    def test_takes_any_float_and_no_vectors(self, family):
        hash_family = FAMILIES[family](32)
        x = torch.randn(4, 32)
        np.testing.assert_array_equal(hash_family.codes(x), hash_family.codes(x.double()))
        assert hash_family.codes(x[:0]).shape == (hash_family.num_tables, 0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SimHash(0, 3, 4), "in_features must be .* at least 1, not 0"),
        (lambda: SimHash(5, 0, 4), "hashes_per_table must be .* at least 1, not 0"),
        (lambda: SimHash(5, 3, 0), "num_tables must be .* at least 1, not 0"),
        (lambda: SimHash(5, 25, 1), "codes of 25 bits"),
        (lambda: DWTA(64, 9, 1), "codes of 27 bits"),
        (lambda: DWTA(64, 2, 1, bin_size=6), "bin_size must be a power of two"),
        (lambda: DWTA(64, 2, 1, bin_size=1), "bin_size must be .* at least 2, not 1"),
        (lambda: DWTA(7, 2, 1), "in_features >= bin_size = 8, not 7"),
        (lambda: InnerProductHash(SimHash(5, 2, 1), norm="l2"), "norm must be one of"),
    ],
)
def test_numbers_out_of_range(build, message):
    with pytest.raises(ValueError, match=message):
        build()


class Recorder:
    """A hash family that keeps the vectors which it is asked to hash."""

    num_tables, num_buckets = 1, 2

    def __init__(self, in_features):
        self.in_features = in_features
        self.seen = []

    def codes(self, vectors):
        self.seen.append(vectors.clone())
        return np.zeros((1, len(vectors)), np.int32)

    def sparse_codes(self, vectors):
        return self.codes(to_dense(vectors, self.in_features))


def draw_layer(num_rows=400, width=12):
    """Weight with rows of different lengths and a common direction, and bias."""
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(num_rows, width, generator=generator) + 0.5
    weight *= torch.exp(0.3 * torch.randn(num_rows, 1, generator=generator))
    return weight, torch.randn(num_rows, generator=generator)


class TestInnerProductHash:
    @pytest.mark.parametrize("center", [False, True])
    @pytest.mark.parametrize("norm", NORMS)
    @pytest.mark.parametrize("has_bias", [False, True])
    @pytest.mark.parametrize("sparse", [False, True])
    def test_order_of_inner_products_is_kept(self, sparse, has_bias, norm, center, monkeypatch):
        monkeypatch.setattr("slide.hashing.inner_product._BLOCK", 150)
        weight, bias = draw_layer()
        bias = bias if has_bias else None
        queries = make_csr(np.random.default_rng(0), [4, 0, 12], 12)
        recorder = Recorder(14)
        hashed = InnerProductHash(recorder, norm, center)
        hashed.fit(weight, bias)
        assert hashed.row_codes(weight, bias).shape == (1, 400)
        rows = torch.cat(recorder.seen)
        dense = to_dense(queries, 12)
        assert hashed.query_codes(queries if sparse else dense).shape == (1, 3)
        wanted = dense @ weight.T + (bias if has_bias else 0)
        shift = wanted - recorder.seen[-1] @ rows.T
        torch.testing.assert_close(shift, shift[:, :1].expand_as(shift), atol=1e-4, rtol=0)
        if norm == "cosine":
            assert not rows[:, -1].any()
        if center:
            assert rows.mean(0)[:13].abs().max() < 1e-4

    def test_rows_get_the_same_length(self):
        layer, recorder = draw_layer(), Recorder(14)
        hashed = InnerProductHash(recorder, "simple_lsh")
        hashed.fit(*layer)
        hashed.row_codes(*layer)
        rows = torch.cat(recorder.seen)
        lengths = rows.norm(dim=1)
        longest = lengths > hashed.length + 1e-4
        assert longest.sum() == 400 - math.ceil(LENGTH_QUANTILE * 400)
        torch.testing.assert_close(lengths[~longest], torch.full((396,), hashed.length))
        assert not rows[longest, -1].any()

    def test_the_mean_input_is_taken_off(self):
        layer, recorder = draw_layer(), Recorder(14)
        queries = torch.randn(9, 12) + 3
        hashed = InnerProductHash(recorder)
        hashed.observe(queries[:3])
        hashed.observe(queries[3:6])
        hashed.observe(queries[6:])
        hashed.fit(*layer)
        hashed.query_codes(queries)
        torch.testing.assert_close(recorder.seen[-1][:, :12], queries - queries.mean(0))
        plain = InnerProductHash(recorder, center=False)
        plain.observe(queries)
        plain.query_codes(queries)
        torch.testing.assert_close(recorder.seen[-1][:, :12], queries)

    def test_the_mean_input_follows_the_inputs(self):
        hashed = InnerProductHash(Recorder(14))
        for value in [0.0] * 60 + [1.0] * 200:
            hashed.observe(torch.full((2, 12), value))
        assert hashed.mean_input.min() > 0.9
        hashed.observe(torch.empty(0, 12))
        hashed.observe(make_csr(np.random.default_rng(0), [3], 12))
        assert hashed.batches == 260

    @pytest.mark.parametrize("norm", NORMS)
    def test_votes_follow_inner_products(self, norm):
        weight, bias = draw_layer()
        queries = torch.randn(12, 12, generator=torch.Generator().manual_seed(6))
        hashed = InnerProductHash(SimHash(14, 4, 60), norm)
        hashed.fit(weight, bias)
        rows, asked = hashed.row_codes(weight, bias), hashed.query_codes(queries)
        votes = (asked[:, :, None] == rows[:, None, :]).sum(0)
        scores = queries @ weight.T + bias
        correlation = np.array([spearmanr(v, s)[0] for v, s in zip(votes, scores, strict=True)])
        assert correlation.mean() > 6 * correlation.std(ddof=1) / math.sqrt(len(queries))
        assert correlation.mean() > 0.3
        best = exact_top_k(queries, weight, bias, 10)[1].numpy()
        voted = np.argsort(-votes, axis=1, kind="stable")[:, :40]
        recall = np.mean([np.isin(b, v).mean() for b, v in zip(best, voted, strict=True)])
        assert recall > 0.4  # 40 random rows of 400 would find 0.1

    def test_state_round_trip(self):
        layer, queries = draw_layer(), torch.randn(20, 12) + 1
        family = SimHash(14, 4, 6)
        hashed, other = (InnerProductHash(family) for _ in range(2))
        hashed.fit(*layer)
        hashed.observe(queries)
        rows, asked = hashed.row_codes(*layer), hashed.query_codes(queries)
        other.load_state_dict(hashed.state_dict())
        np.testing.assert_array_equal(other.row_codes(*layer), rows)
        np.testing.assert_array_equal(other.query_codes(queries), asked)
        other.fit(2 * layer[0], layer[1])
        other.observe(-queries)
        np.testing.assert_array_equal(hashed.row_codes(*layer), rows)
        np.testing.assert_array_equal(hashed.query_codes(queries), asked)
        hashed.observe(-queries)
        np.testing.assert_array_equal(hashed.mean_input, other.mean_input)

    def test_blocks_do_not_matter(self, monkeypatch):
        weight, bias = draw_layer()
        hashed = InnerProductHash(SimHash(14, 4, 6), "simple_lsh")
        hashed.fit(weight, bias)
        before, length = hashed.row_codes(weight, bias), hashed.length
        monkeypatch.setattr("slide.hashing.inner_product._BLOCK", 37)
        hashed.fit(weight, bias)
        assert hashed.length == pytest.approx(length)
        np.testing.assert_array_equal(hashed.row_codes(weight, bias), before)


@pytest.mark.parametrize("rounds", [False, True])
def test_signs_with_and_without_bfloat16(monkeypatch, rounds):
    monkeypatch.setattr(hashing, "has_bfloat16", lambda: rounds)
    family = SimHash(40, hashes_per_table=5, num_tables=6)
    vectors = torch.randn(300, 40, generator=torch.Generator().manual_seed(0))
    exact = family.codes(vectors.double())
    # A projection changes its sign where it is smaller than the rounding of what it sums.
    changed = np.bitwise_count(exact ^ family.codes(vectors)).sum() / (300 * 30)
    assert changed < 0.01 if rounds else changed < 0.001
