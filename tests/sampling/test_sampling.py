"""What all samplers promise: labels first, distinct ids, the right size, unbiased weights."""

from functools import partial

import numpy as np
import pytest
import torch
from helpers.matrices import chi_square_p, make_csr, make_pattern
from helpers.samplers import faiss_sampler, lsh_sampler, published_sampler, uniform_sampler

from slide.hashing.dwta import DWTA
from slide.hashing.simhash import SimHash
from slide.sampling import ActiveSampler, FullSampler
from slide.sampling.schedules import fixed
from slide.sparse import Pattern

D, N = 12, 60
SAMPLERS = {
    "uniform": uniform_sampler,
    "simhash": partial(lsh_sampler, family=SimHash, num_tables=3),
    "dwta": partial(published_sampler, family=DWTA, hashes_per_table=1, num_tables=6),
    "flat": partial(faiss_sampler, kind="flat"),
    "ivf": partial(faiss_sampler, kind="ivf", probes=1, neighbours=4),
    "hnsw": partial(faiss_sampler, kind="hnsw"),
}
MODES = ["per_sample", "shared"]
FAISS = ("flat", "ivf", "hnsw")

every_sampler = pytest.mark.parametrize("name", SAMPLERS)
every_mode = pytest.mark.parametrize("mode", MODES)


def draw_layer(num_rows=N, width=D):
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(num_rows, width, generator=generator)
    return weight, 0.3 * torch.randn(num_rows, generator=generator)


def make(name, mode, active=16, num_rows=N, **options):
    """A sampler that is ready to select for the layer of `draw_layer`."""
    sampler = SAMPLERS[name](D, num_rows, active=active, mode=mode, **options)
    sampler.update(*draw_layer(num_rows), None)
    return sampler


def draw_queries(num_samples=5, seed=0):
    return torch.randn(num_samples, D, generator=torch.Generator().manual_seed(seed))


def same_sets(a, b):
    """Whether two active sets are the same, in order, with the same weights."""
    arrays = [(a.ids, b.ids), (a.indptr, b.indptr), (a.log_weights, b.log_weights)]
    return all(np.array_equal(x, y) if x is not None else y is None for x, y in arrays)


def labels_of_sample(labels, b):
    return labels.indices[labels.indptr[b] : labels.indptr[b + 1]].tolist()


@every_mode
@every_sampler
class TestSets:
    @pytest.mark.parametrize("counts", [[2, 0, 5, 1, 1], [0] * 5, [3, 20, 16, 0, 15]])
    def test_labels_are_in_and_ids_are_distinct(self, name, mode, counts):
        sampler = make(name, mode)
        labels = make_pattern(np.random.default_rng(1), counts, N)
        for _ in range(3):
            active = sampler.select(draw_queries(), labels)
            assert active.ids.dtype == np.int32
            assert active.shared == (mode == "shared")
            assert active.targets is not None
            for b, count in enumerate(counts):
                own = active.row(b)
                positions = labels_of_sample(active.targets, b)
                assert own[positions].tolist() == labels_of_sample(labels, b)
                assert len(set(own.tolist())) == len(own)
                assert own.min() >= 0
                assert own.max() < N
                known = len(np.unique(labels.indices)) if active.shared else count
                # At least one uniform id stands for the outputs left out.
                assert len(own) == max(16, known + 1)

    def test_without_labels(self, name, mode):
        active = make(name, mode).select(draw_queries(), None)
        assert active.targets is None
        assert active.mean_size() == 16

    def test_one_label_for_all(self, name, mode):
        labels = Pattern(np.arange(6), np.full(5, 42, np.int32))
        active = make(name, mode).select(draw_queries(), labels)
        assert all(42 in active.row(b) for b in range(5))
        assert not active.targets.indices.any()

    def test_all_outputs_where_active_covers_them(self, name, mode):
        labels = make_pattern(np.random.default_rng(0), [2, 3], N)
        for active in (N, N + 5):
            chosen = make(name, mode, active).select(draw_queries(2), labels)
            assert chosen.complete
            assert chosen.log_weights is None
            assert chosen.targets is labels

    def test_a_nearly_full_set(self, name, mode):
        sampler = make(name, mode, active=N - 1)
        labels = make_pattern(np.random.default_rng(0), [N - 2, 0, N], N)
        active = sampler.select(draw_queries(3), labels)
        for b, size in enumerate([N - 1, N - 1, N] if mode == "per_sample" else [N] * 3):
            assert len(np.unique(active.row(b))) == size

    def test_no_samples(self, name, mode):
        active = make(name, mode).select(draw_queries(0), make_pattern(None, [], N))
        assert len(active.ids) == (16 if mode == "shared" else 0)

    def test_same_seed_and_step_give_the_same_sets(self, name, mode):
        labels = make_pattern(np.random.default_rng(1), [2, 0, 5, 1, 1], N)
        one, two, other = (make(name, mode, seed=s) for s in (4, 4, 5))
        steps = [[s.select(draw_queries(), labels) for _ in range(3)] for s in (one, two, other)]
        assert all(map(same_sets, steps[0], steps[1]))
        assert not any(map(same_sets, steps[0], steps[2]))
        assert not same_sets(steps[0][0], steps[0][1])

    def test_number_of_threads_does_not_matter(self, name, mode, threads):
        labels = make_pattern(np.random.default_rng(1), [2, 0, 5, 1, 1], N)
        chosen = []
        for number in (1, 0):
            threads(number)
            sampler = make(name, mode)
            chosen.append([sampler.select(draw_queries(), labels) for _ in range(2)])
        assert all(map(same_sets, *chosen))

    def test_state_round_trip(self, name, mode):
        labels = make_pattern(np.random.default_rng(1), [2, 0, 5, 1, 1], N)
        schedule = {} if name == "uniform" else {"rebuild": partial(fixed, every=12)}
        sampler, other = (make(name, mode, **schedule) for _ in range(2))
        weight, bias = draw_layer()

        def steps(s, first, last):
            chosen = []
            for i in range(first, last):
                s.update(weight + i * weight.roll(1, 0), bias, draw_queries(seed=i))
                chosen.append(s.select(draw_queries(seed=i), labels))
            return chosen

        steps(sampler, 0, 4)
        steps(other, 2, 9)
        other.load_state_dict(sampler.state_dict())
        assert all(map(same_sets, steps(sampler, 4, 9), steps(other, 4, 9)))

    def test_errors(self, name, mode):
        sampler = make(name, mode)
        for wrong in ([N], [-1]):
            labels = Pattern(np.array([0, 1]), np.array(wrong, np.int32))
            with pytest.raises(ValueError, match=rf"labels must lie in \[0, {N}\)"):
                sampler.select(draw_queries(1), labels)
        with pytest.raises(ValueError, match="1 rows of labels do not fit 5 inputs"):
            sampler.select(draw_queries(), Pattern(np.array([0, 1]), np.array([1], np.int32)))
        with pytest.raises(TypeError, match=r"labels must be a slide\.Pattern .*, not list"):
            sampler.select(draw_queries(1), [[1]])


@every_sampler
@pytest.mark.parametrize(
    ("option", "value"),
    [("active", 0), ("mode", "both"), ("weighting", "uniform"), ("out_features", 0)],
)
def test_options_out_of_range(name, option, value):
    with pytest.raises(ValueError, match=f"{option} must be "):
        SAMPLERS[name](**{"in_features": D, "out_features": N, option: value})


class TestFull:
    def test_all_in_order(self):
        sampler = FullSampler(D, N)
        sampler.update(*draw_layer(), draw_queries())
        labels = make_pattern(np.random.default_rng(0), [2, 3], N)
        active = sampler.select(draw_queries(2), labels)
        assert active.complete
        assert active.ids.tolist() == list(range(N))
        assert active.targets is labels
        sampler.load_state_dict(sampler.state_dict())

    def test_labels_out_of_range(self):
        labels = Pattern(np.array([0, 1]), np.array([N], np.int32))
        with pytest.raises(ValueError, match="labels must lie in"):
            FullSampler(D, N).select(draw_queries(1), labels)


@every_mode
def test_labels_that_cover_all_outputs(mode):
    """The set holds all N outputs then, but not in order."""
    labels = Pattern(np.array([0, 6]), np.array([4, 1, 5, 0, 3, 2], np.int32))
    active = uniform_sampler(D, 6, active=2, mode=mode).select(draw_queries(1), labels)
    assert active.ids.tolist() == [4, 1, 5, 0, 3, 2]
    assert not active.complete


@every_mode
@pytest.mark.usefixtures("one_thread")
def test_uniform_fill_is_uniform(mode):
    known = [3, 17, 20]
    sampler = uniform_sampler(D, 30, active=12, mode=mode)
    num_samples = 100 if mode == "per_sample" else 1
    labels = Pattern(3 * np.arange(num_samples + 1), np.tile(np.int32(known), num_samples))
    counts, draws = np.zeros(30, int), 0
    while draws < 1_000:
        active = sampler.select(torch.zeros(num_samples, D), labels)
        counts += np.bincount(active.ids, minlength=30)
        draws += num_samples
    assert (counts[known] == draws).all()
    assert chi_square_p(np.delete(counts, known), draws, 9) > 1e-3


@every_mode
@pytest.mark.parametrize("name", ["uniform", "simhash", "flat"])
@pytest.mark.parametrize("candidate_share", [0.0, 0.5])
def test_weights_stand_for_all_outputs(name, mode, candidate_share):
    options = {} if name == "uniform" else {"candidate_share": candidate_share}
    labels = make_pattern(np.random.default_rng(2), [3, 0, 7, 15, 1], N)
    active = make(name, mode, **options).select(draw_queries(), labels)
    for b, count in enumerate([3, 0, 7, 15, 1]):
        at = slice(None) if active.shared else slice(active.indptr[b], active.indptr[b + 1])
        weights = np.exp(active.log_weights[at])
        known = len(np.unique(labels.indices)) if active.shared else count
        hard = int((weights == 1).sum())
        promising = 0 if name == "uniform" else int(candidate_share * max(0, 16 - known))
        assert known <= hard <= known + promising
        assert (weights[:hard] == 1).all()
        if hard < 16:
            np.testing.assert_allclose(weights.sum(), N, rtol=1e-5)
            assert np.ptp(weights[hard:]) == 0


@every_mode
def test_promising_ids_leave_places_for_uniform_ones(mode):
    """However many labels there are, short of a full set."""
    sampler = make("flat", mode, candidate_share=0.5)
    labels = make_pattern(np.random.default_rng(0), [14], N)
    active = sampler.select(draw_queries(1), labels)
    assert (active.log_weights > 0).sum() == 1


def draw_estimates(name, mode, weighting, function, num_draws, **options):
    """Estimates of the sum of ``function(scores)`` over all outputs, and the truth."""
    sampler = make(name, mode, active=24, num_rows=200, weighting=weighting, **options)
    labels = make_pattern(np.random.default_rng(0), [3], 200)
    weight, bias = draw_layer(200)
    weight = weight / 2
    queries = draw_queries(1)
    scores = (weight @ queries[0] + bias).double().numpy()
    out = []
    for _ in range(num_draws):
        active = sampler.select(queries, labels)
        own = active.row(0)
        weights = 1 if active.log_weights is None else np.exp(active.log_weights[: len(own)])
        out.append((weights * function(scores[own])).sum())
    return np.array(out), function(scores).sum()


@every_mode
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["uniform", "simhash", "flat"])
class TestEstimator:
    @pytest.mark.parametrize("function", [np.exp, np.square])
    def test_stratified_sums_are_unbiased(self, name, mode, function):
        values, truth = draw_estimates(name, mode, "stratified", function, 600)
        assert values.std() > 0
        assert abs(values.mean() - truth) < 4 * values.std(ddof=1) / np.sqrt(len(values))

    def test_unweighted_sums_are_biased(self, name, mode):
        values, truth = draw_estimates(name, mode, "none", np.exp, 50)
        assert truth - values.mean() > 10 * values.std(ddof=1) / np.sqrt(len(values))


@every_mode
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", ["simhash", "flat"])
def test_promising_ids_make_the_estimate_better(name, mode):
    hard, _ = draw_estimates(name, mode, "stratified", np.exp, 200)
    uniform, _ = draw_estimates("uniform", mode, "stratified", np.exp, 200)
    assert hard.std() < uniform.std()


def test_sparse_inputs():
    x = make_csr(np.random.default_rng(0), [3, 0, 12], D)
    for name in ("uniform", "dwta"):
        for mode in MODES:
            assert make(name, mode).select(x, None).mean_size() == 16
    for name in (*FAISS, "simhash"):
        for mode in MODES:
            with pytest.raises(TypeError, match="dense inputs only"):
                make(name, mode).select(x, None)


@pytest.mark.parametrize("wrong", ["lsh", 3])
def test_a_proposer_that_makes_nothing_is_refused(wrong):
    with pytest.raises(TypeError, match="proposer must be a class or function such as"):
        ActiveSampler(D, N, wrong)
