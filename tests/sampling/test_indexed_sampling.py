"""Samplers with an index: what they find, and when they rebuild."""

from collections import Counter
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr, make_pattern
from helpers.samplers import faiss_sampler, lsh_sampler

from slide.hashing.dwta import DWTA
from slide.hashing.simhash import SimHash
from slide.sampling import IndexedSampler, indexed_sampling
from slide.sampling.schedules import backoff, fixed, never
from slide.search.exact import exact_top_k
from slide.sparse import Pattern

D, N = 16, 400
MODES = ["per_sample", "shared"]
FAMILIES = {
    "simhash": partial(SimHash, hashes_per_table=4, num_tables=40),
    "dwta": partial(DWTA, hashes_per_table=2, num_tables=40, bin_size=4),
}

every_mode = pytest.mark.parametrize("mode", MODES)


def draw_layer(seed=0):
    """Weight with rows of different lengths, and bias."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(N, D, generator=generator)
    weight *= torch.exp(0.2 * torch.randn(N, 1, generator=generator))
    return weight, 0.5 * torch.randn(N, generator=generator)


def draw_queries(num_samples, seed=1):
    return torch.randn(num_samples, D, generator=torch.Generator().manual_seed(seed))


def recall(active, wanted):
    """Share of each sample's ``wanted`` ids ``(B, k)`` that are in its set, on average."""
    return np.mean([np.isin(ids, active.row(b)).mean() for b, ids in enumerate(wanted)])


class TestRecall:
    @pytest.mark.parametrize("norm", ["cosine", "simple_lsh"])
    @pytest.mark.parametrize("family", FAMILIES)
    @every_mode
    def test_of_hash_tables(self, mode, family, norm):
        layer, queries = draw_layer(), draw_queries(10 if mode == "per_sample" else 1)
        wanted = exact_top_k(queries, *layer, 10)[1].numpy()
        options = {"family": FAMILIES[family], "active": 40, "mode": mode, "norm": norm}
        found = []
        for seed in range(10 if mode == "shared" else 1):
            sampler = lsh_sampler(D, N, candidate_share=1.0, seed=seed, **options)
            sampler.update(*layer, None)
            found.append(recall(sampler.select(queries, None), wanted))
        # A random set of this size would hold 0.1 of them.
        assert np.mean(found) > 0.35

    @every_mode
    def test_of_an_exact_index(self, mode):
        layer, queries = draw_layer(), draw_queries(6 if mode == "per_sample" else 1)
        sampler = faiss_sampler(D, N, kind="flat", active=40, mode=mode, neighbours=64)
        sampler.update(*layer, None)
        wanted = exact_top_k(queries, *layer, 20)[1].numpy()
        active = sampler.select(queries, None)
        for b, ids in enumerate(wanted):
            assert set(active.row(b)[:20].tolist()) == set(ids.tolist())

    @pytest.mark.parametrize("kind", ["ivf", "hnsw"])
    def test_of_approximate_indices(self, kind):
        layer, queries = draw_layer(), draw_queries(10)
        sampler = faiss_sampler(D, N, kind=kind, active=40, mode="per_sample", probes=8)
        sampler.update(*layer, None)
        wanted = exact_top_k(queries, *layer, 10)[1].numpy()
        assert recall(sampler.select(queries, None), wanted) > 0.6

    def test_ids_that_many_samples_ask_for_come_first(self):
        weight = torch.zeros(N, D)
        weight[7] = 1
        weight[[30, 31], [0, 1]] = 8
        sampler = faiss_sampler(D, N, kind="flat", active=4, candidate_share=0.25, neighbours=2)
        sampler.update(weight, None, None)
        queries = torch.zeros(2, D)
        queries[[0, 1], [0, 1]] = 1
        assert sampler.select(queries, None).ids[0] == 7

    def test_no_promising_ids(self):
        sampler = lsh_sampler(D, N, active=20, candidate_share=0.0)
        sampler.update(*draw_layer(), None)
        active = sampler.select(draw_queries(3), None)
        assert (active.log_weights > 0).all()


class TestRebuilds:
    @pytest.mark.parametrize(
        ("schedule", "expected"),
        [
            (never, [1] * 9),
            (partial(fixed, every=100), [1, 1, 1, 1, 2, 2, 2, 3, 3]),
            (partial(fixed, every=30), [1, 2, 3, 4, 5, 6, 7, 8, 9]),
            (partial(fixed, every=7), [1, 2, 3, 4, 5, 6, 7, 8, 9]),
            (partial(backoff, first=60, growth=0.7), [1, 1, 2, 2, 2, 2, 2, 3, 3]),
        ],
    )
    def test_happen_when_due_and_only_then(self, schedule, expected):
        sampler = lsh_sampler(D, N, active=50, rebuild=schedule)
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

    def test_evaluation_does_not_count(self):
        sampler = lsh_sampler(D, N, active=50, rebuild=partial(fixed, every=10))
        for _ in range(5):
            sampler.update(*draw_layer(), None)
        assert (sampler.rebuilds, sampler.samples) == (1, 0)

    def test_nothing_to_rebuild_where_all_outputs_are_active(self):
        sampler = lsh_sampler(D, N, active=N, rebuild=partial(fixed, every=1))
        for _ in range(3):
            sampler.update(*draw_layer(), draw_queries(5))
        assert sampler.rebuilds == 0

    @pytest.mark.parametrize("kind", ["hash", "faiss"])
    def test_follow_the_weights(self, kind):
        made = faiss_sampler if kind == "faiss" else partial(lsh_sampler, family=FAMILIES["simhash"])
        sampler = made(
            D, N, active=40, mode="per_sample", candidate_share=1.0, rebuild=partial(fixed, every=10)
        )
        queries = draw_queries(8)
        before, after = draw_layer(0), draw_layer(1)
        wanted = exact_top_k(queries, *after, 10)[1].numpy()
        sampler.update(*before, draw_queries(5))
        sampler.update(*after, draw_queries(5))
        assert recall(sampler.select(queries, None), wanted) < 0.3
        sampler.update(*after, draw_queries(5))
        assert recall(sampler.select(queries, None), wanted) > 0.4

    def test_do_not_touch_the_weights(self):
        weight, bias = draw_layer()
        copies = weight.clone(), bias.clone()
        lsh_sampler(D, N, active=50).update(weight.requires_grad_(), bias, draw_queries(5))
        assert torch.equal(weight, copies[0])
        assert torch.equal(bias, copies[1])

    def test_take_transposed_weights(self):
        weight, bias = draw_layer()
        plain, strided = (lsh_sampler(D, N, active=50, family=FAMILIES["dwta"]) for _ in range(2))
        plain.update(weight, bias, None)
        strided.update(weight.T.contiguous().T, bias, None)
        for name, array in plain.tables.state_dict().items():
            np.testing.assert_array_equal(array, strided.tables.state_dict()[name])

    def test_reservoirs_are_drawn_anew(self):
        sampler = lsh_sampler(D, N, active=50, bucket_capacity=4, rebuild=partial(fixed, every=1))
        pools = []
        for _ in range(2):
            sampler.update(*draw_layer(), draw_queries(5))
            pools.append(sampler.tables.state_dict()["pool"])
        assert not np.array_equal(*pools)


class TestRehashing:
    """Rows that have been updated often are hashed again between rebuilds."""

    @pytest.fixture(autouse=True)
    def no_waiting(self, monkeypatch):
        monkeypatch.setattr(indexed_sampling, "REHASH_ROWS", 1)

    def make(self, mode="shared", after=2, **options):
        family = partial(SimHash, hashes_per_table=4, num_tables=6)
        return lsh_sampler(
            *(D, N),
            active=40,
            mode=mode,
            family=family,
            rehash_after=after,
            rebuild=never,
            **options,
        )

    @every_mode
    def test_of_the_rows_that_were_chosen(self, mode):
        (weight, bias), queries = draw_layer(), draw_queries(6)
        sampler = self.make(mode)
        sampler.update(weight, bias, queries)
        chosen = Counter()
        for step in range(3):
            chosen.update(sampler.select(queries, None).ids.tolist())
            before = sampler.codes.copy()
            hashed = {i for i, times in chosen.items() if times >= 2}
            weight += torch.randn(N, D, generator=torch.Generator().manual_seed(step))
            sampler.update(weight, bias, queries)
            now = sampler.hash.row_codes(weight, bias)
            for i in range(N):
                expected = now if i in hashed else before
                np.testing.assert_array_equal(sampler.codes[:, i], expected[:, i])
            chosen = Counter({i: times for i, times in chosen.items() if i not in hashed})
        assert sampler.rebuilds == 1
        # The tables hold what the codes say: a build from these finds the same ids.
        found = sampler.candidates(queries)
        sampler.tables.build(sampler.codes)
        assert sorted(found.indices) == sorted(sampler.candidates(queries).indices)

    def test_finds_rows_where_they_went(self):
        (weight, bias), queries = draw_layer(), draw_queries(20)
        for after, least, most in ((0, 0.0, 0.2), (1, 0.6, 1.0)):
            sampler = self.make(after=after, candidate_share=1.0)
            sampler.update(weight, bias, queries)
            labels = Pattern(np.array([0, *[10] * 20]), np.arange(10, dtype=np.int32))
            sampler.select(queries, labels)
            moved = weight.clone()
            moved[:10] = 3 * queries[0]
            sampler.update(moved, bias, queries)
            found = sampler.candidates(queries[:1]).indices
            assert least <= np.mean([(found == i).sum() / 6 for i in range(10)]) <= most

    def test_small_layers_do_not_wait_for_many_rows(self, monkeypatch):
        monkeypatch.undo()
        (weight, bias), queries = draw_layer(), draw_queries(6)
        sampler = self.make(after=1)
        sampler.update(weight, bias, queries)
        before = sampler.codes.copy()
        for _ in range(1 + N // 40):
            sampler.select(queries, None)
            sampler.update(-weight, bias, queries)
        assert not np.array_equal(sampler.codes, before)
        assert sampler.rebuilds == 1
        assert sum(map(len, sampler.moved)) < N / 2

    def test_state_of_another_limit(self):
        saved = self.make(after=2)
        run(saved, 0, 3)
        for after in (0, 1, 3):
            with pytest.raises(ValueError, match=f"rehash_after was 2 .* and is {after} here"):
                self.make(after=after).load_state_dict(saved.state_dict())

    def test_codes_are_not_kept_for_nothing(self):
        sampler = self.make(after=0)
        run(sampler, 0, 3)
        assert sampler.codes.size == sampler.updates.size == 0

    def test_evaluation_does_not_count(self):
        (weight, bias), queries = draw_layer(), draw_queries(6)
        sampler = self.make(after=1)
        for _ in range(2):
            sampler.update(weight, bias, None)
            sampler.select(queries, None)
        assert not sampler.updates.any()

    @every_mode
    def test_resumes(self, mode):
        sampler, other = self.make(mode), self.make(mode)
        run(sampler, 0, 3)
        other.load_state_dict(sampler.state_dict())
        for a, b in zip(run(other, 3, 7), run(sampler, 3, 7), strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(sampler.codes, other.codes)


def run(sampler, first, last):
    """Training steps as the sampler sees them; codes of some vectors and the set, at each one."""
    weight, bias = draw_layer()
    codes, chosen = [], []
    vectors = torch.sin(torch.arange(20.0 * (D + 2)) ** 2).view(20, D + 2)
    for i in range(first, last):
        inputs = draw_queries(10, seed=i)
        sampler.update(weight + 0.1 * i, bias, inputs)
        codes.append(sampler.hash.family.codes(vectors))
        chosen.append(sampler.select(inputs, None).ids)
    return np.array(codes), np.array(chosen)


@pytest.mark.parametrize("family", FAMILIES)
class TestRedraw:
    def make(self, family, seed=0):
        return lsh_sampler(
            D,
            N,
            active=50,
            family=partial(FAMILIES[family], num_tables=5),
            rebuild=partial(fixed, every=10),
            redraw=partial(fixed, every=30),
            seed=seed,
        )

    def test_comes_when_due(self, family):
        codes, _ = run(self.make(family), 0, 7)
        changed = [(a != b).any() for a, b in pairwise(codes)]
        assert changed == [False, False, True, False, False, True]

    def test_is_reproducible(self, family):
        one, two, other = (run(self.make(family, s), 0, 5)[0] for s in (3, 3, 4))
        np.testing.assert_array_equal(one, two)
        assert (one != other).any((1, 2)).all()

    @pytest.mark.parametrize("already", [0, 5, 9])
    def test_resumes(self, family, already):
        """Into a new sampler, or one that has been used."""
        for stop in (2, 5):
            sampler, other = self.make(family), self.make(family)
            run(sampler, 0, stop)
            run(other, 0, already)
            other.load_state_dict(sampler.state_dict())
            for a, b in zip(run(other, stop, 9), run(sampler, stop, 9), strict=True):
                np.testing.assert_array_equal(a, b)
            assert other.rebuilds == sampler.rebuilds


class TestCandidates:
    def test_are_the_ids_in_the_buckets(self):
        sampler = lsh_sampler(D, N, active=50, family=FAMILIES["simhash"], bucket_capacity=N)
        layer, queries = draw_layer(), draw_queries(3)
        sampler.update(*layer, None)
        found = sampler.candidates(queries)
        codes, rows = sampler.hash.query_codes(queries), sampler.hash.row_codes(*layer)
        for b in range(3):
            votes = np.bincount(found.indices[found.indptr[b] : found.indptr[b + 1]], minlength=N)
            assert votes.tolist() == (codes[:, b : b + 1] == rows).sum(0).tolist()

    def test_are_all_outputs_where_all_are_active(self):
        found = lsh_sampler(D, N, active=N).candidates(draw_queries(3))
        assert found.indptr.tolist() == [0, N, 2 * N, 3 * N]
        assert found.indices.tolist() == 3 * list(range(N))


def test_sparse_and_dense_inputs_get_the_same_sets():
    x = make_csr(np.random.default_rng(0), [5, 0, 16], D)
    dense = torch.zeros(3, D)
    for b in range(3):
        at = slice(x.indptr[b], x.indptr[b + 1])
        dense[b, x.indices[at].astype(np.int64)] = torch.from_numpy(x.values[at])
    labels = make_pattern(np.random.default_rng(0), [2, 1, 0], N)
    for mode in MODES:
        chosen = []
        for queries in (x, dense):
            sampler = lsh_sampler(D, N, family=FAMILIES["simhash"], active=30, mode=mode)
            sampler.update(*draw_layer(), None)
            chosen.append(sampler.select(queries, labels).ids)
        np.testing.assert_array_equal(*chosen)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (partial(lsh_sampler, candidate_share=1.5), "candidate_share must be in"),
        (partial(lsh_sampler, rebuild=partial(fixed, every=-1)), "every must be"),
        (partial(lsh_sampler, redraw=partial(backoff, first=0)), "first must be"),
        (partial(lsh_sampler, bucket_capacity=0), "bucket_capacity must be"),
        (partial(lsh_sampler, norm="l1"), "norm must be"),
        (partial(faiss_sampler, kind="lsh"), "kind must be"),
        (partial(faiss_sampler, probes=0), "probes must be"),
        (partial(faiss_sampler, neighbours=0), "neighbours must be"),
    ],
)
def test_options_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make(D, N)


def test_an_index_is_needed():
    with pytest.raises(TypeError, match="IndexedSampler has no index"):
        IndexedSampler(D, N, active=3).update(*draw_layer(), 1)
