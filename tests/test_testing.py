"""The checks for samplers and hash families of one's own: ours pass, and broken ones do not."""

from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers.samplers import (
    all_modes,
    faiss_sampler,
    lsh_sampler,
    published_sampler,
    recent_sampler,
    sketch_sampler,
    uniform_sampler,
)

from slide.active_set import ActiveSet
from slide.hashing.families import DWTA, SimHash
from slide.nn.sampled_linear import SampledLinear
from slide.sampling import (
    ActiveSampler,
    FullSampler,
    LSHProposer,
    Proposer,
    PublishedLSHProposer,
    Sampler,
)
from slide.sampling.schedules import fixed
from slide.sparse import Pattern
from slide.testing import check_hash_family, check_sampler

pytestmark = pytest.mark.usefixtures("one_thread")
D, N = 16, 90
often = partial(fixed, every=20)


class Own(Proposer):
    """The rows with the largest weights at the largest coordinate of an input."""

    sparse_inputs = False

    def rebuild(self, weight, bias):
        self.order = weight.argsort(dim=0, descending=True)[:6].clone()

    refresh = rebuild

    def candidates(self, queries):
        return Pattern.from_lists(self.order[:, queries.argmax(1)].T.tolist())


SAMPLERS = {
    "full": FullSampler,
    "uniform": partial(uniform_sampler, active=20),
    "uniform, unweighted": partial(uniform_sampler, active=20, weighting="none"),
    "lsh": partial(lsh_sampler, active=20, rebuild=often),
    "lsh by dwta": partial(lsh_sampler, family=DWTA, active=20, rebuild=often),
    "lsh, other tables": partial(
        lsh_sampler, hashes_per_table=3, num_tables=5, probes=2, active=20, rebuild=often
    ),
    "sketch": partial(sketch_sampler, best=3, active=20, rebuild=often),
    "faiss": partial(faiss_sampler, factory="Flat", best=3, active=20, rebuild=often),
    "own": partial(ActiveSampler, proposer=Own, active=20, rebuild=often),
    "published": partial(
        published_sampler, hashes_per_table=2, num_tables=6, redraw=often, active=20, rebuild=often
    ),
    "recent": partial(recent_sampler, recent=15, best=3, active=20),
}
DENSE = {"lsh", "lsh by dwta", "lsh, other tables", "sketch", "faiss", "own", "recent"}
FAMILIES = {
    "simhash": partial(SimHash, D, 4, 16),
    "one simhash": partial(SimHash, D, 1, 1),
    "dwta": partial(DWTA, D, 2, 16),
    "dwta of one digit": partial(DWTA, D, 1, 16),
}


@all_modes
@pytest.mark.parametrize("name", SAMPLERS)
def test_our_samplers(name, mode):
    options = {} if name == "full" else {"mode": mode, "group_size": 3, "lookups": 2}
    sparse = name not in DENSE
    check_sampler(lambda: SAMPLERS[name](D, N, **options), D, sparse_inputs=sparse)


@pytest.mark.parametrize("name", FAMILIES)
def test_our_families(name):
    check_hash_family(FAMILIES[name])


class Largest(Sampler):
    """The outputs with the largest weights, whatever the input is; and one that inherits."""

    def __init__(self, out_features=N, active=20):
        self.out_features, self.active = out_features, active
        self.best = np.empty(0, np.int32)

    def update(self, weight, bias, inputs):
        order = weight.detach().norm(dim=1).argsort(descending=True)
        self.best = order[: self.active].numpy().astype(np.int32)

    def select(self, queries, labels):
        known = np.empty(0, np.int32) if labels is None else np.unique(labels.indices)
        ids = np.union1d(known, self.best).astype(np.int32)
        targets = None
        if labels is not None:
            positions = np.searchsorted(ids, labels.indices).astype(np.int32)
            targets = Pattern(labels.indptr, positions)
        return self.give(ActiveSet(self.out_features, ids, None, targets))

    def give(self, active):
        return active


def broken(change):
    """A sampler whose sets are changed before they are given out."""

    class Broken(Largest):
        def give(self, active):
            return change(active)

    return Broken


def with_ids(active, ids):
    return ActiveSet(active.out_features, ids, active.indptr, active.targets)


def with_targets(active, targets):
    return ActiveSet(active.out_features, active.ids, active.indptr, targets)


class Forgetful(Largest):
    """Its sets depend on how often it was asked, which its state does not tell."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def update(self, weight, bias, inputs):
        super().update(weight, bias, inputs)
        self.calls += 1
        self.best = self.best[: 5 + self.calls]


BROKEN = {
    "distinct": broken(lambda a: with_ids(a, a.ids // 2)),
    "must be int32": broken(lambda a: with_ids(a, a.ids.astype(np.int64))),
    r"lie in \[0, 90\)": broken(lambda a: with_ids(a, a.ids + np.int32(1))),
    "a set of 91 outputs, not 90": broken(lambda a: ActiveSet(91, a.ids)),
    "has no targets": broken(lambda a: with_targets(a, None)),
    "not at its labels": broken(
        lambda a: with_targets(a, a.targets and Pattern(a.targets.indptr, 0 * a.targets.indices))
    ),
    r"different ids after load_state_dict\(state_dict\(\)\)": Forgetful,
    "1 active sets do not fit 7 samples": broken(
        lambda a: ActiveSet(N, a.ids, np.array([0, len(a.ids)]), a.targets)
    ),
    "log_weights must be 0 at targets": broken(
        lambda a: ActiveSet(N, a.ids, None, a.targets, np.ones(len(a.ids), np.float32))
    ),
    "log_weights must be finite": broken(
        lambda a: ActiveSet(N, a.ids, None, a.targets, np.full(len(a.ids), -np.inf, np.float32))
    ),
}


def test_a_sampler_that_inherits():
    check_sampler(Largest, D)
    layer = SampledLinear(D, N, Largest())
    layer(torch.randn(3, D), Pattern.from_lists([[1], [], [2, 3]])).values.sum().backward()
    again = SampledLinear(D, N, Largest())
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again.weight, layer.weight)


@pytest.mark.parametrize("reason", BROKEN)
def test_broken_samplers(reason):
    with pytest.raises(AssertionError, match=reason):
        check_sampler(BROKEN[reason], D)


# Codes and members that are wrong; also a proposer says what is, in the same words.
CODES = {
    r"codes must be \(16, \d+\) int32, not \(16, \d+\) int64": lambda c: c.astype(np.int64),
    r"codes must be \(16, \d+\) int32, not \(\d+, 16\) int32": lambda codes: codes.T,
    r"codes must be \(16, (\d+)\) int32, not \(16, (?!\1)\d+\) int32": lambda codes: codes[:, 1:],
    r"codes must lie in \[0, 16\), not in \[5, 20\]": lambda codes: codes + np.int32(5),
    "codes must be an array or a tensor, not list": lambda codes: codes.tolist(),
}
MEMBERS = {
    "a Broken is no slide.HashFamily: it has no codes": {"codes": 3},
    "a Broken is no slide.HashFamily: it has no num_buckets": {
        "num_buckets": property(lambda family: None, Mock())
    },
    r"num_buckets of a Broken must be in \[2, 2147483648\], not 1": {
        "num_buckets": property(lambda family: 1, Mock())
    },
}


class Family(SimHash):
    """A family to break."""

    def __init__(self, in_features=D, hashes_per_table=4, num_tables=16, seed=0):
        super().__init__(in_features, hashes_per_table, num_tables, seed)


def family(**members):
    """A family with other members; ``codes`` and the like take the codes of the right one, too."""
    return type("Broken", (Family,), members)


def other_codes(change):
    return family(codes=lambda self, vectors: change(SimHash.codes(self, vectors)))


def probes(change):
    return family(probe_codes=lambda self, vectors, count: change(self, vectors, count))


FAULTS = {
    "gives a bucket of a table twice": probes(lambda f, x, n: np.tile(f.codes(x), (1 + n, 1))),
    "must begin with the codes": probes(lambda f, x, n: SimHash.probe_codes(f, x, n)[::-1]),
    "probe_codes must give": probes(lambda f, x, n: f.codes(x)),
    **{reason: other_codes(change) for reason, change in CODES.items()},
    **{reason: family(**members) for reason, members in MEMBERS.items()},
    "change between calls": other_codes(np.random.default_rng().permuted),
    "depend on the other rows": family(
        codes=lambda f, x: SimHash.codes(f, x - x.mean(0) if len(x) else x)
    ),
    "redraw changes nothing": family(redraw=lambda f, seed: SimHash.redraw(f, 0)),
    "sparse and dense codes agree in": family(
        sparse_codes=lambda f, x: 15 - SimHash.sparse_codes(f, x)
    ),
}


@pytest.mark.parametrize("reason", FAULTS)
def test_broken_families(reason):
    with pytest.raises(AssertionError, match=reason):
        check_hash_family(FAULTS[reason])


@pytest.mark.parametrize("proposer", [LSHProposer, PublishedLSHProposer])
@pytest.mark.parametrize("reason", [*CODES, *MEMBERS])
def test_a_proposer_says_what_is_wrong_with_its_family(reason, proposer):
    with pytest.raises((TypeError, ValueError), match=reason):
        proposer(D, N, family=FAULTS[reason], hashes_per_table=4, num_tables=16).rebuild(
            torch.randn(N, D, generator=torch.Generator().manual_seed(0)), None
        )


@pytest.mark.parametrize("proposer", [LSHProposer, PublishedLSHProposer])
def test_what_makes_no_family(proposer):
    for wrong in (None, "simhash", Family()):
        with pytest.raises(TypeError, match="family must be a class or function such as slide"):
            proposer(D, N, family=wrong)
    with pytest.raises(TypeError, match=r"made by family\(in_features, .*unexpected keyword arg"):
        proposer(D, N, family=lambda in_features: Family())
    with pytest.raises(ValueError, match=r"num_tables of a Family must be 8, which .*, not 16"):
        proposer(D, N, family=lambda *_, **__: Family(), num_tables=8, hashes_per_table=4)


def test_a_family_without_locality():
    class Blind(Family):
        """Chance alone, fixed for each vector and draw."""

        def redraw(self, seed):
            super().redraw(seed)
            self.drawn = seed

        def codes(self, vectors):
            out = np.empty((16, len(vectors)), np.int32)
            for i, row in enumerate(vectors.float().numpy()):
                rng = np.random.default_rng([self.drawn, *row.view(np.uint32)])
                out[:, i] = rng.integers(0, 16, 16)
            return out

    with pytest.raises(AssertionError, match="near vectors collide in"):
        check_hash_family(Blind, sparse_inputs=False)
