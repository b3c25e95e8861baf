"""Arrays from files are described once, and refused in one sentence that names the array."""

import copy

import numpy as np
import pytest
import torch

import slide
from slide.hashing import HashTables
from slide.sampling import PublishedLSHProposer
from slide.utils.array_checks import Expected, check_arrays, check_counter, check_offsets

N, D = 60, 8


@pytest.mark.parametrize(
    ("array", "expected", "message"),
    [
        (np.zeros((2, 3)), Expected((2, None), "float64"), ""),
        (
            np.zeros((2, 3)),
            Expected((3, None), "float64"),
            "a must be (3, any) float64, not (2, 3)",
        ),
        (np.zeros(3, np.int64), Expected((3,), "int32"), "a must be (3) int32, not (3,) int64"),
        (np.array([0, 5]), Expected((None,), "int64", 0, 4), "a must lie in [0, 4], not in [0, 5]"),
        (np.array([-1]), Expected((1,), "int64", 0), "a must lie in [0, inf], not in [-1, -1]"),
        (np.array([1.0, np.nan]), Expected((2,), "float64"), "a must hold finite numbers only"),
        (np.array([1.0, -np.inf]), Expected((2,), "float64", 0), "a must hold finite numbers only"),
        (np.array([np.nan]), Expected((1,), "float64", finite=False), ""),
        (torch.zeros(2), Expected((2,), "float32", 1), "a must lie in [1, inf]"),
        (np.zeros(0, np.int32), Expected((0,), "int32", 1, 2), ""),
        ([1, 2], Expected((2,), "int64"), "a must be an array, not list"),
    ],
)
def test_what_an_array_must_be(array, expected, message):
    if not message:
        return check_arrays("it", {"a": array}, {"a": expected})
    with pytest.raises(ValueError, match="it is damaged") as error:
        check_arrays("it", {"a": array}, {"a": expected})
    assert message in str(error.value)
    return None


def test_missing_arrays_offsets_and_counters():
    with pytest.raises(ValueError, match="it is damaged: it lacks b"):
        check_arrays("it", {}, {"b": Expected((1,), "int32")})
    for offsets in ([], [1, 4], [0, 3], [0, 3, 2, 4]):
        with pytest.raises(ValueError, match="starts must rise from 0 to 4"):
            check_offsets("it", "starts", np.array(offsets), 4)
    check_offsets("it", "starts", np.array([0, 2, 2, 4]), 4)
    for value in (-1, 1.5, np.nan, 2**63, "3", True):
        with pytest.raises(ValueError, match="step must be a"):
            check_counter("it", "step", value)
    assert check_counter("it", "step", torch.tensor(7.0)) == 7


def edited(state, name, change):
    """A state of which one array, or one entry, is another."""
    out = copy.deepcopy(state)
    out[name] = change(out[name])
    return out


def at(index, value):
    """Another number at one position."""

    def change(array):
        array[index] = value
        return array

    return change


TABLES = {
    "starts": [at((0, 0), 10**6), at((1, 2), -5), lambda x: x[:1]],
    "rooms": [at((0, 1), 10**6), at((0, 0), -1), lambda x: x.astype(np.int64)],
    "seen": [at((1, 0), -3), lambda x: x[:, :2]],
    "used": [at(0, 10**6), at(0, 1), at(1, -1)],
    "pool": [lambda x: x[:, :3], lambda x: x.astype(float), at((0, 0), -7)],
}


@pytest.mark.parametrize(
    ("name", "change"), [(name, change) for name, own in TABLES.items() for change in own]
)
@pytest.mark.parametrize("capacity", [4, None])
def test_edited_hash_tables(capacity, name, change):
    tables = HashTables(2, 5, bucket_capacity=capacity)
    codes = np.random.default_rng(0).integers(0, 5, (2, N)).astype(np.int32)
    tables.build(codes)
    state = tables.state_dict()
    HashTables(2, 5, bucket_capacity=capacity).load_state_dict(state)
    with pytest.raises(ValueError, match=r"is damaged|do not fit"):
        HashTables(2, 5, bucket_capacity=capacity).load_state_dict(edited(state, name, change))


PROJECTION = {
    "offset": [lambda x: x[:2], at(0, np.nan)],
    "recent": [lambda x: np.zeros((4, D + 1), np.float32), at((0, 0), np.inf)],
    "mean_input": [lambda x: x[1:], lambda x: x.astype(float)],
    "directions": [at((0, 0), np.inf), lambda x: x[:, :3]],
    "variances": [at(0, -1), lambda x: x[:3]],
}
NOTED = [lambda x: np.array([N], np.int32), lambda x: np.array([-1], np.int32)]
SKETCHES = [lambda x: x.astype(np.int16), lambda x: x[:3], lambda x: x[:, :-4]]
PROPOSERS = {
    slide.LSHProposer: {
        **PROJECTION,
        "noted": NOTED,
        "sketches": SKETCHES,
        "rebuilds": [lambda x: -1, lambda x: 0.5],
    },
    slide.SketchProposer: {
        **PROJECTION,
        "bound": [lambda x: np.zeros(7, np.float32)],
        "noted": NOTED,
        "sketches": SKETCHES,
    },
    slide.RecentProposer: {"pool": [lambda x: np.array([N], np.int32), lambda x: np.array([0.5])]},
    PublishedLSHProposer: {
        "codes": [lambda x: x.astype(np.int64), lambda x: x + 2**20, at((0, 0), -1)],
        "samples": [lambda x: -4],
    },
}


@pytest.mark.parametrize(
    ("kind", "name", "change"),
    [
        (kind, name, change)
        for kind, names in PROPOSERS.items()
        for name, own in names.items()
        for change in own
    ],
)
@pytest.mark.usefixtures("one_thread")
def test_edited_proposers(kind, name, change):
    sampler, fresh = (
        slide.ActiveSampler(D, N, kind, active=20, mode="per_sample", weighting="none")
        for _ in range(2)
    )
    slide.SampledLinear(D, N, sampler)(torch.randn(3, D), [[1], [2, 3], [4]])
    state = sampler.state_dict()
    fresh.load_state_dict(copy.deepcopy(state))
    state["proposer"] = edited(state["proposer"], name, change)
    with pytest.raises(ValueError, match=r"is damaged|do not fit|must be"):
        fresh.load_state_dict(state)
