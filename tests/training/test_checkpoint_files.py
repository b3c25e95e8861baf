"""Checkpoints that several processes wrote, for any other number of them; folders seen late."""

import re
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import job
from helpers.ranks import run_ranks, several

from slide.distributed import Group, ShardedNetwork
from slide.optim import RowSparseAdam
from slide.sampling import FullSampler
from slide.training import checkpoint
from slide.training.checkpoint import (
    CHECKPOINT,
    Checkpoint,
    assembled,
    load_network_state,
    read_states,
    rows_in,
    same_rows,
    state_for,
)
from slide.training.monitor import Counters
from slide.utils import run_folders, tensor_folder
from slide.utils.tensor_folder import write_file, write_list

PROCESSES = """
from slide.utils import run_folders
from slide.training import checkpoint as module
from slide.training.monitor import Counters
FOLDER = pathlib.Path("RUNS")

def make(group):
    network = ShardedNetwork(30, [4], 20, FullSampler, group)
    return module.Checkpoint(
        FOLDER, network, RowSparseAdam(network.parameters()), keep=2, group=group
    )

def refusal(checkpoint):
    try:
        checkpoint.found()
    except ValueError as error:
        return str(error)

"""
STALE = """
def work(group):
    if group.size == 1:
        return None
    checkpoint, found = make(group), []
    found.append(checkpoint.found())
    for step in (3, 7):
        checkpoint.write(Counters(step=step))
    if group.rank:  # It sees the folder as it was before the second checkpoint.
        whole = module.find_folders
        module.find_folders = lambda parent: whole(parent)[:1]
    found += [checkpoint.found(), checkpoint.read().step]
    run_folders.SEEN_AFTER = 0.1
    if group.rank:
        checkpoint.run = FOLDER / "elsewhere"
    found.append(refusal(checkpoint))
    return found
"""
SLOW = """
found, clear = [], module.clear_unfinished

def clear_late(parent):
    time.sleep(0.3)
    found.append([path.name for path in parent.glob("*.tmp")])
    clear(parent)

def work(group):
    if group.size == 1:
        return None
    module.clear_unfinished = clear_late
    make(group).write(Counters(step=3))
    return found
"""
PATIENT = """
def work(group):
    if group.size == 1:
        return None
    group.patient = Group()
    checkpoint = make(group)
    checkpoint.write(Counters(step=3))
    written = dict(group.calls)
    module.read_states(module.last_checkpoint(FOLDER), None, group)
    return written, dict(group.calls), dict(group.patient.calls)
"""


def of_two(code, folder):
    """What two processes return."""
    (folder / "run").mkdir(exist_ok=True)
    return run_ranks(PROCESSES.replace("RUNS", str(folder / "run")) + code, folder, 2)[2]


@several
def test_all_processes_read_the_checkpoint_that_the_first_one_sees(tmp_path):
    for none, there, step, unseen in of_two(STALE, tmp_path):
        assert (none, there, step) == (False, True, 7)
        assert unseen.startswith("rank 1 cannot see ")
        assert "from which rank 0 goes on" in unseen


@several
def test_what_is_left_is_removed_before_the_others_write(tmp_path):
    left = tmp_path / "run/checkpoints/1-step-2.tmp"
    left.mkdir(parents=True)
    assert of_two(SLOW, tmp_path) == [[[left.name], []], []]
    assert (left.parent / "1-step-3/rank-1.safetensors").exists()


@several
def test_who_writes_or_reads_longer_is_waited_for(tmp_path):
    """The only wait with a bound is that for the decision whether there is anything to write."""
    for written, read, patient in of_two(PATIENT, tmp_path):
        assert written == read == {"all_gather": 2}
        assert patient["barrier"] == 1
        assert patient["all_gather"] >= 2 * (1 + 1 + 2 + 1 + 1)


def test_a_checkpoint_of_other_versions(tmp_path, monkeypatch, capsys):
    now, data = tensor_folder.versions(), job.make_data(tmp_path)
    job.make_trainer(tmp_path, data, max_steps=1).fit()
    own = job.idle_trainer(tmp_path, data, max_steps=1)
    own.checkpoint.read()
    assert "written by" not in capsys.readouterr().err
    monkeypatch.setattr(checkpoint, "versions", lambda: now | {"torch": "9.1", "slide": "7"})
    assert own.checkpoint.read().step == 1
    said = f"written by slide {now['slide']}, and not 7; torch {now['torch']}, and not 9.1: "
    assert said in capsys.readouterr().err


def test_a_file_that_comes_in_sight_late(tmp_path, monkeypatch):
    writer = threading.Timer(0.3, (tmp_path / "file").touch)
    writer.start()
    assert run_folders.comes_in_sight(tmp_path / "file")
    writer.join()
    monkeypatch.setattr(run_folders, "SEEN_AFTER", 0.1)
    assert not run_folders.comes_in_sight(tmp_path / "a/b/missing")


SIZES = {"first": 7, "output": 5}
NAMES = ["output.weight", "output.bias", "first.weight", "first.bias"]


def deal(size, seed):
    """The ids of the rows of each process."""
    rng, found = np.random.default_rng(seed), [{} for _ in range(size)]
    for layer, rows in SIZES.items():
        owner = rng.permutation(np.arange(rows) % size)
        for rank in range(size):
            found[rank][layer] = np.flatnonzero(owner == rank)
    return found


def dealt(parts, own):
    """The state of a process that owns these rows."""
    network, optimizer = assembled(parts, own, SIZES, NAMES)
    return {"rows": own, "network": network, "optimizer": optimizer}


def make_parts(size):
    """The states of a network and its optimizer, and the parts that processes would write."""
    shapes = {"output.weight": (5, 3), "output.bias": (5,), "first.weight": (7, 3)}
    network = {name: torch.randn(shape) for name, shape in shapes.items()}
    network |= {"first.bias": torch.randn(3), "hidden.0.weight": torch.randn(3, 3)}
    network["output._extra_state"] = {"samples": 9, "proposer": {"codes": torch.ones(5)}}
    moments = {
        number: {"step": 4, "exp_avg": torch.randn_like(network[name]), "exp_avg_sq": None}
        for number, name in enumerate(NAMES)
    }
    optimizer = {"state": moments, "param_groups": [{"lr": 0.1}]}
    one = [{"network": network, "optimizer": optimizer}]
    parts = [dealt(one, own) for own in deal(size, 0)]
    return network, optimizer, parts


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 1), (4, 2)])
def test_rows_and_moments_come_along_exactly(before, after):
    network, optimizer, parts = make_parts(before)
    again = [dealt(parts, own) for own in deal(after, 1)]
    # Counters come along, and an index does not.
    assert again[0]["network"]["output._extra_state"] == {"samples": 9, "proposer": {}}
    found, moments = assembled(again, None, SIZES, NAMES)
    for name, weight in network.items():
        if torch.is_tensor(weight):
            assert torch.equal(found[name], weight), name
    for number, state in optimizer["state"].items():
        assert torch.equal(moments["state"][number]["exp_avg"], state["exp_avg"])
        assert moments["state"][number]["step"] == 4
    assert moments["param_groups"] == optimizer["param_groups"]


def test_a_part_without_gradients_has_zeros():
    *_, parts = make_parts(2)
    del parts[0]["optimizer"]["state"][0]
    _, moments = assembled(parts, None, SIZES, NAMES)
    own = parts[0]["rows"]["output"]
    assert not moments["state"][0]["exp_avg"][own].any()
    assert moments["state"][0]["exp_avg"].abs().sum(1).count_nonzero() == 5 - len(own)


def test_which_part_has_the_same_rows_and_which_are_missing():
    *_, (one, other) = make_parts(2)
    assert same_rows(rows_in(one), one["rows"])
    assert not same_rows(rows_in(one), other["rows"])
    assert not same_rows(rows_in(one), None)
    assert same_rows(rows_in({}), None)
    with pytest.raises(KeyError, match="rows of the layer"):
        assembled([one], None, SIZES, NAMES)


def test_a_row_of_two_parts_does_not_stand_for_one_of_none():
    """Their number is right, and the rows of no part were zeros."""
    *_, (one, other) = make_parts(2)
    count = len(other["rows"]["output"])
    again = other | {"rows": other["rows"] | {"output": one["rows"]["output"][:count]}}
    with pytest.raises(KeyError, match="rows of the layer output"):
        assembled([one, again], None, SIZES, NAMES)


def own_pages(path):
    """The share of a file that this process has mapped and touched."""
    touched, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            touched += 1024 * int(line.split()[1])
    return touched / path.stat().st_size


def pair():
    """Two groups of which each is one process of two, which hears from itself alone."""
    for rank in range(2):
        group = Group.alone()
        group.rank, group.size = rank, 2
        group.gather = lambda value: [value] * 2
        yield group


def write_parts(run, networks, steps):
    """The folder of a checkpoint after three steps, and the steps that its parts name."""
    folder, values, written = run / "checkpoints/1-step-3", [], []
    folder.mkdir(parents=True)
    for rank, (network, step) in enumerate(zip(networks, steps, strict=True)):
        part = Checkpoint(run, network, RowSparseAdam(network.parameters()))
        own, packed = part._packed(Counters(step=step))
        tensors = {name: each for file in packed.values() for name, each in file.items()}
        written.append(write_file(folder, f"rank-{rank}", tensors))
        values.append(own)
    write_list(CHECKPOINT, folder, {"run": {}, "parts": values}, written)
    return folder


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"parts": {}}, "parts must be a list of objects, not {}"),
        ({"parts": [1]}, r"parts must be a list of objects, not \[1\]"),
        ({"state": []}, "state must be an object"),
    ],
)
def test_parts_that_are_none(tmp_path, parts, said):
    folder = tmp_path / "run/checkpoints/1-step-3"
    folder.mkdir(parents=True)
    write_list(CHECKPOINT, folder, {"run": {}, **parts}, [])
    with pytest.raises(ValueError, match=f"1-step-3 is damaged: {said}"):
        read_states(folder)


@pytest.mark.parametrize("steps", [(3, 3), (3, 7), (7, 7)])
def test_a_part_of_another_step_is_refused(tmp_path, steps):
    """As of a longer run, whose parts have the same rows."""
    run = tmp_path / "run"
    write_parts(run, [ShardedNetwork(30, [4], 20, FullSampler, group) for group in pair()], steps)
    network = ShardedNetwork(30, [4], 20, FullSampler, Group.alone())
    own = Checkpoint(run, network, RowSparseAdam(network.parameters()))
    if steps == (3, 3):
        assert own.read() == Counters(step=3)
        return
    with pytest.raises(ValueError, match=r"1-step-3/checkpoint\.json is damaged: step must be 3"):
        own.read()


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_each_process_reads_its_own_part(tmp_path, monkeypatch):
    """Of what both wrote, each hashes and touches one file, beside the ids of rows."""
    hashed = []
    networks = [ShardedNetwork(20_000, [64], 900, FullSampler, group) for group in pair()]
    folder = write_parts(tmp_path / "run", networks, (3, 3))
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
