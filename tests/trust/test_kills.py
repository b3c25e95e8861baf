"""Runs that are killed at random moments end as others do; ``SLIDE_KILLS=100`` kills more often."""

import os

import pytest
from helpers.programs import output_of

KILLS = os.environ.get("SLIDE_KILLS", "3")
PHASES = "sweep, model", "partial_fit", "save, the moves"


PROGRAM = """
import sys
sys.path.append("benchmarks")
import trust
from helpers import limits

limits.wait_for_no_disk()
limits.grow_few_trees()
trust.main()
"""


@pytest.fixture(scope="module")
def said():
    """What the program of the page says of some kills and phases; it must end well."""
    words = ["--no-page", "--kills", KILLS, "--seed", "1", "--phases", *PHASES]
    return output_of("-c", PROGRAM, *words, timeout=None)


@pytest.mark.compiled_only
def test_killed_runs_end_as_others_do(said):
    assert f"{KILLS} kills" in said


@pytest.mark.compiled_only
def test_what_is_left_where_models_are_written(said):
    """Of a run, of a sweep, of a model that learns on; without names ``--phases`` has them all."""
    assert [said.count(name) for name in ("SIGKILL", "SIGTERM")] == [6, 6]
