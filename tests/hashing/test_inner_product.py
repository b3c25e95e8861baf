"""Inner products made comparable by hash codes."""

import math

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr, to_dense
from scipy.stats import spearmanr
from slide.hashing.inner_product import LENGTH_QUANTILE, NORMS, InnerProductHash

from slide.hashing.simhash import SimHash
from slide.search.exact import exact_top_k


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


def test_sparse_inputs_are_hashed_on_the_host():
    """A family knows nothing of devices; the codes follow the weights."""
    hashed = InnerProductHash(Recorder(14))
    hashed.fit(*draw_layer())
    queries = make_csr(np.random.default_rng(0), [4, 0, 12], 12)
    assert isinstance(hashed.query_codes(queries), np.ndarray)
    hashed.mean = hashed.mean.to("meta")
    codes = hashed.query_codes(queries)
    assert codes.device.type == "meta"
    assert codes.shape == (1, 3)


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

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_a_bad_batch_does_not_stay_in_the_mean_input(self, bad):
        hashed, other = (InnerProductHash(Recorder(14)) for _ in range(2))
        for each in (hashed, other):
            each.observe(torch.ones(2, 12))
        wrong = torch.ones(2, 12)
        wrong[1, 3] = bad
        hashed.observe(wrong)
        other.observe(torch.ones(2, 12))
        assert hashed.mean_input.tolist() == [1.0] * 12
        for each in (hashed, other):
            each.observe(torch.full((2, 12), 3.0))
        assert torch.equal(hashed.mean_input, other.mean_input)

    @pytest.mark.parametrize("norm", NORMS)
    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    def test_rows_that_are_no_numbers_change_no_other_codes(self, bad, norm):
        """A bias of -inf masks an output."""
        weight, bias = draw_layer()
        kept = torch.arange(len(weight)) % 20 > 0
        hashed, other = (InnerProductHash(SimHash(14, 8, seed=1), norm) for _ in range(2))
        other.fit(weight[kept], bias[kept])
        bias[~kept] = bad
        hashed.fit(weight, bias)
        torch.testing.assert_close(hashed.mean, other.mean)
        codes = hashed.row_codes(weight, bias)[:, kept]
        assert (codes == other.row_codes(weight[kept], bias[kept])).mean() > 0.98

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

    def test_threads_do_not_matter(self, threads):
        weight, bias = draw_layer(2**16, 4)
        found = []
        for number in (1, 0):
            threads(number)
            hashed = InnerProductHash(Recorder(6))
            hashed.fit(weight, bias)
            found.append((hashed.mean.tolist(), hashed.length))
        assert found[0] == found[1]

    def test_no_rows(self):
        hashed = InnerProductHash(SimHash(14, 4, 6), "cosine")
        assert hashed.row_codes(torch.zeros(0, 12), None).shape == (6, 0)

    def test_blocks_do_not_matter(self, monkeypatch):
        weight, bias = draw_layer()
        hashed = InnerProductHash(SimHash(14, 4, 6), "simple_lsh")
        hashed.fit(weight, bias)
        before, length = hashed.row_codes(weight, bias), hashed.length
        monkeypatch.setattr("slide.hashing.inner_product._BLOCK", 37)
        monkeypatch.setattr("slide.hashing.inner_product._LONG", 3)  # With a bar of progress.
        hashed.fit(weight, bias)
        assert hashed.length == pytest.approx(length)
        np.testing.assert_array_equal(hashed.row_codes(weight, bias), before)
