"""FAISS against exact search."""

import numpy as np
import pytest
import torch

from slide.sampling import FaissProposer
from slide.sampling.faiss_proposer import KINDS
from slide.search import exact_top_k
from slide.sparse import CSR


def draw(num_rows=70, width=5, num_queries=23, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(num_queries, width, dtype=dtype, generator=generator),
        torch.randn(num_rows, width, dtype=dtype, generator=generator),
        torch.randn(num_rows, dtype=dtype, generator=generator),
    )


def make(kind, **options):
    """The numbers of inputs and outputs do not matter before there are sets."""
    return FaissProposer(1, 1, kind=kind, **options)


class TestFaiss:
    @pytest.mark.parametrize("has_bias", [False, True])
    def test_flat_is_exact(self, has_bias):
        x, weight, bias = draw()
        index = make("flat")
        index.rebuild(weight, bias if has_bias else None)
        expected = exact_top_k(x, weight, bias if has_bias else None, 9)[1]
        np.testing.assert_array_equal(index.search(x, 9), expected)

    @pytest.mark.parametrize("kind", ["ivf", "hnsw"])
    def test_more_probes_find_more(self, kind):
        x, weight, bias = draw(num_rows=2_000, width=8, dtype=torch.float32)
        expected = exact_top_k(x, weight, bias, 10)[1].numpy()
        recall = []
        for probes in (1, 50):
            index = make(kind, probes=probes)
            index.rebuild(weight, bias)
            pairs = zip(expected, index.search(x, 10), strict=True)
            recall.append(np.mean([np.isin(ids, found).mean() for ids, found in pairs]))
        assert recall[1] > 0.9
        assert recall[0] < recall[1]

    def test_says_when_there_are_no_more(self):
        x, weight, bias = draw(num_rows=3)
        index = make("flat")
        index.rebuild(weight, bias)
        found = index.search(x, 5)
        assert (found[:, 3:] == -1).all()
        assert (found[:, :3] >= 0).all()

    def test_build_replaces(self):
        x, weight, bias = draw()
        index = make("flat")
        for w in (-weight, weight):
            index.rebuild(w, bias)
        np.testing.assert_array_equal(index.search(x, 4), exact_top_k(x, weight, bias, 4)[1])

    @pytest.mark.parametrize("kind", KINDS)
    def test_state_round_trip(self, kind):
        x, weight, bias = draw(num_rows=300)
        index, other = make(kind, probes=2), make(kind, probes=2)
        other.load_state_dict(index.state_dict())
        index.rebuild(weight, bias)
        other.load_state_dict(index.state_dict())
        np.testing.assert_array_equal(other.search(x, 7), index.search(x, 7))
        other.load_state_dict({"rebuilds": 0})
        with pytest.raises(RuntimeError, match="index is empty"):
            other.search(x, 7)

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("kind", KINDS)
    def test_rows_that_are_not_finite_are_not_found(self, kind, bad):
        """A bias of -inf masks an output."""
        x, weight, bias = draw(num_rows=300, dtype=torch.float32)
        bias[7] = weight[20, 1] = bad
        index, known = make(kind, probes=300), [i for i in range(300) if i not in (7, 20)]
        index.rebuild(weight, bias)
        found, order = index.search(x, 300), exact_top_k(x, weight[known], bias[known], 5)[1]
        assert not np.isin(found, [7, 20]).any()
        np.testing.assert_array_equal(found[:, :5], np.array(known)[order])
        weight[:] = bad
        index.rebuild(weight, bias)
        assert (index.search(x, 3) == -1).all()

    def test_options_out_of_range(self):
        with pytest.raises(ValueError, match="kind must be one of"):
            make("lsh")
        with pytest.raises(ValueError, match=r"probes must be .* at least 1"):
            make("ivf", probes=0)

    def test_candidates_are_as_many_as_asked_for(self):
        x, weight, bias = draw(num_rows=3)
        proposer = FaissProposer(5, 70, kind="flat", neighbours=5)
        proposer.rebuild(weight, bias)
        found = proposer.candidates(x)
        assert found.indptr.tolist() == list(range(0, 3 * len(x) + 1, 3))
        expected = exact_top_k(x, weight, bias, 3)[1]
        assert found.indices.tolist() == expected.flatten().tolist()

    def test_sparse_inputs_are_refused(self):
        rows = CSR(np.zeros(2, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
        with pytest.raises(TypeError, match="FaissProposer takes dense inputs only"):
            make("flat").search(rows, 1)
