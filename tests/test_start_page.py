"""The benchmark of the start: the parts of a start add up, and the page says what it found."""

import importlib
import json
import time
from pathlib import Path

import pytest
from helpers import job

FOLDER = Path(__file__).parent / "benchmarks"


@pytest.fixture(scope="module")
def start():
    """The program, which imports its neighbours by their plain names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield importlib.import_module("start")


@pytest.mark.compiled_only
def test_the_parts_of_a_start_add_up(start, tmp_path):
    began = time.time()
    with job.global_state_put_back():
        found = start.run(began, job.tiny(tmp_path))
    assert tuple(found["parts"]) == start.PARTS
    assert sum(found["parts"].values()) == pytest.approx(found["seconds"], abs=1e-4)
    assert min(found["parts"].values()) >= 0
    assert found["parts"]["first step"] > 0
    assert found["compile_seconds"] >= 0


def test_the_page_has_the_medians_and_marks_what_is_missed(start, monkeypatch, tmp_path):
    runs = iter([(20.0, 9.0), (2.0, 0.0), (5.0, 0.0), (4.0, 0.0)])

    def run(overrides, kernels):
        seconds, compiling = next(runs)
        parts = dict.fromkeys(start.PARTS, 0.5) | {"first step": seconds - 2.5}
        return {"parts": parts, "seconds": seconds, "compile_seconds": compiling}

    monkeypatch.setattr(start, "in_own_process", run)
    words = [*job.tiny(tmp_path), "--repeats", "3", "--results", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["start.py", *words])
    with job.global_state_put_back():
        start.main()
    rows = json.loads((tmp_path / "start.json").read_text())["rows"]
    assert [row["seconds"] for row in rows] == [20.0, 4.0]
    text = (tmp_path / "start.md").read_text()
    assert "| start to the end of the first step, s | at most 3 | 4.00 | **missed** |" in text
    assert "| importing torch and slide, s | at most 0.8 | 1.00 | **missed** |" in text
    assert str(tmp_path) not in text
    assert "| compiling, s | at most 0 | 0.00 | met |" in text
