"""Runs that are killed at random moments end as a run that nothing disturbed.

``SLIDE_KILLS=100`` kills more often. `results/trust.md` is made by the same program.
"""

import json
import os
import subprocess
import sys

import pytest
from helpers import job

KILLS = os.environ.get("SLIDE_KILLS", "3")


def test_the_page_of_kills():
    found = json.loads((job.ROOT / "results/trust.json").read_text())
    assert sum(found["kills"]["phases"].values()) >= 100
    assert found["patience"]["chains"] > 0
    assert found["stall"]["bytes"] >= 3e9
    assert found["stall"]["next"] < 2


def said_by(*words):
    """What the program of the page says, which must end well."""
    program = job.ROOT / "tests/benchmarks/trust.py"
    command = [sys.executable, "-W", "ignore", program, *words]
    environment = {**os.environ, "PYTHONPATH": str(job.ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.compiled_only
def test_killed_runs_end_as_others_do():
    assert f"{KILLS} kills" in said_by("--kills", KILLS, "--no-page", "--seed", "1")


@pytest.mark.compiled_only
def test_what_is_left_where_models_are_written():
    """Of a run, of a sweep, of a model that learns on; without names ``--phases`` has them all."""
    said = said_by("--phases", "sweep, model", "partial_fit", "save, the moves")
    assert [said.count(name) for name in ("SIGKILL", "SIGTERM")] == [6, 6]
