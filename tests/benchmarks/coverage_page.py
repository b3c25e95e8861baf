"""Lines and branches of `slide/` that its tests reach, room by room.

    python tests/benchmarks/coverage_page.py                  # all rooms: an hour of one core
    python tests/benchmarks/coverage_page.py --only kernels --minutes 10

Kernels count as plain Python, so all tests run without compilation. The tests of a room are the
folder of its name and those of `MORE`; what other tests reach by the way does not count. A room
whose code and tests did not change since it was measured is left as it is (rows.py). Processes that
a test starts count, too, unless they are killed.

Writes results/coverage.{json,md}.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from report import table
from rows import Row, Store, add_store_options, origin
from train_process import ROOT

# The files of `slide/` that are in no folder.
GROUND = "ground"
# Tests beside those of tests/<room>.
MORE: dict[str, tuple[str, ...]] = {
    GROUND: (
        *(f"test_{name}.py" for name in ("active_set", "bars", "checks", "compare", "compilation")),
        *(f"test_{name}.py" for name in ("edges", "files", "inputs", "limits", "row_gradients")),
        *(f"test_{name}.py" for name in ("runtime", "scratch", "sizes", "states", "testing")),
        *("test_tensor_folder.py", "model/test_names.py", "functional/test_nonzero_rows.py"),
    ),
    "kernels": ("hashing", "data/formats", "data/sources", "ranking", "functional", "optim"),
    "plain": ("functional", "optim", "hashing/test_tables.py", "sampling/test_lsh_proposer.py"),
}
# Their tests train for long, so kernels are compiled there; lines of kernels are the first room's.
COMPILED = ("config", "distributed", "estimator", "model", "predict", "serve", "training", "report")
LONGEST_GAPS = 25


def rooms() -> list[str]:
    """The folders of `slide/`, and the files beside them."""
    found = [path.parent.name for path in (ROOT / "slide").glob("*/__init__.py")]
    return [GROUND, *sorted(found)]


def sources(room: str) -> str:
    """A pattern of the room's files."""
    return "slide/*.py" if room == GROUND else f"slide/{room}/*"


def tests(room: str) -> list[Path]:
    """Files and folders of tests."""
    named = [ROOT / "tests" / each for each in (room, *MORE.get(room, ()))]
    return [path for path in named if path.exists()]


def digest(room: str) -> str:
    """What the room's figures depend on: its code and its tests."""
    paths = sorted((ROOT / "slide").glob("*.py" if room == GROUND else f"{room}/**/*.py"))
    for each in tests(room):
        paths += sorted(each.rglob("*.py")) if each.is_dir() else [each]
    whole = hashlib.sha1()
    for path in paths:
        whole.update(path.read_bytes())
    return whole.hexdigest()[:10]


def measure(room: str, seconds: float) -> Row:
    """Run the tests of a room, each folder and file in a process of its own."""
    cut = []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    if room not in COMPILED:
        environment["NUMBA_DISABLE_JIT"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        data = f"--data-file={folder}/data"
        for each in tests(room):
            command = ["run", data, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(each)]
            try:
                done = _coverage(command, environment, seconds)
            except subprocess.TimeoutExpired:
                cut.append(str(each.relative_to(ROOT)))
                continue
            if done.returncode not in (0, 5):  # 5: no test is left of the file.
                raise SystemExit(f"{each.relative_to(ROOT)} fails:\n{done.stdout[-3000:]}")
        _coverage(["combine", "-q", data], environment).check_returncode()
        report = Path(folder) / "report.json"
        words = ["json", data, "-q", f"--include={sources(room)}", "-o", str(report)]
        _coverage(words, environment).check_returncode()
        found = json.loads(report.read_text())
    return figures(found) | {"cut": cut}


def _coverage(words: list[str], environment: dict[str, str], seconds: float | None = None) -> Any:
    command = [sys.executable, "-m", "coverage", *words]
    where: dict[str, Any] = {"cwd": ROOT, "env": environment, "text": True}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, **where, **output) as process:
        try:
            told, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # Its figures so far are kept.
            process.communicate()
            raise
    return subprocess.CompletedProcess(command, process.returncode, told)


def figures(found: dict[str, Any]) -> Row:
    """Numbers of a report of coverage.py; what was not reached: 3-7 are lines, 9>12 a branch."""
    totals, gaps = found["totals"], {}
    for name, each in found["files"].items():
        missing = each["missing_lines"]
        parts = [f"{begin}-{end}" for begin, end in spans(missing)]
        parts += [
            f"{begin}>{max(end, 0) or 'end'}"
            for begin, end in each["missing_branches"]
            if begin not in missing and end not in missing
        ]
        if parts:
            gaps[name] = " ".join(parts)
    return {
        "lines": totals["num_statements"],
        "lines_reached": totals["covered_lines"],
        "branches": totals["num_branches"],
        "branches_reached": totals["covered_branches"],
        "gaps": gaps,
    }


def spans(lines: Iterable[int]) -> list[list[int]]:
    """Line numbers as pairs of first and last; up to two lines without a statement are skipped."""
    found: list[list[int]] = []
    for line in sorted(lines):
        if found and line - found[-1][1] <= 3:
            found[-1][1] = line
        else:
            found.append([line, line])
    return found


def longest(rows: list[Row]) -> list[tuple[int, str, str]]:
    """Pieces that no test reaches: size, file and lines, the longest first."""
    found = []
    for row in rows:
        for name, text in row["gaps"].items():
            for part in (part for part in text.split() if "-" in part):
                begin, end = map(int, part.split("-"))
                found.append((end - begin + 1, name, part if end > begin else str(begin)))
    return sorted(found, key=lambda each: (-each[0], each[1]))


def share(rows: list[Row]) -> str:
    """Lines and branches that are reached, in percent of both, as coverage.py counts."""
    reached = sum(row["lines_reached"] + row["branches_reached"] for row in rows)
    return f"{100 * reached / max(sum(row['lines'] + row['branches'] for row in rows), 1):.1f}"


def page(found: dict[str, Any]) -> str:
    """The generated page."""
    rows = found["rows"]
    kinds = ("lines", "branches")
    cells = [
        {"room": row["room"]}
        | {kind: f"{row[f'{kind}_reached']:,} of {row[kind]:,}" for kind in kinds}
        | {"reached, %": share([row])}
        for row in rows
    ]
    sums = {
        kind: f"{sum(row[f'{kind}_reached'] for row in rows):,} of "
        f"{sum(row[kind] for row in rows):,}"
        for kind in kinds
    }
    cells.append({"room": "all of these"} | sums | {"reached, %": share(rows)})
    gaps = longest(rows)
    left = [name for name in rooms() if name not in {row["room"] for row in rows}]
    cut = [each for row in rows for each in row["cut"]]
    text = (
        "# Lines and branches that tests reach\n\n"
        "Kernels count as plain Python. The tests of a room are those of its folder, and a few "
        "that the program names; what other tests reach by the way does not count.\n\n"
        f"{table(cells)}\n"
        f"Not measured yet: {', '.join(left) or 'none'}. "
        f"Tests that were stopped for their time: {', '.join(cut) or 'none'}.\n\n"
        f"The longest pieces that no test of the room reaches, of {len(gaps)}:\n\n"
    )
    for _, name, piece in gaps[:LONGEST_GAPS]:
        text += f"* `{name}`: {piece}\n"
    return text + origin(rows, "room")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=rooms(), choices=rooms(), metavar="ROOM")
    parser.add_argument("--longest", type=float, default=600, help="seconds of a folder of tests")
    add_store_options(parser)
    given = parser.parse_args()
    store = Store("coverage", ("room",), page, given, program="coverage_page")
    if given.render:
        store.render()
        return
    for room in given.only:
        code = digest(room)
        for case in store.missing([{"room": room}], code):
            row = measure(room, given.longest)
            store.add([case | row], code)
    store.report()


if __name__ == "__main__":
    main()
