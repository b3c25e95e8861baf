"""How many codes have changed, and rebuilds that follow from it."""

from functools import partial

import numpy as np
import pytest
import torch
from helpers.layers import FAMILIES, D, N, draw_layer, draw_queries, every_mode
from helpers.samplers import faiss_sampler, lsh_sampler, recent_sampler, uniform_sampler

import slide
from slide.backend import BACKENDS, backend
from slide.sampling import ActiveSampler, Drift, LSHProposer, Upkeep, drift, fixed, never
from slide.training.selection import inspect_selection

FAMILY = FAMILIES["simhash"]
every_limit_of_rehashing = pytest.mark.parametrize("after", [0, 2, None])


@pytest.fixture(
    autouse=True,
    params=[
        name if name == "kernels" else pytest.param(name, marks=pytest.mark.not_as_python)
        for name in BACKENDS
    ],
)
def _backend(request):
    with backend(request.param):
        yield


@pytest.fixture
def small_samples(monkeypatch):
    """So that a sample is not the whole layer."""
    monkeypatch.setattr(drift, "WATCHED", 150)


def naive_drift(old, new, rows):
    """The share of changed codes, counted one by one; codes are ``(L, N)``."""
    changed = [old[table][row] != new[table][row] for table in range(len(old)) for row in rows]
    return sum(map(int, changed)) / len(changed)


def moved(weight, share=0.3, seed=0):
    """The weight with a share of its rows drawn anew."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(len(weight), generator=generator)[: int(share * len(weight))]
    weight = weight.clone()
    weight[rows] = torch.randn(len(rows), weight.shape[1], generator=generator)
    return weight


@pytest.mark.parametrize("family", FAMILIES)
@every_limit_of_rehashing
@pytest.mark.usefixtures("small_samples")
def test_share_of_changed_codes(family, after):
    (weight, bias), after_move = draw_layer(), moved(draw_layer()[0])
    proposer = slide.LSHProposer(D, N, family=FAMILIES[family], upkeep=Upkeep(after))
    assert proposer.drift(weight, bias) is None
    seen = []
    for _ in range(3):
        proposer.rebuild(weight, bias)
        # Its codes in the tables, and now; the hash functions stay those of the rebuild.
        old = proposer.hash.row_codes(weight, bias)
        new = proposer.hash.row_codes(after_move, bias)
        key = slide.runtime.random_key(proposer.seed, proposer.rebuilds)
        rows = drift.watched_rows(N, key, None).tolist()
        seen.append(rows)
        assert proposer.drift(weight, bias) == 0
        found = proposer.drift(after_move, bias)
        assert found == pytest.approx(naive_drift(old, new, rows), abs=1e-6)
        assert 0.1 < found < 0.3
    assert seen[0] != seen[1] != seen[2]
    assert all(0 <= row < N for row in seen[0])
    assert len(set(seen[0])) > 100


def test_small_layers_are_looked_at_whole():
    (weight, bias), proposer = draw_layer(), slide.LSHProposer(D, N, family=FAMILY)
    proposer.rebuild(weight, bias)
    other = weight.clone()
    other[7] *= -1
    new = proposer.hash.row_codes(other, bias)
    assert proposer.drift(other, bias) == pytest.approx((new != proposer.codes).mean())
    assert (new[:, 7] != proposer.codes[:, 7]).mean() > 0.5


@pytest.mark.usefixtures("small_samples")
def test_rows_that_were_hashed_again_have_not_changed(monkeypatch):
    monkeypatch.setattr("slide.sampling.lsh_proposer.REHASH_ROWS", 1)
    (weight, bias), queries = draw_layer(), draw_queries(6)
    sampler = lsh_sampler(D, N, active=N - 1, rehash_after=1, rebuild=never, family=FAMILY)
    sampler.update(weight, bias, queries)
    sampler.select(queries, None)  # All rows but one.
    other = moved(weight, 0.5)
    assert sampler.proposer.drift(other, bias) > 0.2
    sampler.update(other, bias, queries)
    assert sampler.proposer.drift(other, bias) < 0.02
    assert sampler.rebuilds == 1


def make(after=0, limit=0.1, mode="shared", **options):
    schedule = Drift(limit=limit, first=20, growth=0.0)
    options = {"family": FAMILY, "rehash_after": after, "rebuild": schedule} | options
    return lsh_sampler(D, N, active=40, mode=mode, **options)


def run(sampler, weights, first=0):
    """Rebuilds after each training step of ten samples, and the sets."""
    rebuilds, chosen = [], []
    for i, weight in enumerate(weights, first):
        queries = draw_queries(10, seed=i)
        sampler.update(weight, draw_layer()[1], queries)
        rebuilds.append(sampler.rebuilds)
        chosen.append(sampler.select(queries, None).ids)
    return rebuilds, chosen


@every_limit_of_rehashing
@pytest.mark.usefixtures("small_samples")
def test_rebuilds_when_rows_move_and_only_then(after):
    still, far = draw_layer()[0], moved(draw_layer()[0], 0.9)
    near = moved(still, 0.1)
    # Looks are due at steps 2, 4, 6 and 8: 20 samples after the one before.
    weights = [still] * 3 + [near] * 3 + [far] * 3
    assert run(make(after), weights)[0] == [1] * 6 + [2] * 3
    assert run(make(after, limit=0.02), weights)[0] == [1] * 4 + [2] * 2 + [3] * 3
    assert run(make(after, limit=1.0), weights)[0] == [1] * 9
    # Between looks nothing happens, and what was rebuilt is not out of date.
    assert run(make(after), [still] * 3 + [far] * 6)[0] == [1] * 4 + [2] * 5
    assert run(make(after, limit=0.0), [still] * 9)[0] == [1] * 9


@every_mode
@every_limit_of_rehashing
@pytest.mark.usefixtures("small_samples", "one_thread")
def test_resumes(mode, after):
    weights = [draw_layer()[0]]
    for i in range(11):
        weights.append(moved(weights[-1], 0.15, seed=i))
    for stop in range(1, 9, 2):
        sampler, other = (make(after, limit=0.3, mode=mode) for _ in range(2))
        run(sampler, weights[:stop])
        run(other, weights[4:7])
        other.load_state_dict(sampler.state_dict())
        expected, found = (run(each, weights[stop:], stop) for each in (sampler, other))
        assert found[0] == expected[0]
        assert after != 0 or 1 < found[0][-1] < 6, "rehashing may leave nothing to rebuild"
        for a, b in zip(found[1], expected[1], strict=True):
            np.testing.assert_array_equal(a, b)


def test_evaluation_looks_only_once():
    """The look is not due again before more samples, and the weights of a step are looked at."""
    still, far = draw_layer()[0], moved(draw_layer()[0], 0.9)
    sampler = make()
    run(sampler, [still] * 2)
    for weight in (still, far, far):
        sampler.update(weight, draw_layer()[1], None)
    assert sampler.rebuilds == 1


def test_a_state_without_codes_is_rebuilt():
    """Earlier states with ``rehash_after=0`` have none."""
    sampler, still = make(after=0), draw_layer()[0]
    run(sampler, [still] * 2)
    state = sampler.state_dict()
    state["proposer"]["codes"] = state["proposer"]["codes"][:, :0]
    sampler.load_state_dict(state)
    assert run(sampler, [still] * 2)[0] == [2, 2]


def test_proposers_that_know_no_drift():
    message = r"schedule=drift needs an index .* and {} has no drift\(\): use LSHProposer, or"
    for made, name in ((faiss_sampler, "FaissProposer"), (recent_sampler, "RecentProposer")):
        with pytest.raises(ValueError, match=message.format(name)):
            made(D, N, active=40, rebuild=Drift())
    assert uniform_sampler(D, N, active=40, rebuild=Drift()).select(draw_queries(3), None)


def test_a_proposer_of_ones_own():
    class Mine(slide.Proposer):
        share = 0.0

        def rebuild(self, weight, bias):
            pass

        def candidates(self, queries):
            return slide.Pattern.from_lists([[]] * len(queries))

        def drift(self, weight, bias):
            return self.share

    sampler = slide.ActiveSampler(D, N, Mine, active=40, rebuild=Drift(0.5, first=20))
    weights = [draw_layer()[0]] * 4
    assert run(sampler, weights)[0] == [1] * 4
    sampler.proposer.share = 0.6
    assert run(sampler, weights)[0] == [2, 2, 3, 3]


@pytest.mark.parametrize(
    ("numbers", "name"),
    [
        ({"limit": -0.1}, "limit"),
        ({"limit": 1.1}, "limit"),
        ({"first": 0}, "first"),
        ({"growth": -1}, "growth"),
    ],
)
def test_numbers_out_of_range(numbers, name):
    with pytest.raises(ValueError, match=f"{name} must be "):
        make(rebuild=Drift(**numbers))


@pytest.mark.parametrize("sampler", [make, partial(uniform_sampler, D, N, active=40)])
def test_the_log_has_the_share(sampler):
    layer, inputs = slide.SampledLinear(D, N, sampler()), draw_queries(5)
    _, active = layer.loss(inputs, slide.Pattern.from_lists([[1]] * 5), slide.ActiveLoss("softmax"))
    name = "tables/changed_codes"
    found = inspect_selection(layer, inputs, active)
    if layer.sampler.proposer is None:
        assert name not in found
        return
    assert found[name] == 0
    with torch.no_grad():
        layer.weight.copy_(moved(layer.weight))
    share = layer.sampler.proposer.drift(layer.weight, layer.bias)
    assert inspect_selection(layer, inputs, active)[name] == share > 0.1


def test_a_rebuild_that_fails_is_tried_again():
    class Failing(LSHProposer):
        fails = False

        def rebuild(self, weight, bias):
            if self.fails:
                raise MemoryError("no room")
            super().rebuild(weight, bias)

    proposer = partial(Failing, family=FAMILY)
    sampler = ActiveSampler(D, N, proposer, active=40, rebuild=partial(fixed, every=4))
    (weight, bias), queries = draw_layer(), draw_queries(4)
    sampler.update(weight, bias, queries)
    sampler.proposer.fails = True
    with pytest.raises(MemoryError):
        sampler.update(weight, bias, queries)
    sampler.proposer.fails = False
    sampler.update(weight, bias, queries)
    assert (sampler.rebuilds, sampler.scheduled) == (2, 1)
