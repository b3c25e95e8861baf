"""Run folders that somebody edited, with hashes that fit: a sentence, or a run that goes on."""

import json
import re

import pytest
from helpers.damage import REPEAT, SEED
from helpers.programs import run_program
from helpers.run_edits import KINDS

pytestmark = pytest.mark.compiled_only
EDITS = 500
# Counts that may be any: another run may have made them.
COUNTS = re.compile(
    r"\.step$|_extra_state\.|samples|_total|_seconds|:state\.plan|^best\.json:score"
)


def fault_of(what, how, said):
    """What is wrong with what came of an edit, if anything is."""
    if said == "other":  # Values that are as good as those before, or another configuration.
        whose = what.startswith("config.yaml:") or COUNTS.search(what)
        return "" if whose or how.endswith("in range") else f"{what}, {how}: other weights"
    if said == "same":
        return ""
    named = what.startswith("config.yaml:") or re.search(
        r"/(checkpoints/1-step-6|best/1-step-5)", said
    )
    if "\n" in said or len(said) > 500 or not said.startswith("error: ") or not named:
        return f"{what}, {how}: {said}"
    return ""


def test_each_edit_is_refused_or_harmless(tmp_path):
    each = max(10, int(EDITS * REPEAT) // len(KINDS) + 1)
    words = ["-m", "helpers.run_edits", tmp_path, each, SEED, *KINDS]
    one_thread = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    done = run_program(*words, timeout=1200, **one_thread)
    assert done.returncode == 0, f"after {done.stdout.count(chr(10))} edits: {done.stderr[-3000:]}"
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == each * len(KINDS) + each // 4  # One kind has best weights.
    assert not [fault for each in found if (fault := fault_of(*each))]
    assert sum(said not in ("same", "other") for _, _, said in found) > len(found) / 4
