"""Runs on a small disk that gets full: a sentence without a traceback, and checkpoints stay."""

import itertools
import json
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
from helpers import job
from helpers.programs import run_program

from slide.config import command
from slide.training import stopping, trainer
from slide.training.monitor import Monitor
from slide.training.stopping import HeldOutSamples

PAGE = 4096
pytestmark = pytest.mark.compiled_only  # Compiled kernels are written to files, too.


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """The folder of a disk of 2 MiB; also, no thread may end with an error."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    words = [mount, "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if mount is None or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("a disk can be mounted by root only, on Linux")
    failed = []
    monkeypatch.setattr(threading, "excepthook", failed.append)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)
    assert not failed


def fill(folder, but=0):
    """Fill the disk, except for ``but`` bytes."""
    free = shutil.disk_usage(folder).free - but
    number = len(list(folder.glob("filler*")))
    (folder / f"filler{number}").write_bytes(bytes(free))


def empty(folder):
    for path in folder.glob("filler*"):
        path.unlink()


@pytest.fixture
def words(disk, tmp_path):
    """Of a run on the disk, whose cache lies elsewhere."""
    words = job.tiny(disk, "ranker=none", "network.hidden=[128]", "trainer.log_every=1")
    return [*words, f"dataset.cache={tmp_path}/cache"]


@pytest.fixture
def finished(disk, words):
    """The folder of a run of two steps."""
    job.main(*words, "trainer.max_steps=2")
    return disk / "run"


def fill_before(monkeypatch, holder, name, disk):
    """Fill the disk when a function is called."""
    whole = getattr(holder, name)

    def call(*arguments, **more):
        fill(disk)
        return whole(*arguments, **more)

    monkeypatch.setattr(holder, name, call)


def goes_on(run, disk, before):
    """The checkpoints are those from before; with room the run goes on from the last one."""
    assert job.files_of(run / "checkpoints") == before
    empty(disk)
    job.main(f"resume={run}", "trainer.max_steps=4")
    assert job.checkpoint(run)["step"] == 4


def test_before_the_first_line_of_the_log(disk, finished):
    before = job.files_of(finished / "checkpoints")
    fill(disk)
    said = job.failure(f"resume={finished}", "trainer.max_steps=4")
    assert said.startswith("error: cannot write ")
    assert "No space left on device" in said
    goes_on(finished, disk, before)


def fill_page(monitor, file):
    """Write lines or events until the last page of a file of the log has no room for another."""
    if file == "metrics.jsonl":
        room = -monitor._path.stat().st_size % PAGE
        with monitor._path.open("a") as out:
            out.write(json.dumps({"step": 1, "note": "x" * (room - 40)}) + "\n")
        return
    path = max(monitor._folder.glob(f"{file}*"), key=lambda path: path.stat().st_mtime_ns)
    while -path.stat().st_size % PAGE > 60:
        monitor._events.write(step=1)


@pytest.mark.parametrize("file", ["metrics.jsonl", "events.out.tfevents"])
def test_the_log(disk, finished, monkeypatch, file):
    """The disk gives whole pages, so one file may be full while the other is not."""
    before, whole = job.files_of(finished / "checkpoints"), Monitor.write

    def write(self, step, scalars):
        if not list(disk.glob("filler*")):
            fill_page(self, file)
            fill(disk)
        whole(self, step, scalars)

    with monkeypatch.context() as patched:
        patched.setattr(Monitor, "write", write)
        said = job.failure(f"resume={finished}", "trainer.max_steps=4")
    assert said.startswith(f"error: cannot write the log {finished}/{file}")
    assert said.endswith("No space left on device; checkpoints are kept")
    goes_on(finished, disk, before)


@pytest.mark.parametrize("step", [1, 3])
def test_the_best_weights(disk, words, monkeypatch, step):
    """Before there are any, and in the place of others."""
    run, more = disk / "run", ("trainer.patience=5", "trainer.checkpoint_every=1")
    monkeypatch.setattr(stopping, "evaluation_interval", lambda steps: 1)
    scores = itertools.count(0.1, 0.1)
    monkeypatch.setattr(HeldOutSamples, "precision", lambda *words: next(scores))
    if step == 3:
        job.main(*words, *more, "trainer.max_steps=2")
    before, best = (job.files_of(run / name) for name in ("checkpoints", "best"))
    with monkeypatch.context() as patched:
        fill_before(patched, stopping, "network_files", disk)
        start = [f"resume={run}"] if step == 3 else [*words, *more]
        said = job.failure(*start, "trainer.max_steps=4")
    kept = f"{run}/best/2-step-2 is kept" if step == 3 else "there is no best network before it"
    assert said.startswith(f"error: cannot write the best network {run}/best/{step}-step-{step}: ")
    assert said.endswith(f"; {kept}")
    assert job.files_of(run / "best") == best
    if step == 3:
        goes_on(run, disk, before)


LAST = {
    "summary": (trainer, "write_summary", "cannot write {run}/summary.json: "),
    "model": (command, "write_run_model", "cannot write {run}/"),
    "report": (command, "write_run_report", "cannot write {run}/report.html: "),
}


@pytest.mark.parametrize("part", LAST)
def test_after_the_last_step(disk, words, monkeypatch, part):
    """Resumed, the run writes what was missing."""
    holder, name, expected = LAST[part]
    run, report = disk / "run", f"report={str(part == 'report').lower()}"
    with monkeypatch.context() as patched:
        fill_before(patched, holder, name, disk)
        said = job.failure(*words, "trainer.max_steps=2", report)
    assert said.startswith(f"error: {expected.format(run=run)}")
    assert "No space left on device" in said
    assert len(said.splitlines()) == 1
    assert job.checkpoint(run)["step"] == 2
    empty(disk)
    job.main(f"resume={run}", report)
    written = {"summary.json", "model.json", *(["report.html"] if part == "report" else [])}
    assert written <= {path.name for path in run.iterdir()}
    assert not list(run.glob("*.tmp"))


def test_a_process_of_its_own(disk, words):
    """Nothing but sentences is said, whatever thread writes."""
    fill(disk, but=24 * PAGE)
    done = run_program("train.py", *words, "trainer.checkpoint_every=1")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: cannot write the ")
    assert Path(disk / "run").exists()
