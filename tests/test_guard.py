"""The guard against slower code: it works, and its table marks what is slower."""

import importlib
import json
from pathlib import Path

import pytest
from helpers import job

from slide import runtime

FOLDER = Path(__file__).parent / "benchmarks"


@pytest.fixture(scope="module")
def guard():
    """The program, which imports its neighbours by their plain names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield importlib.import_module("guard")


@pytest.mark.compiled_only
def test_it_adds_a_line_for_a_commit(guard, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("sys.argv", ["guard.py", "--quick", "--results", str(tmp_path)])
    cases = [f"step, {case}" for case in guard.STEPS]
    cases += ["rebuild", *(f"prediction, {search}" for search in guard.SEARCHES)]
    with job.global_state_put_back():
        runtime.set_threads(0)
        # An older commit was faster.
        place = {"machine": guard.machine(), "threads": runtime.num_threads()}
        rows = [line("old", "2000-01-01", 1e-6) | place | {"case": case} for case in cases]
        (tmp_path / "guard.json").write_text(json.dumps({"rows": rows}))
        guard.main()
    said = capsys.readouterr().out
    found = json.loads((tmp_path / "guard.json").read_text())["rows"]
    new = [row for row in found if row["commit"] != "old"]
    assert len(found) == 2 * len(new) == 12
    assert sorted(row["case"] for row in new) == sorted(cases)
    assert all(0 < row["range"][0] <= row["ratio"] <= row["range"][1] for row in new)
    assert min(row["ms"] / row["product_ms"] for row in new) > 0
    assert said.count("SLOWER") == 6
    text = (tmp_path / "guard.md").read_text()
    assert "| old |" in text
    assert text.splitlines()[-1].count("**") == 12


def line(commit, committed, ratio, machine="m"):
    stamp = {"machine": machine, "threads": 2, "date": "d", "at": "t", "product_ms": 5.0}
    return {"case": "a", "commit": commit, "committed": committed, "ratio": ratio} | stamp


def test_a_line_is_compared_with_the_median_of_those_before_it_on_its_machine(guard):
    ratios = [1.0, 5.0, 1.1, 1.19, 1.4, 1.0]
    rows = [line(f"c{i}", f"2026-01-0{i + 1}", ratio) for i, ratio in enumerate(ratios)]
    rows.append(line("c9", "2026-02-01", 9.0, machine="another"))
    text = guard.page({"rows": rows[::-1]})
    lines = [row.split(" | ") for row in text.splitlines() if row.startswith("| d ")]
    assert [cells[1] for cells in lines if "**" in cells[2]] == ["c1", "c4"]
    assert text.index("| c0 |") < text.index("| c5 |")
    assert "## another, threads: 2" in text
