"""Exact search against the full product, and FAISS against exact search."""

import numpy as np
import pytest
import torch

from slide.sampling.faiss_index import FaissIndex
from slide.search.exact import exact_top_k


def draw(num_rows=70, width=5, num_queries=23, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(num_queries, width, dtype=dtype, generator=generator),
        torch.randn(num_rows, width, dtype=dtype, generator=generator),
        torch.randn(num_rows, dtype=dtype, generator=generator),
    )


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("k", [1, 6, 70])
@pytest.mark.parametrize(("rows", "queries"), [(16, 7), (70, 23), (1, 1), (4, 100), (69, 22)])
def test_exact_in_blocks(rows, queries, k, has_bias, monkeypatch):
    monkeypatch.setattr("slide.search.exact._ROW_BLOCK", rows)
    monkeypatch.setattr("slide.search.exact._QUERY_BLOCK", queries)
    x, weight, bias = draw()
    scores, ids = exact_top_k(x, weight, bias if has_bias else None, k)
    full = x @ weight.T + (bias if has_bias else 0)
    expected = full.topk(k)
    torch.testing.assert_close(scores, expected.values)
    assert torch.equal(ids, expected.indices)
    torch.testing.assert_close(full.gather(1, ids), scores)


def test_exact_in_the_blocks_that_are_used():
    x, weight, bias = draw(num_rows=40_000, width=2, num_queries=600, dtype=torch.float32)
    scores, ids = exact_top_k(x, weight, bias, 3)
    full = x @ weight.T + bias
    torch.testing.assert_close(scores, full.topk(3).values)
    torch.testing.assert_close(full.gather(1, ids), scores)


def test_no_queries():
    x, weight, bias = draw()
    scores, ids = exact_top_k(x[:0], weight, bias, 4)
    assert scores.shape == ids.shape == (0, 4)
    assert ids.dtype == torch.int64


@pytest.mark.parametrize("k", [0, 71])
def test_k_out_of_range(k):
    with pytest.raises(ValueError, match=rf"k must be in \[1, 70\], not {k}"):
        exact_top_k(*draw(), k)


class TestFaiss:
    @pytest.mark.parametrize("has_bias", [False, True])
    def test_flat_is_exact(self, has_bias):
        x, weight, bias = draw()
        index = FaissIndex("flat")
        index.build(weight, bias if has_bias else None)
        expected = exact_top_k(x, weight, bias if has_bias else None, 9)[1]
        np.testing.assert_array_equal(index.search(x, 9), expected)

    @pytest.mark.parametrize("kind", ["ivf", "hnsw"])
    def test_more_probes_find_more(self, kind):
        x, weight, bias = draw(num_rows=2_000, width=8, dtype=torch.float32)
        expected = exact_top_k(x, weight, bias, 10)[1].numpy()
        recall = []
        for probes in (1, 50):
            index = FaissIndex(kind, probes)
            index.build(weight, bias)
            pairs = zip(expected, index.search(x, 10), strict=True)
            recall.append(np.mean([np.isin(ids, found).mean() for ids, found in pairs]))
        assert recall[1] > 0.9
        assert recall[0] < recall[1]

    def test_says_when_there_are_no_more(self):
        x, weight, bias = draw(num_rows=3)
        index = FaissIndex("flat")
        index.build(weight, bias)
        found = index.search(x, 5)
        assert (found[:, 3:] == -1).all()
        assert (found[:, :3] >= 0).all()

    def test_build_replaces(self):
        x, weight, bias = draw()
        index = FaissIndex("flat")
        for w in (-weight, weight):
            index.build(w, bias)
        np.testing.assert_array_equal(index.search(x, 4), exact_top_k(x, weight, bias, 4)[1])

    @pytest.mark.parametrize("kind", FaissIndex.KINDS)
    def test_state_round_trip(self, kind):
        x, weight, bias = draw(num_rows=300)
        index, other = FaissIndex(kind, 2), FaissIndex(kind, 2)
        other.load_state_dict(index.state_dict())
        index.build(weight, bias)
        other.load_state_dict(index.state_dict())
        np.testing.assert_array_equal(other.search(x, 7), index.search(x, 7))
        other.load_state_dict({})
        with pytest.raises(RuntimeError, match="index is empty"):
            other.search(x, 7)

    def test_options_out_of_range(self):
        with pytest.raises(ValueError, match="kind must be one of"):
            FaissIndex("lsh")
        with pytest.raises(ValueError, match=r"probes must be .* at least 1"):
            FaissIndex("ivf", 0)
