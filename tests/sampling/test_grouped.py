"""Sets that groups of similar samples share: against naive rules, and beside the other modes."""

import copy
import math
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from helpers.inner_products import COMPILED
from helpers.matrices import chi_square_p, make_csr, make_pattern, rows_of

from slide.active_set import check_active
from slide.backend import backend
from slide.hashing import SimHash
from slide.sampling import (
    ActiveSampler,
    Proposer,
    PublishedLSHProposer,
    RecentProposer,
    SketchProposer,
)
from slide.sparse import CSR, Pattern

pytestmark = pytest.mark.usefixtures("one_thread")
D, N, ACTIVE = 6, 400, 24


class Asked(Proposer):
    """Seven candidates by the first coordinate of an input; it keeps the inputs of look-ups."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.asked = []

    def rebuild(self, weight, bias):
        pass

    def candidates(self, queries):
        self.asked.append(queries)
        return Pattern.from_lists([naive_candidates(x) for x in queries])


def naive_candidates(x):
    return [int(1000 * abs(float(x[0])) + 31 * i) % N for i in range(7)]


def grouped(proposer=None, **options):
    return ActiveSampler(D, N, proposer, **({"active": ACTIVE, "mode": "grouped"} | options))


def draw(count, seed=0):
    return torch.randn(count, D, generator=torch.Generator().manual_seed(seed))


def draw_labels(count, seed=0):
    """No label to four labels of each sample, of few, so that samples have some in common."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, 5, count)
    return make_pattern(rng, lengths.tolist(), 30)


def groups_of(active):
    """The samples and the set of each group, as lists."""
    order, bounds, ids, indptr = active.groups
    parts = np.split(order, bounds[1:-1]), np.split(ids, indptr[1:-1])
    return [(samples.tolist(), own.tolist()) for samples, own in zip(*parts, strict=True)]


def update(sampler, queries, train=True):
    weight = torch.zeros(sampler.out_features, D)
    sampler.update(weight, None, queries if train else None)


def naive_known(samples, labels, queries, lookups, share):
    """Labels of a group in the order of its samples, then what its first samples find."""
    rows = rows_of(labels)
    known = [i for b in samples for i in rows[b]]
    limit = N if share is None else math.ceil(share * ACTIVE / max(lookups, 1))
    found = [naive_candidates(queries[b])[:limit] for b in samples[:lookups]]
    whole = list(dict.fromkeys(known + [i for own in found for i in own]))
    return len(set(known)), sum(map(len, found)), whole


@pytest.mark.parametrize("way", ["kernels", "torch"])
@pytest.mark.parametrize(
    ("count", "group_size", "lookups", "share"),
    [
        (16, 4, 2, 0.5),
        (10, 4, 2, 0.5),  # The last group is smaller.
        (9, 4, 3, None),  # Fewer samples than may look up in the last group.
        (3, 16, 4, 1.0),
        (1, 16, 4, 0.5),
        (7, 1, 1, 0.5),
        (8, 2, 5, 0.1),
        (12, 5, 0, 0.5),
    ],
)
def test_sets_by_naive_rules(count, group_size, lookups, share, way):
    options = {"group_size": group_size, "lookups": lookups, "candidate_share": share}
    sampler, labels, queries = grouped(Asked, **options), draw_labels(count), draw(count)
    update(sampler, queries)
    with backend(way):
        active = sampler.select(queries, labels)
    check_active(active, count, N, targets=True)
    order, bounds, ids, indptr = active.groups
    assert sorted(order.tolist()) == list(range(count))
    assert bounds.tolist() == [*range(0, count, group_size), count]
    first = [b for samples, _ in groups_of(active) for b in samples[:lookups]]
    asked = torch.cat([*sampler.proposer.asked, torch.empty(0, D)])
    assert torch.equal(asked, queries[first]), "they look up, and no others"
    assert active.computed == len(ids) == indptr[-1]
    for (samples, own), log_weights in zip(groups_of(active), weights_of(active), strict=True):
        labelled, found, known = naive_known(samples, labels, queries, lookups, share)
        assert own[: len(known)] == known
        assert len(own) == len(set(own)) == max(ACTIVE, labelled + found + 1)
        assert not log_weights[: len(known)].any()
        drawn = len(own) - len(known)
        np.testing.assert_allclose(
            np.exp(log_weights[len(known) :]), (N - len(known)) / drawn, 1e-6
        )
        for b in samples:
            assert active.row(b).tolist() == own
            at = slice(*active.indptr[b : b + 2])
            np.testing.assert_array_equal(active.log_weights[at], log_weights)
            targets = active.targets.indices[slice(*labels.indptr[b : b + 2])]
            assert [own[i] for i in targets] == rows_of(labels)[b]


def weights_of(active):
    """The weights of each group, those of its first sample."""
    return [
        active.log_weights[slice(*active.indptr[samples[0] : samples[0] + 2])]
        for samples, _ in groups_of(active)
    ]


def test_all_labels_are_in_a_set_that_they_fill():
    labels = make_pattern(np.random.default_rng(0), [30, 40, 0, 50], N)
    for weighting, more in (("stratified", 1), ("none", 0)):
        sampler = grouped(Asked, group_size=4, lookups=0, weighting=weighting)
        update(sampler, draw(4))
        active = sampler.select(draw(4), labels)
        assert len(active.groups.ids) == len(np.unique(labels.indices)) + more
        assert sorted(active.label_ids()) == sorted(labels.indices)
        assert (active.log_weights is None) == (weighting == "none")


def naive_share(draws, entries, others):
    """How many of the other groups' labels that many draws bring on average, each once."""
    return others * (1 - (1 - 1 / entries) ** draws)


@pytest.mark.parametrize("weighting", ["none", "stratified"])
def test_labels_of_the_batch_among_the_draws(weighting):
    """Without weights three quarters of the draws are labels of the batch, with weights none."""
    labels, found = Pattern.from_lists([[b + 100] for b in range(32)]), []
    sampler = grouped(Asked, group_size=4, lookups=0, weighting=weighting)
    for number in range(60):
        queries = draw(32, seed=number)
        update(sampler, queries)
        for samples, own in groups_of(sampler.select(queries, labels)):
            assert set(own[:4]) == {b + 100 for b in samples}
            assert len(own) == len(set(own)) == ACTIVE
            found.append(sum(100 <= i < 132 for i in own[4:]))
    draws = 15 if weighting == "none" else 0
    labelled = naive_share(draws, 32, 28)
    expected = labelled + (20 - labelled) * (28 - labelled) / (N - 4 - labelled)
    assert np.mean(found) == pytest.approx(expected, abs=0.35)


def test_frequent_labels_are_drawn_in_nearly_all_groups():
    labels = Pattern.from_lists([[7] if b % 2 else [b + 100] for b in range(64)])
    sampler, queries = grouped(group_size=2, weighting="none"), draw(64)
    update(sampler, queries)
    sets = [own for _, own in groups_of(sampler.select(queries, labels))]
    assert sum(7 in own for own in sets) == 32
    update(sampler, queries)
    sets = [own for _, own in groups_of(sampler.select(queries, None))]
    assert sum(7 in own for own in sets) < 10, "no labels, no draws of them"


def test_neighbours_are_similar():
    """Inputs of four clusters: groups hold those of one, where by chance a quarter would be."""
    centres = 3 * draw(4, seed=1)
    owner = torch.arange(64) % 4
    queries = centres[owner] + 0.1 * draw(64, seed=2)
    sampler, same = grouped(group_size=8), []
    for _ in range(10):
        update(sampler, queries)
        for samples, _ in groups_of(sampler.select(queries, None)):
            counts = np.bincount(owner[samples].numpy(), minlength=4)
            same.append(counts.max() / 8)
    assert np.mean(same) > 0.85


def test_groups_are_others_in_each_step():
    """The directions by which samples are split are drawn anew."""
    sampler, queries, seen = grouped(group_size=4), draw(32), set()
    for _ in range(5):
        update(sampler, queries)
        active = sampler.select(queries, None)
        seen.add(frozenset(frozenset(samples) for samples, _ in groups_of(active)))
    assert len(seen) == 5


@pytest.mark.parametrize("share", [0.5, None])
def test_stratified_sums_are_unbiased(share):
    """Sums over the set of each sample estimate sums over all outputs, in groups that change."""
    count, draws = 12, 3000 if COMPILED else 150
    sampler = grouped(Asked, group_size=4, lookups=2, candidate_share=share)
    labels, queries = draw_labels(count), draw(count)
    values = np.random.default_rng(0).exponential(size=(count, N)) ** 2
    whole, found = values.sum(1), np.empty((draws, count))
    for number in range(draws):
        update(sampler, queries)
        active = sampler.select(queries, labels)
        samples = np.repeat(np.arange(count), np.diff(active.indptr))
        parts = values[samples, active.ids] * np.exp(active.log_weights)
        found[number] = np.bincount(samples, parts, minlength=count)
    error = found.std(0, ddof=1) / math.sqrt(draws)
    assert (error > 0).all()
    assert (np.abs(found.mean(0) - whole) < 4.5 * error).all()


def test_draws_are_uniform_and_those_of_a_group_alone():
    """Each group draws all outputs that it has not with equal probability."""
    queries, labels = draw(8), Pattern.from_lists([[b] for b in range(8)])
    sampler, counts, draws = grouped(group_size=4), np.zeros(N, int), 0
    for _ in range(1000 if COMPILED else 200):
        update(sampler, queries)
        (one, first), (other, second) = groups_of(sampler.select(queries, labels))
        assert not set(one) & set(other)
        assert first[4:] != second[4:]
        for samples, own in ((one, first), (other, second)):
            assert set(own[:4]) == set(samples)
            counts += np.bincount(own[4:], minlength=N)
            draws += 1
    assert chi_square_p(counts[8:], draws, 20 * (N - 8) / (N - 4)) > 1e-4


class TestBesideOtherModes:
    @pytest.mark.parametrize("share", [None, 0.5])
    def test_groups_of_one_sample_are_sets_of_each_sample(self, share):
        """The labels and the candidates of a sample, and as many draws."""
        queries, labels, found = draw(9), draw_labels(9), {}
        for mode in ("grouped", "per_sample"):
            options = {"group_size": 1, "lookups": 1, "candidate_share": share, "mode": mode}
            sampler = grouped(Asked, **options)
            update(sampler, queries)
            active = sampler.select(queries, labels)
            assert len(active.indptr) == 10
            found[mode] = [
                (len(active.row(b)), set(active.row(b)[logs == 0].tolist()))
                for b, logs in enumerate(np.split(active.log_weights, active.indptr[1:-1]))
            ]
        for (size, known), (expected, wanted) in zip(*found.values(), strict=True):
            assert size == expected
            # A share is one of the set, and in sets of a sample one of what labels leave of it.
            assert known == wanted if share is None else known >= wanted

    @pytest.mark.parametrize("count", [1, 5, 16])
    @pytest.mark.parametrize("labelled", [True, False])
    def test_one_group_is_a_set_of_the_batch(self, count, labelled):
        queries, labels = draw(count), draw_labels(count) if labelled else None
        found = []
        for mode in ("grouped", "shared"):
            sampler = grouped(mode=mode, group_size=16)
            update(sampler, queries)
            found.append(sampler.select(queries, labels))
        one, whole = found
        assert one.groups.bounds.tolist() == [0, count]
        assert one.groups.ids.tolist() == whole.ids.tolist()
        assert one.ids.tolist() == count * whole.ids.tolist()
        assert one.log_weights.tolist() == count * whole.log_weights.tolist()
        if labels is not None:
            assert one.targets.indices.tolist() == whole.targets.indices.tolist()

    def test_without_look_ups_there_are_uniform_draws(self):
        queries, labels, found = draw(20), draw_labels(20), []
        for proposer in (Asked, None):
            sampler = grouped(proposer, lookups=0, group_size=4)
            for _ in range(3):
                update(sampler, queries)
                active = sampler.select(queries, labels)
            found.append(active.ids)
            assert proposer is None or not sampler.proposer.asked
        np.testing.assert_array_equal(*found)
        assert "uniform draws" in sampler.description()


@pytest.mark.parametrize("way", ["kernels", "torch"])
def test_without_labels(way):
    """As in a hidden layer: no targets, and sets of candidates and draws."""
    sampler, queries = grouped(Asked, group_size=4, lookups=2), draw(9)
    update(sampler, queries)
    with backend(way):
        active = sampler.select(queries, None)
    assert active.targets is None
    assert active.label_ids().size == 0
    for samples, own in groups_of(active):
        assert len(own) == ACTIVE
        found = [i for b in samples[:2] for i in naive_candidates(queries[b])[:6]]
        assert own[: len(set(found))] == list(dict.fromkeys(found))


SPARSE = {
    "uniform": None,
    "published": partial(
        PublishedLSHProposer,
        family=SimHash,
        hashes_per_table=2,
        num_tables=3,
        bucket_capacity=None,
        fill=0,
    ),
}


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("labelled", [True, False])
def test_sparse_inputs_are_grouped_as_they_come(name, labelled):
    queries = make_csr(np.random.default_rng(0), [3, 0, 6, 2, 1, 4, 4, 2, 5], D)
    labels = draw_labels(9) if labelled else None
    sampler = grouped(SPARSE[name], group_size=4, lookups=2, candidate_share=1.0)
    weight = draw(N, seed=3)
    sampler.update(weight, None, queries)
    active = sampler.select(queries, labels)
    check_active(active, 9, N, targets=labelled)
    assert [samples for samples, _ in groups_of(active)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    if labels is not None:
        assert active.label_ids().tolist() == labels.indices.tolist()
    if name == "published":
        codes, rows = sampler.proposer.hash.sparse_codes(queries), sampler.proposer.codes
        votes = (codes[:, :, None] == rows[:, None, :]).sum(0)
        for samples, own in groups_of(active):
            for b in samples[:2]:  # As many as they may have, those in the most buckets.
                best = np.sort(votes[b])[-ACTIVE // 2]
                sure = np.flatnonzero(votes[b] > best)
                assert set(sure.tolist()) <= set(own)
                assert (votes[b][own] > 0).sum() >= ACTIVE // 2


@pytest.mark.parametrize("weighting", ["stratified", "none"])
@pytest.mark.parametrize("labelled", [True, False])
def test_the_reference_makes_the_same_sets(labelled, weighting):
    """Draw by draw, also of sets that labels fill."""
    queries, found = draw(21), []
    labels = draw_labels(21) if labelled else None
    for way in ("kernels", "torch"):
        sampler = grouped(Asked, group_size=4, lookups=3, weighting=weighting)
        made = []
        with backend(way):
            for _ in range(3):
                update(sampler, queries)
                made.append(sampler.select(queries, labels))
        found.append(made)
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_array_equal(one.indptr, other.indptr)
        for mine, others in zip(one.groups, other.groups, strict=True):
            np.testing.assert_array_equal(mine, others)
        if labelled:
            np.testing.assert_array_equal(one.targets.indices, other.targets.indices)
        if weighting == "stratified":
            np.testing.assert_allclose(one.log_weights, other.log_weights, rtol=1e-6)


WAYS = {
    "state": lambda make, one: loaded(make(), one),
    "deepcopy": lambda make, one: copy.deepcopy(one),
    "pickle": lambda make, one: pickle.loads(pickle.dumps(one)),
}


def loaded(other, one):
    other.load_state_dict(pickle.loads(pickle.dumps(one.state_dict())))
    return other


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("proposer", [None, Asked, SketchProposer, RecentProposer])
def test_copies_go_on_with_the_same_draws(proposer, way):
    """In the middle of training, with predictions in between, while weights change."""
    make = partial(grouped, proposer, group_size=4, lookups=2)
    weight, bias = draw(N, seed=3), torch.zeros(N)

    def step(sampler, number):
        queries, labels = draw(10, seed=number), draw_labels(10, seed=number)
        sampler.update(weight, bias, queries)
        sets = [sampler.select(queries, labels)]
        sampler.update(weight, bias, None)
        return [*sets, sampler.select(queries[:3], None)]

    sampler = make()
    for number in range(5):
        changed = step(sampler, number)[0].label_ids()
        weight[torch.from_numpy(changed).long()] *= 1.1
    other = WAYS[way](make, sampler)
    for number in range(5, 20):
        sets = step(sampler, number)
        for one, twin in zip(sets, step(other, number), strict=True):
            np.testing.assert_array_equal(one.ids, twin.ids)
            np.testing.assert_array_equal(one.groups.order, twin.groups.order)
            np.testing.assert_array_equal(one.log_weights, twin.log_weights)
        weight[torch.from_numpy(sets[0].label_ids()).long()] *= 1.1
    assert other.rebuilds == sampler.rebuilds
    assert proposer is None or sampler.rebuilds > 1


def test_predictions_do_not_move_the_draws_on():
    found = []
    for predictions in (0, 3):
        sampler, queries = grouped(group_size=4), draw(12)
        for _ in range(2):
            update(sampler, queries)
            active = sampler.select(queries, None)
            for _ in range(predictions):
                update(sampler, queries, train=False)
                sampler.select(queries, None)
        found.append(active.ids)
    np.testing.assert_array_equal(*found)


def test_number_of_threads_does_not_matter(threads):
    found = []
    for number in (1, 0):
        threads(number)
        sampler, queries = grouped(Asked, group_size=4, lookups=2), draw(50)
        update(sampler, queries)
        found.append(sampler.select(queries, draw_labels(50)))
    np.testing.assert_array_equal(*(each.ids for each in found))
    np.testing.assert_array_equal(*(each.targets.indices for each in found))


def test_what_the_first_lines_of_a_run_say():
    assert grouped(group_size=4).description() == (
        "sets of 24 outputs for 4 samples; uniform draws from 400 outputs"
    )
    assert grouped(Asked, candidate_share=None).description() == (
        "sets of at least 24 outputs for 16 samples; Asked; rebuilt by schedule updates"
    )
    assert grouped(active=N).description() == "sets of all 400 outputs"


def test_what_the_log_says():
    """Candidates and draws of a set, on average over the groups."""
    sampler, queries, labels = grouped(Asked, group_size=4, lookups=2), draw(10), draw_labels(10)
    update(sampler, queries)
    active = sampler.select(queries, labels)
    found, filled = [], []
    for samples, own in groups_of(active):
        labelled, _, known = naive_known(samples, labels, queries, 2, 0.5)
        found.append(len(known) - labelled)
        filled.append(len(own) - len(known))
    said = sampler.statistics()
    assert said["selection/candidates"] == pytest.approx(np.mean(found))
    assert said["selection/filled"] == pytest.approx(np.mean(filled))


def test_a_matrix_of_sparse_rows_is_cut_into_those_that_look_up():
    """Rows of a CSR matrix keep their values."""
    queries = make_csr(np.random.default_rng(1), [2, 3, 0, 4, 1], D)
    asked = []

    class Sparse(Asked):
        def candidates(self, queries):
            asked.append(queries)
            return Pattern.from_lists([[0]] * queries.num_rows)

    sampler = grouped(Sparse, group_size=2, lookups=1)
    update(sampler, queries)
    sampler.select(queries, None)
    (some,) = asked
    assert isinstance(some, CSR)
    for row, b in enumerate((0, 2, 4)):
        one, whole = (slice(*m.indptr[i : i + 2]) for m, i in ((some, row), (queries, b)))
        assert some.indices[one].tolist() == queries.indices[whole].tolist()
        assert some.values[one].tolist() == queries.values[whole].tolist()
