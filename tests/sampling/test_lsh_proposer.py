"""Hash tables as proposer: rehashing between rebuilds, new hash functions, candidates."""

from collections import Counter
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers.buckets import contents
from helpers.layers import FAMILIES, D, N, draw_layer, draw_queries, every_mode
from helpers.samplers import lsh_sampler

from slide.hashing.simhash import SimHash
from slide.sampling import drift, lsh_proposer
from slide.sampling.schedules import fixed, never
from slide.sparse import Pattern


class TestRehashing:
    """Rows that have been updated often are hashed again between rebuilds."""

    @pytest.fixture(autouse=True)
    def no_waiting(self, monkeypatch):
        monkeypatch.setattr(lsh_proposer, "REHASH_ROWS", 1)

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
            before = sampler.proposer.codes.copy()
            hashed = {i for i, times in chosen.items() if times >= 2}
            weight += torch.randn(N, D, generator=torch.Generator().manual_seed(step))
            sampler.update(weight, bias, queries)
            now = sampler.proposer.hash.row_codes(weight, bias)
            for i in range(N):
                expected = now if i in hashed else before
                np.testing.assert_array_equal(sampler.proposer.codes[:, i], expected[:, i])
            chosen = Counter({i: times for i, times in chosen.items() if i not in hashed})
        assert sampler.rebuilds == 1
        # The tables hold what the codes say: a build from these finds the same ids.
        found = sampler.candidates(queries)
        sampler.proposer.tables.build(sampler.proposer.codes)
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
        before = sampler.proposer.codes.copy()
        for _ in range(1 + N // 40):
            sampler.select(queries, None)
            sampler.update(-weight, bias, queries)
        assert not np.array_equal(sampler.proposer.codes, before)
        assert sampler.rebuilds == 1
        assert sum(map(len, sampler.proposer.moved)) < N / 2

    def test_state_of_another_limit(self):
        saved = self.make(after=2)
        run(saved, 0, 3)
        for after in (0, 1, 3):
            with pytest.raises(ValueError, match=f"rehash_after was 2 .* and is {after} here"):
                self.make(after=after).load_state_dict(saved.state_dict())

    def test_codes_are_not_kept_for_nothing(self, monkeypatch):
        """Only those of the rows that are looked at for changes."""
        monkeypatch.setattr(drift, "WATCHED", 9)
        sampler = self.make(after=0)
        run(sampler, 0, 3)
        assert sampler.proposer.codes.shape == (6, 9)
        assert sampler.proposer.updates.size == 0

    def test_evaluation_does_not_count(self):
        (weight, bias), queries = draw_layer(), draw_queries(6)
        sampler = self.make(after=1)
        for _ in range(2):
            sampler.update(weight, bias, None)
            sampler.select(queries, None)
        assert not sampler.proposer.updates.any()

    @every_mode
    def test_resumes(self, mode):
        sampler, other = self.make(mode), self.make(mode)
        run(sampler, 0, 3)
        other.load_state_dict(sampler.state_dict())
        for a, b in zip(run(other, 3, 7), run(sampler, 3, 7), strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(sampler.proposer.codes, other.proposer.codes)

    def test_resumes_between_later_rebuilds(self):
        """Rows that move into full buckets are drawn with the seed of the last rebuild."""
        (weight, bias), queries = draw_layer(), draw_queries(6)
        sampler, other = (self.make(after=1, bucket_capacity=2) for _ in range(2))
        for each in (weight, weight.roll(1, 0), weight.roll(2, 0)):
            sampler.forget_index()
            sampler.update(each, bias, queries)
        other.load_state_dict(sampler.state_dict())
        for one in (sampler, other):
            one.update(each, bias, queries)
            one.select(queries, None)
            one.update(-weight, bias, queries)
        assert sampler.rebuilds == other.rebuilds == 3
        assert contents(sampler.proposer.tables) == contents(other.proposer.tables)

    def test_a_forgotten_index_stays_forgotten(self):
        (weight, bias), queries = draw_layer(), draw_queries(6)
        sampler, other = self.make(), self.make()
        sampler.update(weight, bias, queries)
        sampler.forget_index()
        other.load_state_dict(sampler.state_dict())
        assert not other.holds_index
        sampler.update(weight, bias, queries)
        other.load_state_dict(sampler.state_dict())
        assert other.holds_index


def run(sampler, first, last):
    """Training steps as the sampler sees them; codes of some vectors and the set, at each one."""
    weight, bias = draw_layer()
    codes, chosen = [], []
    vectors = torch.sin(torch.arange(20.0 * (D + 2)) ** 2).view(20, D + 2)
    for i in range(first, last):
        inputs = draw_queries(10, seed=i)
        sampler.update(weight + 0.1 * i, bias, inputs)
        codes.append(sampler.proposer.hash.family.codes(vectors))
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
        codes, rows = (
            sampler.proposer.hash.query_codes(queries),
            sampler.proposer.hash.row_codes(*layer),
        )
        for b in range(3):
            votes = np.bincount(found.indices[found.indptr[b] : found.indptr[b + 1]], minlength=N)
            assert votes.tolist() == (codes[:, b : b + 1] == rows).sum(0).tolist()

    def test_are_all_outputs_where_all_are_active(self):
        found = lsh_sampler(D, N, active=N).candidates(draw_queries(3))
        assert found.indptr.tolist() == [0, N, 2 * N, 3 * N]
        assert found.indices.tolist() == 3 * list(range(N))


@every_mode
@pytest.mark.parametrize("change", [-100, 100])
def test_queries_in_no_bucket_are_refused(mode, change):
    """A family of one's own may give such codes, and kernels would read beyond the tables."""

    class Outside(SimHash):
        def codes(self, vectors):
            return super().codes(vectors) + np.int32(change if len(vectors) == 6 else 0)

    (weight, bias), queries = draw_layer(), draw_queries(6)
    sampler = lsh_sampler(D, N, active=40, mode=mode, family=partial(Outside, num_tables=6))
    sampler.update(weight, bias, queries)
    with pytest.raises(ValueError, match=r"codes must lie in \[0, "):
        sampler.select(queries, None)
