"""States of shared rows, put together for another number of processes."""

import numpy as np
import pytest
import torch

from slide.training.shared_state import StatePart, assembled, same_rows

SIZES = {"first": 7, "output": 5}
NAMES = ["output.weight", "output.bias", "first.weight", "first.bias"]


def whole():
    """The state of a network whose entries all differ, and that of its optimizer."""
    shapes = {"output.weight": (5, 3), "output.bias": (5,), "first.weight": (7, 3)}
    network = {name: torch.randn(shape) for name, shape in shapes.items()}
    network |= {"first.bias": torch.randn(3), "hidden.0.weight": torch.randn(3, 3)}
    network["output._extra_state"] = {"samples": 9, "proposer": {"codes": torch.ones(5)}}
    moments = {
        number: {"step": 4, "exp_avg": torch.randn_like(network[name]), "exp_avg_sq": None}
        for number, name in enumerate(NAMES)
    }
    return network, {"state": moments, "param_groups": [{"lr": 0.1}]}


def deal(size, seed):
    """The ids of the rows of so many processes."""
    rng, found = np.random.default_rng(seed), [{} for _ in range(size)]
    for layer, rows in SIZES.items():
        owner = rng.permutation(np.arange(rows) % size)
        for rank in range(size):
            found[rank][layer] = np.flatnonzero(owner == rank)
    return found


def split(network, optimizer, rows):
    """Parts that processes with these rows would have written."""
    one = [StatePart(None, network, optimizer)]
    return [StatePart(own, *assembled(one, own, SIZES, NAMES)) for own in rows]


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (4, 2)])
def test_rows_and_moments_come_along_exactly(before, after):
    network, optimizer = whole()
    parts = split(network, optimizer, deal(before, 0))
    again = [StatePart(own, *assembled(parts, own, SIZES, NAMES)) for own in deal(after, 1)]
    found, moments = assembled(again, None, SIZES, NAMES)
    for name, weight in network.items():
        if torch.is_tensor(weight):
            assert torch.equal(found[name], weight), name
    for number, state in optimizer["state"].items():
        assert torch.equal(moments["state"][number]["exp_avg"], state["exp_avg"])
        assert moments["state"][number]["step"] == 4
    assert moments["param_groups"] == optimizer["param_groups"]


def test_counters_come_along_and_an_index_does_not():
    parts = split(*whole(), deal(2, 0))
    found, _ = assembled(parts, deal(3, 1)[0], SIZES, NAMES)
    assert found["output._extra_state"] == {"samples": 9, "proposer": {}}


def test_a_part_without_gradients_has_zeros():
    network, optimizer = whole()
    parts = split(network, optimizer, deal(2, 0))
    del parts[0].optimizer["state"][0]
    _, moments = assembled(parts, None, SIZES, NAMES)
    own = parts[0].rows["output"]
    assert not moments["state"][0]["exp_avg"][own].any()
    assert moments["state"][0]["exp_avg"].abs().sum(1).count_nonzero() == 5 - len(own)


def test_rows_that_are_missing():
    parts = split(*whole(), deal(2, 0))[:1]
    with pytest.raises(KeyError, match="rows of the layer"):
        assembled(parts, None, SIZES, NAMES)


def test_which_part_has_the_same_rows():
    one, other = split(*whole(), deal(2, 0))
    assert same_rows(one, one.rows)
    assert not same_rows(one, other.rows)
    assert not same_rows(one, None)
    assert same_rows(StatePart(None, {}, {}), None)
