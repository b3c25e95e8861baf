"""States of shared rows, put together for another number of processes."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from slide import tensor_folder
from slide.distributed import Group, ShardedNetwork
from slide.optim import RowSparseAdam
from slide.sampling import FullSampler
from slide.tensor_folder import write_file, write_list
from slide.training.checkpoint import Checkpoint
from slide.training.checkpoint_files import (
    CHECKPOINT,
    StatePart,
    assembled,
    load_network_state,
    read_states,
    same_rows,
    state_for,
)
from slide.training.monitor import Counters

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


def own_pages(path):
    """The share of a file that this process has mapped and touched."""
    touched, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            touched += 1024 * int(line.split()[1])
    return touched / path.stat().st_size


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_each_process_reads_its_own_part(tmp_path, monkeypatch):
    """Of what both wrote, each hashes and touches one file, beside the ids of rows."""
    run, hashed = tmp_path / "run", []
    networks = [ShardedNetwork(20_000, [64], 900, FullSampler, group) for group in pair()]
    parts = [Checkpoint(run, n, RowSparseAdam(n.parameters())) for n in networks]
    folder, own = run / "checkpoints/1-step-0", []
    folder.mkdir(parents=True)
    files = []
    for rank, part in enumerate(parts):
        values, packed = part._packed(Counters())
        tensors = {name: each for file in packed.values() for name, each in file.items()}
        files.append(write_file(folder, f"rank-{rank}", tensors))
        own.append(values)
    write_list(CHECKPOINT, folder, {"run": {}, "parts": own}, files)
    del parts
    whole = tensor_folder._hash_file
    monkeypatch.setattr(tensor_folder, "_hash_file", lambda p: hashed.append(p.name) or whole(p))
    weight = networks[1].first.weight.detach().clone()
    networks[1].first.weight.data.zero_()
    states = read_states(folder, group=networks[1].group)
    load_network_state(networks[1], state_for(states, networks[1])["network"])
    assert torch.equal(networks[1].first.weight, weight)
    assert hashed == ["rank-1.safetensors"]
    assert own_pages(folder / "rank-1.safetensors") > 0.9
    assert own_pages(folder / "rank-0.safetensors") < 0.1


def pair():
    """Two groups of which each is one process of two, which hears from itself alone."""
    for rank in range(2):
        group = Group.alone()
        group.rank, group.size = rank, 2
        group.gather = lambda value: [value] * 2
        yield group
