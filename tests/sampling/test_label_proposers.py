"""The best of recent labels, against plain twins."""

import copy
import pickle

import numpy as np
import pytest
import torch
from helpers.layers import D, N, draw_layer, draw_queries, recall
from helpers.matrices import make_pattern, rows_of
from helpers.samplers import recent_sampler

from slide.backend import backend
from slide.nn import SampledLinear
from slide.sampling import ActiveSampler, RecentProposer
from slide.search import exact_top_k
from slide.sparse import Pattern


def draw_labels(seed, counts=(2, 1, 0, 3, 1)):
    return make_pattern(np.random.default_rng(seed), list(counts), N)


def naive_pool(batches, recent):
    """Distinct labels, the newest batch first, and within a batch in order."""
    pool = list(dict.fromkeys(i for batch in reversed(batches) for i in batch.indices.tolist()))
    return pool[:recent]


def naive_best(pool, own, query, weight, bias, best):
    """The best of the pool that are no label of the sample, by exact scores."""
    scores = {i: float(query.double() @ weight[i].double() + bias[i]) for i in pool if i not in own}
    return sorted(scores, key=lambda i: -scores[i])[:best]


def train(sampler, layer, steps):
    """Steps of training with labels that are drawn anew; all labels, and the last set."""
    batches, active = [], None
    for step in steps:
        batches.append(draw_labels(step))
        queries = draw_queries(5, seed=step)
        sampler.update(*layer, queries)
        active = sampler.select(queries, batches[-1])
    return batches, active


class TestCandidates:
    @pytest.mark.parametrize("has_bias", [True, False])
    @pytest.mark.parametrize(("recent", "best"), [(100, 4), (9, 4), (3, 1), (7, 50)])
    def test_are_the_best_of_recent_labels(self, recent, best, has_bias):
        weight, bias = draw_layer()
        sampler = recent_sampler(D, N, recent=recent, best=best, active=30, mode="per_sample")
        batches, _ = train(sampler, (weight, bias), range(4))
        proposer, queries, labels = sampler.proposer, draw_queries(5, 9), draw_labels(9)
        assert proposer.pool.tolist() == naive_pool(batches, recent)
        proposer.refresh(weight, bias if has_bias else None)
        found = proposer.look_up(queries, labels)
        pool, zeros = naive_pool([*batches, labels], recent), torch.zeros(N)
        added = bias if has_bias else zeros
        for own, query, ids in zip(rows_of(labels), queries, rows_of(found), strict=True):
            assert ids == naive_best(pool, own, query, weight, added, best)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
    def test_other_floats(self, dtype):
        weight, bias = (each.to(dtype) for each in draw_layer())
        proposer, labels = RecentProposer(D, N, best=3), draw_labels(0)
        proposer.rebuild(weight, bias)
        queries = draw_queries(5)
        found = proposer.look_up(queries, labels)
        for own, query, ids in zip(rows_of(labels), queries, rows_of(found), strict=True):
            wanted = naive_best(labels.indices.tolist(), own, query.to(dtype), weight, bias, 3)
            assert ids == wanted or dtype == torch.bfloat16
            assert len(ids) == len(wanted)
            assert not set(ids) & set(own)

    def test_scores_that_are_no_numbers(self):
        weight, bias = draw_layer()
        weight[7] = torch.nan
        proposer = RecentProposer(D, N)
        proposer.rebuild(weight, bias)
        found = proposer.look_up(draw_queries(2), Pattern.from_lists([[7, 8], [9]]))
        assert found.indptr.tolist() == [0, 1, 2]
        assert found.indices.tolist() == [9, 8]


class TestSets:
    def test_recall(self):
        """Where all good answers were labels a moment ago, the sets hold them."""
        layer, queries = draw_layer(), draw_queries(40)
        best = exact_top_k(queries, *layer, 5)[1].numpy().astype(np.int32)
        sampler = recent_sampler(D, N, active=24, mode="per_sample")
        labels = Pattern(np.arange(0, 201, 5), best.ravel())
        sampler.update(*layer, queries)
        sampler.select(queries, labels)
        assert recall(sampler.select(queries, None), best) > 0.99
        chance = ActiveSampler(D, N, active=24, mode="per_sample")
        assert recall(chance.select(queries, None), best) < 0.2

    @pytest.mark.parametrize("share", [0.25, 1.0])
    def test_fill_all_places_that_they_may_take(self, share):
        weight, bias = draw_layer()
        sampler = recent_sampler(D, N, active=17, mode="per_sample", candidate_share=share)
        batches, _ = train(sampler, (weight, bias), range(8))
        pool, queries = naive_pool([*batches, draw_labels(9)], 4096), draw_queries(5, 9)
        sampler.update(weight, bias, queries)
        active = sampler.select(queries, draw_labels(9))
        for b, count in enumerate((2, 1, 0, 3, 1)):
            own = active.row(b)[:count].tolist()
            places = min(int(share * (17 - count)), 16 - count)
            wanted = naive_best(pool, own, queries[b], weight, bias, places)
            assert active.row(b)[count : count + places].tolist() == wanted
            assert len(wanted) == places

    @pytest.mark.parametrize(("recent", "active"), [(100, 12), (100, 90), (6, 12)])
    def test_are_the_newest_labels_in_a_shared_set(self, recent, active):
        layer = draw_layer()
        options = {"recent": recent, "active": active, "candidate_share": 1.0}
        sampler = recent_sampler(D, N, **options)
        batches, _ = train(sampler, layer, range(30))
        sampler.update(*layer, draw_queries(1))
        pool = naive_pool(batches, recent)
        label = pool[2]
        ids = sampler.select(draw_queries(1), Pattern.from_lists([[label]])).ids.tolist()
        others = [i for i in pool if i != label]
        count = min(len(others), active - 2)  # One uniform draw stands for all that are not chosen.
        assert ids[: 1 + count] == [label, *others[:count]]
        assert len({*ids}) == active

    @pytest.mark.parametrize("way", ["kernels", "torch"])
    def test_of_a_group_have_the_best_for_its_first_samples(self, way):
        """The labels of all samples are remembered, of which only some look up."""
        weight, bias = draw_layer()
        options = {"mode": "grouped", "group_size": 2, "lookups": 1, "active": 16}
        sampler = recent_sampler(D, N, **options)
        with backend(way):
            batches, _ = train(sampler, (weight, bias), range(4))
            assert sampler.proposer.pool.tolist() == naive_pool(batches, 4096)
            queries, labels = draw_queries(5, 9), draw_labels(9)
            sampler.update(weight, bias, queries)
            active = sampler.select(queries, labels)
        order, bounds, ids, indptr = active.groups
        asking, rows = order[bounds[:-1]], rows_of(labels)
        given = Pattern.from_lists([rows[b] for b in asking])
        pool = naive_pool([*batches, given], 4096)
        for group, own in enumerate(np.split(ids, indptr[1:-1])):
            members = order[bounds[group] : bounds[group + 1]]
            known = {i for b in members for i in rows[b]}
            b = asking[group]
            best = naive_best(pool, rows[b], queries[b], weight, bias, 8)
            assert len(best) == 8
            new = [i for i in best if i not in known]
            assert set(own[: len(known)].tolist()) == known
            assert own[len(known) : len(known) + len(new)].tolist() == new

    def test_evaluation_is_not_remembered(self):
        sampler = recent_sampler(D, N, active=16, mode="per_sample")
        sampler.update(*draw_layer(), None)
        sampler.select(draw_queries(5), draw_labels(0))
        assert not len(sampler.proposer.pool)


class TestState:
    def test_copies_do_not_hold_the_weight(self):
        layer = SampledLinear(D, N, recent_sampler(D, N, active=16, mode="per_sample"))
        layer(draw_queries(5), draw_labels(0))
        for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert other.sampler.proposer._rows is None
            assert len(other.sampler.proposer.pool)
