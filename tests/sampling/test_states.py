"""A state goes back only into a sampler like the one that it was taken from."""

from functools import partial

import pytest
import torch
from helpers.layers import D, N, draw_layer, draw_queries
from torch import nn

from slide import (
    DWTA,
    ActiveSampler,
    FaissProposer,
    FullSampler,
    IndexProposer,
    LSHProposer,
    NeighbourProposer,
    Proposer,
    RecentProposer,
    SampledLinear,
    Sampler,
    SimHash,
)
from slide.sampling import PublishedLSHProposer, fixed, never

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


def test_digits_of_another_size():
    """Both have codes of 6 bits."""
    first, second = (
        proposer(family=partial(DWTA, bin_size=size), hashes_per_table=digits)
        for digits, size in ((3, 4), (2, 8))
    )
    state = first.state_dict()
    first.load_state_dict(state)
    with pytest.raises(ValueError, match=r"hashes_per_table was 3 where .* and is 2 here"):
        second.load_state_dict(state)


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


def test_after_a_state_that_is_refused():
    """The index that there was may be half another one; it is built anew."""
    saved, other = (
        ActiveSampler(D, N, partial(PublishedLSHProposer, **(OPTIONS | each)), active=8)
        for each in ({}, {"bucket_capacity": 4})
    )
    saved.update(*draw_layer(), None)
    with pytest.raises(ValueError, match="bucket_capacity was 8"):
        other.load_state_dict(saved.state_dict())
    assert not other.holds_index
    other.update(*draw_layer(), None)
    assert len(other.candidates(draw_queries(5)).indices)


class First(Sampler):
    out_features = N

    def select(self, queries, labels):
        return FullSampler(D, N).select(queries, labels)


class Mine(Proposer):
    """Without a state."""


KINDS = {
    "LSHProposer": lambda: ActiveSampler(D, N, LSHProposer, active=8),
    "PublishedLSHProposer": lambda: ActiveSampler(D, N, PublishedLSHProposer, active=8),
    "FaissProposer": lambda: ActiveSampler(D, N, FaissProposer, active=8),
    "IndexProposer": lambda: ActiveSampler(D, N, IndexProposer, active=8),
    "NeighbourProposer": lambda: ActiveSampler(D, N, NeighbourProposer, active=8),
    "RecentProposer": lambda: ActiveSampler(D, N, RecentProposer, active=8),
    "Mine": lambda: ActiveSampler(D, N, Mine, active=8),
    "no proposer": lambda: ActiveSampler(D, N, active=8),
    "full": lambda: FullSampler(D, N),
    "first": First,
}


@pytest.mark.parametrize("saved", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_samplers(saved, kind):
    first, second = (SampledLinear(D, N, KINDS[name]()) for name in (saved, kind))
    if saved == "LSHProposer":
        first(torch.randn(3, D))
    state = first.state_dict()
    stateless = {"full", "first"}
    if kind in (saved, "full") or {kind, saved} <= stateless:
        second.load_state_dict(state)
        return
    if kind == "first":
        message = "a First has no state"
    elif saved in stateless:
        message = "no state of an ActiveSampler"
    else:
        message = f"ActiveSampler with {saved} does not fit one with {kind}"
    with pytest.raises(ValueError, match=message):
        second.load_state_dict(state)


def test_a_dense_layer_takes_the_weights_of_a_sampled_one():
    first = nn.Sequential(SampledLinear(D, N, KINDS["LSHProposer"]()))
    second = nn.Sequential(SampledLinear(D, N))
    first(torch.randn(3, D))
    second.load_state_dict(first.state_dict())
    assert torch.equal(second[0].weight, first[0].weight)
