"""Two processes in one folder of a run: the second one is refused."""

import subprocess
import sys

import pytest
from helpers import job

HOLD = """
import sys
from pathlib import Path
from slide.utils.run_folders import hold_folder
hold_folder(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def without_lock(files):
    return {path: content for path, content in files.items() if path.name != "run.lock"}


@pytest.fixture
def holder(tmp_path):
    """A process that runs in ``run``; it ends by itself with its standard input."""
    (tmp_path / "run").mkdir(exist_ok=True)
    command = [sys.executable, "-W", "ignore", "-c", HOLD, str(tmp_path / "run")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=job.ROOT, **pipes)
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.communicate(timeout=60)


@pytest.mark.parametrize("resumed", [False, True])
def test_the_second_one_is_refused(tmp_path, resumed, request):
    more = ["trainer.max_steps=2", "ranker=none"]
    arguments = job.tiny(tmp_path, *more)
    run = tmp_path / "run"
    if resumed:
        code = "import sys; from helpers import job; job.main(*sys.argv[1:])"
        command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
        subprocess.run(command, cwd=job.ROOT / "tests", check=True, timeout=200)
        arguments = [f"resume={run}", "trainer.max_steps=3"]
    before = job.files_of(run) if resumed else {}
    holder = request.getfixturevalue("holder")
    said = job.failure(*arguments)
    assert said == f"error: another process is running in {run}: wait until it ends"
    assert without_lock(job.files_of(run)) == without_lock(before)
    holder.kill()
    holder.wait(timeout=60)
    job.main(*arguments)
    assert (run / "summary.json").exists()


def test_one_process_may_run_twice(tmp_path):
    job.main(*job.tiny(tmp_path, "trainer.max_steps=1", "ranker=none"))
    for steps in (2, 3):
        job.main(f"resume={tmp_path}/run", f"trainer.max_steps={steps}")
