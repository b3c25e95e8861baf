"""The pages on what tests reach, on kills, on long runs and on versions."""

import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).parent / "benchmarks"
STAMP = {"date": "2026-01-01", "commit": "c", "code": "d", "machine": "m", "threads": 1}


def published(name):
    """What stands behind a page of results."""
    return json.loads((FOLDER.parents[1] / f"results/{name}.json").read_text())


@pytest.fixture(scope="module")
def bench():
    """The modules of the benchmarks, which import each other by their plain names."""
    names = ("coverage_page", "sharing", "soak", "versions")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})


def test_each_room_has_tests_that_exist(bench):
    for room in bench.coverage_page.rooms():
        pieces = bench.coverage_page.pieces(room)
        assert len(pieces) > 1, room
        assert all(path.exists() for piece in pieces for path in piece.paths), room


def test_what_is_not_reached(bench):
    totals = {"num_statements": 9, "covered_lines": 4, "num_branches": 4, "covered_branches": 2}
    report = {
        "totals": totals,
        "files": {
            "slide/a.py": {
                "missing_lines": [3, 4, 7, 20],
                "missing_branches": [[2, 3], [9, 12], [10, -1]],
            },
            "slide/b.py": {"missing_lines": [], "missing_branches": []},
        },
    }
    row = bench.coverage_page.figures(report)
    assert row["gaps"] == {"slide/a.py": "3-7 20-20 9>12 10>end"}
    assert bench.coverage_page.share([row]) == "46.2"
    assert bench.coverage_page.longest([row]) == [(5, "slide/a.py", "3-7"), (1, "slide/a.py", "20")]
    page = bench.coverage_page.page({"rows": [{"room": "data", "cut": []} | row | STAMP]})
    assert "| all of these | 4 of 9 | 2 of 4 | 46.2 |" in page
    assert "* `slide/a.py`: 3-7\n* `slide/a.py`: 20\n" in page
    assert "Not measured yet: ground, check" in page


def test_the_page_of_kills():
    found = published("trust")
    assert sum(found["kills"]["phases"].values()) >= 100
    assert found["patience"]["chains"] > 0
    assert found["stall"]["bytes"] >= 3e9
    assert found["stall"]["next"] < 2


def test_the_page_of_lines_that_tests_reach(bench):
    """All rooms, and 95 % of lines and branches."""
    rows = published("coverage")["rows"]
    assert {row["room"] for row in rows} == set(bench.coverage_page.rooms())
    assert float(bench.coverage_page.share(rows)) >= 95


def test_the_page_of_a_long_run(bench, monkeypatch):
    """Two hours: memory within 1 %, speed by the gauge within 5 %."""
    found = published("soak")
    assert found["minutes"] >= 120
    assert "TOO MUCH" not in bench.soak.page(found)
    parts = bench.soak.parts(found)
    parts[3]["mib"] *= 1.02
    monkeypatch.setattr(bench.soak, "parts", lambda _: parts)
    assert "TOO MUCH" in bench.soak.page(found)


def test_the_page_of_busy_processes(bench):
    """The default keeps at least the share of its speed that it has of the cores."""
    turns = published("sharing")["turns"]

    def middle(others, figure):
        every = [t[figure] for t in turns if (t["way"], t["others"]) == ("shared", others)]
        return sorted(every)[len(every) // 2]

    for others in (1, 2, 4):
        speed, cores = (middle(others, f) / middle(0, f) for f in ("speed", "cores"))
        assert speed >= 0.9 * cores, others


def test_what_an_interpreter_said(bench):
    said = """== Python 3.12.1, constraints.txt
versions: python 3.12.1, slide 0.1.0, torch 2.13.0, numpy 2.4, numba 0.68, faiss-cpu 1.15
  right  adam (9 trials)
  right  votes (3 trials)
P@1 0.5  P@3 0.25  P@5 0.2  run
"""
    row = bench.versions.found_in(said)
    assert (row["python"], row["kernels"], row["run"]) == ("3.12.1", 2, "P@1 0.5")
    assert row["installed"]["torch"] == "2.13.0"
    page = bench.versions.page({"rows": [row | {"dependencies": "tested"} | STAMP]})
    assert "| 3.12.1 | tested | 2.13.0 | 2.4 | 0.68 | 1.15 | all 2 | P@1 0.5 |" in page
    with pytest.raises(ValueError, match="does not tell all"):
        bench.versions.found_in(said.replace("right", "WRONG"))
