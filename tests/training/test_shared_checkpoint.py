"""Checkpoints that others wrote: several processes, other versions; and folders seen late."""

import threading

from helpers import job
from helpers.ranks import run_ranks, several

from slide import files, tensor_folder
from slide.training import shared_checkpoint

STALE = """
import pathlib
from slide import FullSampler, RowSparseAdam, files
from slide.distributed import ShardedNetwork
from slide.training import checkpoint as module
from slide.training.checkpoint import Checkpoint
from slide.training.checkpoint_files import CHECKPOINTS, find_checkpoints
from slide.training.monitor import Counters
FOLDER = pathlib.Path("RUNS")

def work(group):
    if group.size == 1:
        return None
    network = ShardedNetwork(30, [4], 20, FullSampler, group)
    parts = network, RowSparseAdam(network.parameters()), None, None, 2, group
    checkpoint, found = Checkpoint(FOLDER, *parts), []
    found.append(checkpoint.found())
    for step in (3, 7):
        checkpoint.write(Counters(step=step))
    if group.rank:  # It sees the folder as it was before the second checkpoint.
        module.last_checkpoint = lambda run: find_checkpoints(run)[0]
    found += [checkpoint.found(), checkpoint.read().step]
    files.SEEN_AFTER = 0.1
    if group.rank:
        checkpoint.run = FOLDER / "elsewhere"
    try:
        checkpoint.found()
    except ValueError as error:
        found.append(str(error))
    if not group.rank:  # Now there is none.
        (FOLDER / CHECKPOINTS).rename(FOLDER / "gone")
        (FOLDER / "checkpoint.pt").touch()
    try:
        checkpoint.found()
    except ValueError as error:
        found.append(str(error))
    return found
"""


@several
def test_all_processes_read_the_checkpoint_that_the_first_one_sees(tmp_path):
    (tmp_path / "run").mkdir()
    found = run_ranks(STALE.replace("RUNS", str(tmp_path / "run")), tmp_path, 2)[2]
    for none, there, step, unseen, old in found:
        assert (none, there, step) == (False, True, 7)
        assert unseen.startswith("rank 1 cannot see ")
        assert "from which rank 0 goes on" in unseen
        assert "is a checkpoint of an earlier slide" in old


SLOW = """
import pathlib, time
from slide import FullSampler, RowSparseAdam
from slide.distributed import ShardedNetwork
from slide.training import checkpoint as module
from slide.training.checkpoint_files import CHECKPOINTS
from slide.training.monitor import Counters
FOLDER, found = pathlib.Path("RUNS"), []
clear = module.clear_unfinished

def clear_late(run):
    time.sleep(0.3)
    found.append([path.name for path in (run / CHECKPOINTS).glob("*.tmp")])
    clear(run)

def work(group):
    if group.size == 1:
        return None
    module.clear_unfinished = clear_late
    network = ShardedNetwork(30, [4], 20, FullSampler, group)
    parts = network, RowSparseAdam(network.parameters()), None, None, 2, group
    module.Checkpoint(FOLDER, *parts).write(Counters(step=3))
    return found
"""


@several
def test_what_is_left_is_removed_before_the_others_write(tmp_path):
    left = tmp_path / "run/checkpoints/1-step-2.tmp"
    left.mkdir(parents=True)
    found = run_ranks(SLOW.replace("RUNS", str(tmp_path / "run")), tmp_path, 2)[2]
    assert found == [[[left.name], []], []]
    assert (left.parent / "1-step-3/rank-1.safetensors").exists()


def test_a_checkpoint_of_other_versions(tmp_path, monkeypatch, capsys):
    now = tensor_folder.versions()
    job.make_trainer(tmp_path, job.make_data(tmp_path), max_steps=1).fit()
    own = job.make_trainer(tmp_path, job.make_data(tmp_path), max_steps=1)
    own.monitor.close()
    own.checkpoint.read()
    assert "written by" not in capsys.readouterr().err
    monkeypatch.setattr(shared_checkpoint, "versions", lambda: now | {"torch": "9.1", "slide": "7"})
    assert own.checkpoint.read().step == 1
    said = capsys.readouterr().err
    assert (
        f"written by slide {now['slide']}, and not 7; torch {now['torch']}, and not 9.1: " in said
    )


PATIENT = """
import pathlib
from slide import FullSampler, RowSparseAdam
from slide.distributed import Group, ShardedNetwork
from slide.training.checkpoint import Checkpoint
from slide.training.checkpoint_files import last_checkpoint
from slide.training.monitor import Counters
from slide.training.checkpoint_files import read_states

def work(group):
    if group.size == 1:
        return None
    group.patient = Group()
    network = ShardedNetwork(30, [4], 20, FullSampler, group)
    parts = network, RowSparseAdam(network.parameters()), None, None, 2, group
    checkpoint, found = Checkpoint(pathlib.Path("RUNS"), *parts), []
    checkpoint.write(Counters(step=3))
    found.append(dict(group.calls))
    read_states(last_checkpoint(checkpoint.run), None, group)
    return [*found, dict(group.calls), dict(group.patient.calls)]
"""


@several
def test_who_writes_or_reads_longer_is_waited_for(tmp_path):
    """The only wait with a bound is that for the decision whether there is anything to write."""
    (tmp_path / "run").mkdir()
    for written, read, patient in run_ranks(
        PATIENT.replace("RUNS", str(tmp_path / "run")), tmp_path, 2
    )[2]:
        assert written == read == {"all_gather": 2}
        assert patient["barrier"] == 1
        assert patient["all_gather"] >= 2 * (1 + 1 + 2 + 1 + 1)


def test_a_file_that_comes_in_sight_late(tmp_path, monkeypatch):
    writer = threading.Timer(0.3, (tmp_path / "file").touch)
    writer.start()
    assert files.comes_in_sight(tmp_path / "file")
    writer.join()
    monkeypatch.setattr(files, "SEEN_AFTER", 0.1)
    assert not files.comes_in_sight(tmp_path / "a/b/missing")
