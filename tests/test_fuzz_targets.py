"""The targets of the fuzzer, which runs apart: sound files are taken, and damage is named."""

import importlib
from pathlib import Path

import pytest
import yaml
from fuzz import TARGETS
from helpers import damage


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_takes_sound_files_and_names_damage(tmp_path, name):
    target = importlib.import_module(f"fuzz.{name}")
    seeds = target.seeds(tmp_path)
    assert target.check(seeds[0], tmp_path)
    for seed in seeds:
        target.check(seed, tmp_path)
        target.check(damage.damage(damage.rng_of(name), seed, damage.BINARY), tmp_path)


def test_each_target_runs_at_night():
    flow = Path(__file__).parents[1] / ".github/workflows/fuzz.yml"
    matrix = yaml.safe_load(flow.read_text())["jobs"]["reader"]["strategy"]["matrix"]
    assert matrix == {"target": list(TARGETS)}
