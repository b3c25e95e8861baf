"""Nested states as JSON values and tensors."""

import json
import math

import pytest
import torch
from helpers.job import assert_same

from slide.utils.tensor_folder import join_state, split_state

STATES = [
    *(3, None, True, "text", 1.5, [], {}, (), [[], {}], {"a": [1, {"b": (2, 3)}]}),
    {0: torch.arange(3), 1: {"step": 2, "betas": (0.9, 0.999)}},
    {"a.b": torch.zeros(2), "a": {"b": torch.ones(2)}},
    {"tensor:": 1, "tuple:": [2], "items:": {"tensor:": torch.ones(1)}},
    {(1, 2): {True: 1.0}},
    [torch.tensor(5), torch.ones(0, 3), torch.ones(2, dtype=torch.bfloat16)],
    {"large": 2**80, "small": 5e-324, "third": 1 / 3, "infinite": -math.inf},
]


@pytest.mark.parametrize("state", STATES, ids=str)
def test_they_come_back(state):
    values, tensors = split_state(state, "x")
    found = join_state(json.loads(json.dumps(values)), tensors)
    assert type(found) is type(state)
    if isinstance(state, dict):
        assert [type(key) for key in found] == [type(key) for key in state]
    assert str(found) == str(state)
    if isinstance(state, dict | list):
        assert_same(found, state)


def test_names_say_where_a_tensor_was():
    assert sorted(split_state({"a": [torch.ones(1)], 3: {"b": torch.ones(1)}}, "net")[1]) == [
        "net.3.b",
        "net.a.0",
    ]


@pytest.mark.parametrize("thing", [object(), {1, 2}, b"x", 1j])
def test_what_is_no_state(thing):
    said = f"x.a.1 is a {type(thing).__name__}, which a checkpoint cannot hold"
    with pytest.raises(TypeError, match=said):
        split_state({"a": [0, thing]}, "x")
