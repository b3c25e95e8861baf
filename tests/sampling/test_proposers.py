"""Samplers with an index: what they find, when they rebuild, proposers of a user."""

import copy
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from helpers.layers import FAMILIES, D, N, draw_layer, draw_queries, every_mode, recall
from helpers.matrices import make_csr, make_pattern, rows_of, to_dense
from helpers.samplers import (
    MODES,
    all_modes,
    faiss_sampler,
    lsh_sampler,
    published_sampler,
    recent_sampler,
    sketch_sampler,
    uniform_sampler,
)

from slide.backend import backend
from slide.nn import ActiveLoss, SampledLinear
from slide.optim import RowSparseAdam
from slide.sampling import (
    ActiveSampler,
    FaissProposer,
    LSHProposer,
    Proposer,
    PublishedLSHProposer,
    RecentProposer,
    SketchProposer,
)
from slide.sampling.schedules import backoff, fixed, never
from slide.search.exact import exact_top_k
from slide.sparse import Pattern


@pytest.mark.parametrize("family", FAMILIES)
@every_mode
def test_recall_of_hash_tables(mode, family):
    layer, queries = draw_layer(), draw_queries(10 if mode == "per_sample" else 1)
    wanted = exact_top_k(queries, *layer, 10)[1].numpy()
    options = {"family": FAMILIES[family], "active": 40, "mode": mode}
    found = []
    for seed in range(10 if mode == "shared" else 1):
        sampler = lsh_sampler(D, N, candidate_share=1.0, seed=seed, **options)
        sampler.update(*layer, None)
        found.append(recall(sampler.select(queries, None), wanted))
    # A random set of this size would hold 0.1 of them.
    assert np.mean(found) > 0.35


class TestRebuilds:
    @pytest.mark.parametrize(
        ("schedule", "expected"),
        [
            (never, [1] * 9),
            (partial(fixed, every=100), [1, 1, 1, 1, 2, 2, 2, 3, 3]),
            pytest.param(partial(fixed, every=7), [*range(1, 10)], marks=pytest.mark.not_as_python),
        ],
    )
    def test_happen_when_due_and_only_then(self, schedule, expected):
        sampler = published_sampler(D, N, active=50, rebuild=schedule)
        layer, rebuilds = draw_layer(), []
        for _ in range(9):
            # Nothing is trained on in between, so nothing is due.
            sampler.update(*layer, draw_queries(30))
            rebuilds.append(sampler.rebuilds)
        assert rebuilds == expected
        sampler.update(*layer, None)
        sampler.update(*layer, None)
        assert sampler.rebuilds <= expected[-1] + 1
        assert sampler.rebuild_seconds > 0

    def test_take_transposed_weights(self):
        weight, bias = draw_layer()
        options = {"active": 50, "family": FAMILIES["dwta"]}
        usual, strided = (published_sampler(D, N, **options) for _ in range(2))
        usual.update(weight, bias, None)
        strided.update(weight.T.contiguous().T, bias, None)
        for name, array in usual.proposer.tables.state_dict().items():
            np.testing.assert_array_equal(array, strided.proposer.tables.state_dict()[name])
        assert array.any()

    def test_reservoirs_are_drawn_anew(self):
        options = {"bucket_capacity": 4, "bucket_policy": "reservoir", "hashes_per_table": 1}
        sampler = published_sampler(D, N, active=50, rebuild=partial(fixed, every=1), **options)
        pools = []
        for _ in range(2):
            sampler.update(*draw_layer(), draw_queries(5))
            pools.append(sampler.proposer.tables.state_dict()["pool"])
        assert not np.array_equal(*pools)


def test_sparse_and_dense_inputs_get_the_same_sets():
    x = make_csr(np.random.default_rng(0), [5, 0, 16], D)
    dense = to_dense(x, D)
    labels = make_pattern(np.random.default_rng(0), [2, 1, 0], N)
    for mode in MODES:
        chosen = []
        for queries in (x, dense):
            sampler = published_sampler(D, N, family=FAMILIES["simhash"], active=30, mode=mode)
            sampler.update(*draw_layer(), None)
            chosen.append(sampler.select(queries, labels).ids)
        np.testing.assert_array_equal(*chosen)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(lsh_sampler, candidate_share=1.5), "candidate_share must be in"),
        (partial(lsh_sampler, rebuild=partial(fixed, every=-1)), "every must be"),
        (partial(published_sampler, redraw=partial(backoff, first=0)), "first must be"),
        (partial(published_sampler, bucket_capacity=0), "bucket_capacity must be .* 1, not 0"),
        (partial(published_sampler, fill=-1), "fill must be a whole number of at least 0, not -1"),
        (partial(sketch_sampler, best=0), "best must be a whole number of at least 1, not 0"),
        (partial(faiss_sampler, best=0), "best must be a whole number of at least 1, not 0"),
        (partial(recent_sampler, recent=0), "recent must be a whole number of at least 1, not 0"),
        (partial(lsh_sampler, best=0), "best must be a whole number of at least 1, not 0"),
        (partial(lsh_sampler, num_tables=0), r"num_tables must be in \[1, 1024\], not 0"),
        (partial(lsh_sampler, hashes_per_table=0), "hashes_per_table must be .* at least 1, not 0"),
        (partial(lsh_sampler, hashes_per_table=32), "codes have at most 31"),
        (partial(lsh_sampler, probes=65), r"probes must be in \[0, 64\]"),
        (partial(uniform_sampler, group_size=0), "group_size must be a whole number of at least 1"),
        (partial(uniform_sampler, lookups=-1), "lookups must be a whole number of at least 0"),
        (lambda *_: uniform_sampler(4, 2**31), r"out_features must .* 2147483647"),
        (lambda *_: uniform_sampler(D, 0), "out_features must be a whole number of at least 1"),
        (partial(uniform_sampler, active=0), "active must be a whole number of at least 1, not 0"),
        (partial(uniform_sampler, mode="both"), "mode must be one of"),
        (partial(uniform_sampler, weighting="uniform"), "weighting must be one of"),
    ],
)
def test_options_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make(D, N)


def test_schedules_that_are_no_functions():
    message = r"rebuild must be a function .* such as slide.sampling.fixed, not 1000"
    with pytest.raises(TypeError, match=message):
        published_sampler(D, N, rebuild=1000)
    with pytest.raises(TypeError, match=r"redraw must give the number .* due, not 'fixed'"):
        published_sampler(D, N, redraw=lambda samples: "fixed")


@pytest.mark.parametrize("kind", [SketchProposer, FaissProposer, RecentProposer, LSHProposer])
def test_dense_inputs_only(kind):
    rows = make_csr(np.random.default_rng(0), [3], D)
    with pytest.raises(TypeError, match=f"{kind.__name__} takes dense inputs only"):
        kind(D, N).look_up(rows, Pattern.from_lists([[1]]))


def test_samplers_without_an_index_for_prediction():
    layer = SampledLinear(D, N, ActiveSampler(D, N, RecentProposer, active=16))
    with pytest.raises(ValueError, match="needs a sampler with an index"):
        layer.top_k(draw_queries(2), 3, search="sampler")
    with pytest.raises(ValueError, match="ActiveSampler has no index"):
        ActiveSampler(D, N, active=3).candidates(draw_queries(1))


class Largest(Proposer):
    """The k rows with the largest products, twice where the product is below 2."""

    def __init__(self, in_features, out_features, seed, k=3):
        super().__init__(in_features, out_features, seed=seed)
        self.k = k

    def rebuild(self, weight, bias):
        self.weight, self.bias = weight.clone(), bias

    def candidates(self, queries):
        scores, ids = exact_top_k(queries, self.weight, self.bias, self.k)
        pairs = zip(scores.tolist(), ids.tolist(), strict=True)
        return Pattern.from_lists(
            [own + [i for s, i in zip(values, own, strict=True) if s < 2] for values, own in pairs]
        )


def nobody(num_samples):
    """Samples without labels."""
    return Pattern(np.zeros(num_samples + 1, np.int64), np.empty(0, np.int32))


class TestOwnProposer:
    """What a proposer has that defines no more than `rebuild` and `candidates`."""

    def naive(self, found, places):
        """Candidates of one row: those with the most votes, of equal ones the first."""
        votes = Counter(found)
        order = sorted(votes, key=lambda i: (-votes[i], found.index(i)))
        return order[:places]

    def test_proposals_of_each_sample(self):
        proposer, queries = Largest(D, N, 0, k=6), draw_queries(5)
        proposer.rebuild(*draw_layer())
        found, places = proposer.candidates(queries), np.array([3, 0, 10, 1, 6])
        ranked = proposer.propose(queries, nobody(5), places, np.uint64(0))
        for b in range(5):
            expected = self.naive(rows_of(found)[b], places[b])
            assert ranked.ids[b, : ranked.counts[b]].tolist() == expected

    @pytest.mark.parametrize("places", [1, 4, 100])
    def test_proposals_of_a_batch(self, places):
        proposer, queries = Largest(D, N, 0, k=6), draw_queries(5)
        proposer.rebuild(*draw_layer())
        found = proposer.candidates(queries)
        rows = rows_of(found)
        in_turn = [row[i] for i in range(max(map(len, rows))) for row in rows if i < len(row)]
        ids = proposer.propose_shared(queries, nobody(5), places, np.uint64(0))
        assert ids.dtype == np.int32
        assert ids.tolist() == self.naive(in_turn, places)

    def test_must_define_the_two(self):
        sampler = ActiveSampler(D, N, Proposer, active=3)
        with pytest.raises(NotImplementedError, match="Proposer must define rebuild"):
            sampler.update(*draw_layer(), None)
        with pytest.raises(NotImplementedError, match="Proposer must define candidates"):
            sampler.candidates(draw_queries(1))

    @pytest.mark.parametrize("name", ["rebuild", "candidates"])
    def test_after_its_error_a_layer_goes_on(self, name, monkeypatch):
        layer = SampledLinear(D, N, ActiveSampler(D, N, Largest, active=20))
        optimizer = RowSparseAdam(layer.parameters())

        def fails(*_):
            raise OverflowError("mine")

        with monkeypatch.context() as patch:
            patch.setattr(Largest, name, fails)
            with pytest.raises(OverflowError, match="mine"):
                layer.loss(draw_queries(2), [[1], [2]], "bce")
        layer.loss(draw_queries(2), [[1], [2]], "bce")[0].backward()
        before = layer.weight.detach().clone()
        optimizer.step()
        assert not torch.equal(layer.weight, before)

    def test_is_saved_before_its_first_rebuild_and_after(self):
        """It may have nothing to save before; later its errors are its own."""

        class Kept(Largest):
            def state_dict(self):
                return {"weight": self.weight.numpy()}

            def load_state_dict(self, state):
                self.weight, self.bias = torch.from_numpy(state["weight"]), None

        def make():
            return SampledLinear(D, N, ActiveSampler(D, N, Kept, active=20), bias=False)

        layer, x = make(), draw_queries(2)
        for _ in range(2):
            other, copied = make(), copy.deepcopy(layer)
            other.load_state_dict(layer.state_dict())
            sets = [each(x).active.ids.tolist() for each in (layer, other, copied)]
            assert sets == [sets[0]] * 3
        del layer.sampler.proposer.weight
        with pytest.raises(AttributeError, match="weight"):
            layer.state_dict()

    @all_modes
    def test_ids_out_of_range(self, mode):
        class Wrong(Largest):
            def candidates(self, queries):
                return Pattern.from_lists([[N]] * len(queries))

        layer = SampledLinear(D, N, ActiveSampler(D, N, Wrong, active=20, mode=mode))
        message = rf"candidates must lie in \[0, {N}\), and row 0 has {N}"
        with pytest.raises(ValueError, match=message):
            layer(draw_queries(2))
        with pytest.raises(ValueError, match=message):
            layer.top_k(draw_queries(2), 3, search="sampler")


EVERY = {
    "lsh": LSHProposer,
    "lsh by dwta": partial(LSHProposer, family=FAMILIES["dwta"], num_tables=3, probes=1),
    "sketch": SketchProposer,
    "faiss": partial(FaissProposer, factory="Flat"),
    "recent": RecentProposer,
    "published": partial(
        PublishedLSHProposer, family=FAMILIES["simhash"], hashes_per_table=3, num_tables=30, fill=20
    ),
    "own": Largest,
}


@all_modes
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.usefixtures("one_thread")
class TestEveryProposerInEveryMode:
    def make(self, name, mode, outputs=N, **options):
        shape = {"active": 24, "mode": mode, "group_size": 4, "lookups": 2}
        return ActiveSampler(D, outputs, EVERY[name], **(shape | options))

    @pytest.mark.not_as_python
    def test_learns(self, name, mode):
        """Inputs lie near one of 100 centres, and their label is its number."""
        generator = torch.Generator().manual_seed(5)
        centres = torch.randn(100, D, generator=generator)
        layer = SampledLinear(D, 100, self.make(name, mode, outputs=100))
        optimizer, loss = RowSparseAdam(layer.parameters(), lr=0.05), ActiveLoss("softmax")
        for _ in range(60):
            labels = torch.randint(100, (32,), generator=generator)
            x = centres[labels] + 0.2 * torch.randn(32, D, generator=generator)
            value, active = layer.loss(x, labels[:, None].tolist(), loss)
            assert active.label_ids().tolist() == labels.tolist()
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
        found = layer.top_k(centres, 1)[1][:, 0]
        assert (found == torch.arange(100)).float().mean() > 0.8

    def test_candidates_are_in_the_sets(self, name, mode):
        """Of the outputs with the largest scores, sets hold far more than by chance."""
        weight, bias = draw_layer()
        queries, sampler = draw_queries(24), self.make(name, mode, active=60)
        best = exact_top_k(queries, weight, bias, 3)[1].numpy().astype(np.int32)
        sampler.update(weight, bias, queries)
        sampler.select(queries, Pattern(np.arange(0, 73, 3), best.ravel()))  # What was a label.
        sampler.update(weight, bias, queries)
        found = recall(sampler.select(queries, None), best)
        # In a set for all 24 samples there is room for 30 candidates; and half of those of a group
        # look up nothing.
        least = {"per_sample": 0.7, "grouped": 0.4, "shared": 0.25}[mode]
        assert found > least, "60 of 400 outputs would hold 0.15 of them by chance"

    def test_copies_choose_the_same_sets(self, name, mode):
        sampler, queries = self.make(name, mode), draw_queries(9)
        labels = make_pattern(np.random.default_rng(0), [2, 0, 1, 1, 3, 0, 2, 1, 1], N)
        for _ in range(3):
            sampler.update(*draw_layer(), queries)
            sampler.select(queries, labels)
        loaded = self.make(name, mode)
        loaded.load_state_dict(copy.deepcopy(sampler.state_dict()))
        found = []
        for each in (sampler, copy.deepcopy(sampler), loaded):
            each.update(*draw_layer(), queries)
            found.append(each.select(queries, labels))
        for other in found[1:]:
            np.testing.assert_array_equal(other.ids, found[0].ids)
            np.testing.assert_array_equal(other.log_weights, found[0].log_weights)

    def test_no_place_for_candidates(self, name, mode):
        """Where candidates take no share of a set, there are uniform draws alone."""
        sampler, queries = self.make(name, mode, candidate_share=0.0), draw_queries(6)
        labels = Pattern.from_lists([[b] for b in range(6)])
        sampler.update(*draw_layer(), queries)
        active = sampler.select(queries, labels)
        for b in range(6):
            own = slice(None) if active.shared else slice(*active.indptr[b : b + 2])
            known = active.ids[own][active.log_weights[own] == 0]
            assert set(known.tolist()) <= set(range(6)), "labels alone"
            assert b in known
        assert sampler.statistics()["selection/candidates"] == 0

    @pytest.mark.parametrize("way", ["kernels", "torch"])
    def test_no_samples(self, name, mode, way):
        with backend(way):
            sampler = self.make(name, mode)
            sampler.update(*draw_layer(), draw_queries(5))
            sampler.select(draw_queries(5), None)
            sampler.update(*draw_layer(), draw_queries(0))
            active = sampler.select(draw_queries(0), Pattern.from_lists([]))
        assert len(active.ids) == (24 if mode == "shared" else 0)
        if sampler.has_index:
            assert sampler.candidates(draw_queries(0)).num_rows == 0
