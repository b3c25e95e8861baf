"""What all samplers promise: sets, unbiased weights, states, numbers for the log."""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from helpers.inner_products import COMPILED
from helpers.layers import D, N, draw_layer, draw_queries, every_mode
from helpers.matrices import chi_square_p, make_pattern
from helpers.samplers import (
    all_modes,
    faiss_sampler,
    lsh_sampler,
    published_sampler,
    recent_sampler,
    sketch_sampler,
    uniform_sampler,
)

from slide import (
    DWTA,
    ActiveSampler,
    FaissProposer,
    FullSampler,
    LSHProposer,
    Proposer,
    RecentProposer,
    SampledLinear,
    Sampler,
    SimHash,
    SketchProposer,
)
from slide.backend import backend
from slide.sampling import PublishedLSHProposer, fixed, never
from slide.sampling.sampler import _GROUP
from slide.sparse import Pattern

WIDTH, FEW = 12, 60


SAMPLERS = {
    "uniform": uniform_sampler,
    "simhash": partial(lsh_sampler, family=SimHash, num_tables=3),
    "dwta": partial(published_sampler, family=DWTA, hashes_per_table=1, num_tables=6),
    "sketch": sketch_sampler,
}


every_sampler = pytest.mark.parametrize("name", SAMPLERS)


def draw_small(num_rows=FEW, width=WIDTH):
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(num_rows, width, generator=generator)
    return weight, 0.3 * torch.randn(num_rows, generator=generator)


def make(name, mode, active=16, num_rows=FEW, **options):
    """A sampler that is ready to select for the layer of `draw_small`."""
    sampler = SAMPLERS[name](WIDTH, num_rows, active=active, mode=mode, group_size=2, **options)
    sampler.update(*draw_small(num_rows), None)
    return sampler


def draw_inputs(num_samples=5, seed=0):
    return torch.randn(num_samples, WIDTH, generator=torch.Generator().manual_seed(seed))


def same_sets(a, b):
    """Whether two active sets are the same, in order, with the same weights."""
    arrays = [(a.ids, b.ids), (a.indptr, b.indptr), (a.log_weights, b.log_weights)]
    return all(np.array_equal(x, y) if x is not None else y is None for x, y in arrays)


@all_modes
@every_sampler
class TestSets:
    def test_all_outputs_where_active_covers_them(self, name, mode):
        labels = make_pattern(np.random.default_rng(0), [2, 3], FEW)
        for active in (FEW, FEW + 5):
            chosen = make(name, mode, active).select(draw_inputs(2), labels)
            assert chosen.complete
            assert chosen.log_weights is None
            assert chosen.targets is labels

    def test_no_samples(self, name, mode):
        active = make(name, mode).select(draw_inputs(0), make_pattern(None, [], FEW))
        assert len(active.ids) == (16 if mode == "shared" else 0)

    def test_number_of_threads_does_not_matter(self, name, mode, threads):
        labels = make_pattern(np.random.default_rng(1), [2, 0, 5, 1, 1], FEW)
        chosen = []
        for number in (1, 0):
            threads(number)
            sampler = make(name, mode)
            chosen.append([sampler.select(draw_inputs(), labels) for _ in range(2)])
        assert all(map(same_sets, *chosen))


@all_modes
def test_labels_that_cover_all_outputs(mode):
    """The set holds all N outputs then, but not in order."""
    labels = Pattern(np.array([0, 6]), np.array([4, 1, 5, 0, 3, 2], np.int32))
    active = uniform_sampler(WIDTH, 6, active=2, mode=mode).select(draw_inputs(1), labels)
    assert active.ids.tolist() == [4, 1, 5, 0, 3, 2]
    assert not active.complete


@all_modes
@pytest.mark.usefixtures("one_thread")
def test_uniform_fill_is_uniform(mode):
    known = [3, 17, 20]
    sampler = uniform_sampler(WIDTH, 30, active=12, mode=mode, group_size=2)
    num_samples = 1 if mode == "shared" else 100
    labels = Pattern(3 * np.arange(num_samples + 1), np.tile(np.int32(known), num_samples))
    counts, draws = np.zeros(30, int), 0
    while draws < 1_000:
        active = sampler.select(torch.zeros(num_samples, WIDTH), labels)
        sets = active.ids if active.groups is None else active.groups.ids
        counts += np.bincount(sets, minlength=30)
        draws += len(sets) // 12
    assert (counts[known] == draws).all()
    assert chi_square_p(np.delete(counts, known), draws, 9) > 1e-3


class Fixed(Proposer):
    """Three candidates of each sample, whatever it is."""

    def rebuild(self, weight, bias):
        pass

    def candidates(self, queries):
        return Pattern.from_lists([[b, b + 40, b + 80] for b in range(len(queries))])


@pytest.mark.usefixtures("one_thread")
def test_draws_beside_candidates_are_common_and_uniform():
    """Neighbours draw the same ids, and each all ids that it has not with equal probability."""
    rows, active, count, draws = 200, 24, 2 * _GROUP, 1500 if COMPILED else 100
    sampler = ActiveSampler(WIDTH, rows, Fixed, active=active, mode="per_sample")
    own, x = Pattern.from_lists([[b + 120] for b in range(count)]), torch.zeros(count, WIDTH)
    known = np.array([[b, b + 40, b + 80, b + 120] for b in range(count)])
    counts = np.zeros((count, rows), int)
    for _ in range(draws):
        ids = sampler.select(x, own).ids.reshape(count, active)
        assert all(len(set(row.tolist())) == active for row in ids)
        assert (np.sort(ids[:, :4], axis=1) == known).all()
        # A sample goes on for each id of the others' draws that is one of its four.
        assert len(np.unique(ids[:_GROUP, 4:])) <= active
        counts[np.arange(count)[:, None], ids] += 1
    for b in range(count):
        assert chi_square_p(np.delete(counts[b], known[b]), draws, active - 4) > 1e-5
    assert len(np.unique(ids[:, 4:])) > active, "each group has its own draws"


@pytest.mark.parametrize("share", [None, 0.0])
def test_draws_of_each_sample_as_published_or_without_candidates(share):
    options = {"active": 24, "mode": "per_sample", "candidate_share": share}
    ids = ActiveSampler(WIDTH, 200, Fixed, **options).select(torch.zeros(_GROUP, WIDTH), None).ids
    assert len(np.unique(ids.reshape(_GROUP, 24)[:, 3:])) > 100


def test_common_draws_are_those_of_the_reference():
    """On other devices, and draw by draw."""
    options = {"active": 24, "mode": "per_sample", "weighting": "stratified"}
    own = Pattern.from_lists([[b % 7 + 120] * (b % 2) for b in range(3 * _GROUP + 1)])
    found = []
    for way in ("kernels", "torch"):
        with backend(way):
            sampler = ActiveSampler(WIDTH, 5000, Fixed, **options)
            found.append(sampler.select(torch.zeros(own.num_rows, WIDTH), own))
    assert same_sets(*found)


@every_mode
@pytest.mark.parametrize(
    ("name", "candidate_share"),
    [("uniform", 0.5), ("simhash", 0.5), ("sketch", 1.0), ("sketch", 0)],
)
def test_weights_stand_for_all_outputs(name, mode, candidate_share):
    counts = [3, 0, 7, 15, 1, 20]  # In the last sample more than there are places.
    labels = make_pattern(np.random.default_rng(2), counts, FEW)
    sampler = make(name, mode, candidate_share=candidate_share)
    active = sampler.select(draw_inputs(6), labels)
    for b, count in enumerate(counts):
        at = slice(None) if active.shared else slice(active.indptr[b], active.indptr[b + 1])
        weights = np.exp(active.log_weights[at])
        known = len(np.unique(labels.indices)) if active.shared else count
        hard = int((weights == 1).sum())
        promising = 0 if name == "uniform" else int(candidate_share * max(0, 16 - known))
        assert known <= hard <= known + promising
        assert (weights[:hard] == 1).all()
        assert hard < len(weights)
        np.testing.assert_allclose(weights.sum(), FEW, rtol=1e-5)
        assert np.ptp(weights[hard:]) == 0


@all_modes
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["uniform", "simhash", "sketch"])
def test_stratified_sums_are_unbiased(name, mode):
    """Sums over a set estimate sums over all outputs, here of functions of scores."""
    sampler = make(name, mode, active=24, num_rows=200, weighting="stratified")
    labels, queries = make_pattern(np.random.default_rng(0), [3], 200), draw_inputs(1)
    weight, bias = draw_small(200)
    scores = (weight / 2 @ queries[0] + bias).double().numpy()
    values, found = np.stack([np.exp(scores), np.square(scores)]), []
    for _ in range(600 if COMPILED else 100):
        active = sampler.select(queries, labels)
        found.append(values[:, active.row(0)] @ np.exp(active.log_weights))
    for sums, whole in zip(np.transpose(found), values.sum(1), strict=True):
        assert np.std(sums) > 0
        assert abs(np.mean(sums) - whole) < 4 * np.std(sums, ddof=1) / np.sqrt(len(sums))


def test_a_proposer_that_makes_nothing_is_refused():
    with pytest.raises(TypeError, match="proposer must be a class or function such as"):
        ActiveSampler(WIDTH, FEW, "lsh")


OPTIONS = {"family": SimHash, "hashes_per_table": 4, "num_tables": 3, "bucket_capacity": 8}


OTHERS = {
    "bucket_capacity": 4,
    "bucket_policy": "reservoir",
    "seed": 5,
    "family": partial(DWTA, bin_size=4),
}


def proposer(**options):
    made = PublishedLSHProposer(D, N, **(OPTIONS | options))
    made.rebuild(*draw_layer())
    return made


@pytest.mark.parametrize("name", OTHERS)
def test_a_proposer_with_another_setting(name):
    """A bucket of another capacity, or codes of other functions, would find other rows."""
    saved, other = proposer(), proposer(**{name: OTHERS[name]})
    before = other.candidates(draw_queries(5)).indices.tolist()
    with pytest.raises(ValueError, match=rf"{name} was .* where this state was saved, and is"):
        other.load_state_dict(saved.state_dict())
    assert other.candidates(draw_queries(5)).indices.tolist() == before


def test_a_state_that_is_no_state():
    with pytest.raises(
        ValueError, match="no state of a PublishedLSHProposer: its settings lack family"
    ):
        proposer().load_state_dict({"rebuilds": 0})


@pytest.mark.parametrize(
    ("schedule", "later"),
    [(never, 0), (partial(fixed, every=40), 2), (partial(fixed, every=2), 10)],
)
def test_another_schedule_goes_on_from_where_it_would_be(schedule, later):
    saved, other = (
        ActiveSampler(D, N, partial(PublishedLSHProposer, **OPTIONS), active=8, rebuild=each)
        for each in (partial(fixed, every=10), schedule)
    )
    layer = draw_layer()
    for _ in range(5):
        saved.update(*layer, draw_queries(10))
    other.load_state_dict(saved.state_dict())
    for _ in range(10):
        other.update(*layer, draw_queries(8))
    assert other.rebuilds == saved.rebuilds + later


def test_the_former_name_of_a_counter():
    saved, other = (ActiveSampler(D, N, active=8) for _ in range(2))
    saved.select(draw_queries(5), None)
    state = saved.state_dict()
    state["asides"] = state.pop("inference_selections")
    other.load_state_dict(state)
    assert other.state_dict() == saved.state_dict()


def test_after_a_state_that_is_refused():
    """The index that there was may be half another one; it is built anew."""
    saved, other = (
        ActiveSampler(D, N, partial(PublishedLSHProposer, **(OPTIONS | each)), active=8)
        for each in ({}, {"bucket_capacity": 4})
    )
    for each in (saved, other):
        each.update(*draw_layer(), None)
    with pytest.raises(ValueError, match="bucket_capacity was 8"):
        other.load_state_dict(saved.state_dict())
    assert not other.state_dict()["built"]
    other.update(*draw_layer(), None)
    assert len(other.candidates(draw_queries(5)).indices)


class First(Sampler):
    out_features = N

    def select(self, queries, labels):
        return FullSampler(D, N).select(queries, labels)


class Mine(Proposer):
    """Without a state."""


PROPOSERS = [LSHProposer, PublishedLSHProposer, SketchProposer, RecentProposer, Mine]
KINDS = {
    **{kind.__name__: partial(ActiveSampler, D, N, kind, active=8) for kind in PROPOSERS},
    "FaissProposer": partial(ActiveSampler, D, N, partial(FaissProposer, factory="Flat"), active=8),
    "no proposer": partial(ActiveSampler, D, N, active=8),
    "full": partial(FullSampler, D, N),
    "first": First,
}


@pytest.mark.parametrize(
    ("kind", "saved", "message"),
    [
        *((kind, kind, None) for kind in KINDS),
        *(("full", "LSHProposer", None), ("full", "first", None)),
        ("first", "LSHProposer", "a First has no state"),
        ("LSHProposer", "full", "no state of an ActiveSampler"),
        ("no proposer", "Mine", "ActiveSampler with Mine does not fit one with no proposer"),
        ("SketchProposer", "LSHProposer", "with LSHProposer does not fit one with SketchProposer"),
    ],
)
def test_kinds_of_samplers(kind, saved, message):
    first, second = (SampledLinear(D, N, KINDS[name]()) for name in (saved, kind))
    if saved == "LSHProposer":
        first(torch.randn(3, D))
    with pytest.raises(ValueError, match=message) if message else nullcontext():
        second.load_state_dict(first.state_dict())


_NAMES = "non_empty_share", "mean_bucket", "largest_bucket", "left_out_share"
TABLES = {f"tables/{name}" for name in _NAMES}


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (
            partial(published_sampler, mode="per_sample", hashes_per_table=1),
            TABLES | {"look_up/rows_seen"},
        ),
        (lsh_sampler, TABLES | {"look_up/rows_seen"}),
        (partial(lsh_sampler, mode="grouped", group_size=2), TABLES | {"look_up/rows_seen"}),
        (sketch_sampler, {"look_up/rows_seen"}),
        (partial(faiss_sampler, factory="Flat"), set()),
        (recent_sampler, {"look_up/rows_seen"}),
    ],
)
def test_numbers_for_the_log(make, names):
    sampler, labels = make(D, N, active=40), make_pattern(np.random.default_rng(0), [2] * 5, N)
    for seed in range(2):
        queries = draw_queries(5, seed=seed)
        sampler.update(*draw_layer(), queries)
        active = sampler.select(queries, labels)
    found = sampler.statistics()
    assert set(found) == names | {"selection/candidates", "selection/filled"}
    distinct = len(np.unique(labels.indices))
    looked_up, filled = (found.pop(f"selection/{name}") for name in ("candidates", "filled"))
    assert min(looked_up, filled) >= 0
    if active.groups is None:
        labelled = 2 if sampler.mode == "per_sample" else distinct
        assert looked_up + filled == pytest.approx(40 - labelled)
    else:
        pairs = labels.indices.reshape(5, 2)[active.groups.order]
        parts = np.split(pairs, active.groups.bounds[1:-1])
        labelled = np.mean([len(np.unique(part)) for part in parts])
        sizes = np.diff(active.groups.indptr)
        assert looked_up + filled == pytest.approx(sizes.mean() - labelled)
    assert make is not recent_sampler or found["look_up/rows_seen"] == distinct


@pytest.mark.parametrize("lost", ["proposer", "steps", "settings", "sketches"])
def test_states_of_other_kinds_are_refused_in_a_sentence(lost):
    first, second = (SampledLinear(D, N, KINDS["LSHProposer"]()) for _ in range(2))
    first(torch.randn(3, D))
    state = first.sampler_state()
    if lost == "steps":
        state[lost] = "many"
    else:
        del (state if lost == "proposer" else state["proposer"])[lost]
    with pytest.raises(ValueError, match=r"state of an? (ActiveSampler|LSHProposer)"):
        second.set_extra_state(state)
