"""The guard against slower code: it works, and its table marks what is slower."""

import importlib
import json
from pathlib import Path

import pytest
from helpers import job

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
    with job.global_state_put_back():
        guard.main()
        rows = json.loads((tmp_path / "guard.json").read_text())["rows"]
        for row in rows:  # An older commit was twice as fast.
            row |= {"commit": "old", "ratio": row["ratio"] / 1e3, "committed": "2000-01-01"}
        (tmp_path / "guard.json").write_text(json.dumps({"rows": rows}))
        capsys.readouterr()
        guard.main()
    said = capsys.readouterr().out
    found = json.loads((tmp_path / "guard.json").read_text())["rows"]
    assert len(found) == 2 * len(rows) == 12
    assert said.count("SLOWER") == 6
    text = (tmp_path / "guard.md").read_text()
    old, new = (line for line in text.splitlines() if line.startswith("| 2"))
    assert "| old |" in old
    assert new.count("**") == 12
    assert min(row["product_ms"] for row in found) > 0


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
