"""The pages on lines that tests reach, and on small changes that they notice."""

import ast
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
    names = ("coverage_page", "mutants", "mutants_page", "sharing", "soak", "versions")
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


def test_small_changes(bench):
    source = "def f(x):\n    return x + 1 if x >= 0 else 'no' + 'thing'\n"
    found = {(line, change) for line, change, _ in bench.mutants.mutants(source)}
    whole = "x + 1 if x >= 0 else 'no' + 'thing'"
    assert found == {
        (2, f"{whole} -> {whole.replace('x >= 0', 'not x >= 0')}"),
        (2, "x + 1 -> x - 1"),
        (2, "x >= 0 -> x > 0"),
        (2, "1 -> 2"),
        (2, "0 -> 1"),
    }
    for _, _, text in bench.mutants.mutants(source):
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(source))


def test_survivors_are_judged(bench, tmp_path, monkeypatch):
    judged = {"kernels/adam": {"a = 1": {"1 -> 2": "equivalent: it is not read"}}}
    monkeypatch.setattr(bench.mutants_page, "JUDGED", tmp_path / "judged.json")
    (tmp_path / "judged.json").write_text(json.dumps(judged))
    survivors = [{"code": "a = 1", "change": "1 -> 2"}, {"code": "b = 1", "change": "1 -> 2"}]
    row = {"module": "kernels/adam", "mutants": 9, "tried": 5, "survivors": survivors} | STAMP
    page = bench.mutants_page.page({"rows": [row]})
    assert "Of 5 small changes of the code, 60 % are noticed" in page
    assert "of those that change a result, 75 %" in page
    assert "* `kernels/adam`, `a = 1`: `1 -> 2`; equivalent: it is not read\n" in page
    assert "* `kernels/adam`, `b = 1`: `1 -> 2`; open\n" in page
    (tmp_path / "judged.json").write_text(json.dumps(judged).replace("equivalent", "fine"))
    with pytest.raises(ValueError, match="'fine' is none of equivalent, speed"):
        bench.mutants_page.page({"rows": [row]})


def test_all_modules_have_been_tried(bench):
    """All in ``MODULES``, each survivor has a verdict, and a share of 85 % is noticed."""
    rows = published("mutants")["rows"]
    assert {row["module"] for row in rows} == set(bench.mutants.MODULES)
    judged = json.loads(bench.mutants_page.JUDGED.read_text())
    for row in rows:
        for survivor in row["survivors"]:
            word, _ = bench.mutants_page.verdict(judged, row["module"], survivor)
            assert word not in ("open", "gap"), (row["module"], survivor)
    left = sum(len(row["survivors"]) for row in rows)
    assert 1 - left / sum(row["tried"] for row in rows) >= 0.85


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
