"""Lines and branches of `slide/` that its tests reach, room by room.

    python tests/benchmarks/coverage_page.py                  # all rooms: an hour of one core
    python tests/benchmarks/coverage_page.py --only kernels --minutes 10

Tests run in pieces: the folder of a room, or each of its files. What counts for a room are the
pieces of its name, those of `MORE`, and the edge cases of all rooms; what other tests reach by the
way does not count. Tests of kernels run them as plain Python (`AS_PYTHON`), the others compiled.
Processes that a test starts count, unless they are killed.

A room whose code and tests did not change since it was measured is left as it is (rows.py). A piece
runs once for all rooms: its data stay in .coverage-pieces until the code or its tests change.

Writes results/coverage.{json,md}.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from report import table
from rows import Row, Store, add_store_options, origin
from train_process import ROOT

# The files of `slide/` that are in no folder, and their tests.
GROUND = "ground"
KEPT = ROOT / ".coverage-pieces"
EDGES = ("boundaries", "edges", "repeated_labels")
OF_GROUND = (
    *("active_set", "bars", "checks", "compare", "compilation", "files", "imports", "inputs"),
    *("large_numbers", "limits", "row_gradients", "runtime", "scratch", "sizes", "sparse"),
    *("states", "stored_rows", "tensor_folder", "testing"),
)
# Tests of the choice between kernels and plain torch, here with plain torch.
TORCH = (
    *(f"functional/test_{name}.py" for name in ("linear", "linear_loss", "dropout")),
    *(f"hashing/test_{name}.py" for name in ("tables", "dwta", "simhash")),
    *("functional/test_sparse_input.py", "optim/test_row_sparse_adam.py"),
    "sampling/test_lsh_proposer.py",
)
# Pieces beside those of the room's name.
MORE: dict[str, tuple[str, ...]] = {
    GROUND: (
        *("torch", "plain", "optim", "model/test_names", "data/test_cache", "nn/test_network"),
        *("nn/test_left_rows", "nn/test_training_threads", "nn/test_precision"),
        *("nn/test_inside_pytorch", "nn/test_sparse_grad", "nn/test_processes"),
    ),
    "kernels": ("hashing", "functional", "data/formats"),
    "plain": ("torch",),
    "functional": ("torch",),
    "hashing": ("torch",),
    "optim": ("torch",),
    "sampling": ("torch", "nn/test_resizing", "nn/test_copies"),
    "search": ("model/test_index", "nn/test_devices", "sampling/test_index_proposer"),
    "report": ("test_compare",),
    "config": ("report", "distributed/test_runs"),
    "nn": ("model/test_short_numbers", "functional/test_nonzero_rows", "torch"),
}
# A piece for each file.
SPLIT = {
    *("config", "data", "distributed", "estimator", "model", "nn", "predict", "ranking"),
    *("search", "serve", "training"),
}
# Kernels as plain Python, which takes longer, for the room of kernels; else they are compiled.
AS_PYTHON = {"kernels", "hashing", "functional", "data/formats"}
LONGEST_GAPS = 25


class Piece(NamedTuple):
    """Tests that run in one process."""

    name: str
    paths: tuple[Path, ...]
    environment: dict[str, str]


def rooms() -> list[str]:
    """The folders of `slide/`, and the files beside them."""
    found = [path.parent.name for path in (ROOT / "slide").glob("*/__init__.py")]
    return [GROUND, *sorted(found)]


def sources(room: str) -> str:
    """A pattern of the room's files."""
    return "slide/*.py" if room == GROUND else f"slide/{room}/*"


def pieces(room: str) -> list[Piece]:
    """What is run for a room."""
    names = dict.fromkeys([room, *MORE.get(room, ()), "edges"])
    return [piece for name in names for piece in _pieces(name)]


def _pieces(name: str) -> list[Piece]:
    home = ROOT / "tests"
    if name == "torch":
        return [Piece(name, tuple(home / each for each in TORCH), {"SLIDE_BACKEND": "torch"})]
    if name in (GROUND, "edges"):
        names = OF_GROUND if name == GROUND else EDGES
        return [Piece(name, tuple(home / f"test_{each}.py" for each in names), {})]
    environment = {"NUMBA_DISABLE_JIT": "1"} if name in AS_PYTHON else {}
    if name in SPLIT:
        files = sorted((home / name).rglob("test_*.py"))
    else:
        file = home / f"{name}.py"
        files = [file if file.exists() else home / name]
    places = [str(file.relative_to(home).with_suffix("")) for file in files]
    return [Piece(each, (file,), environment) for each, file in zip(places, files, strict=True)]


def digest(paths: Iterable[Path]) -> str:
    """Of the Python files of some places."""
    whole = hashlib.sha1()
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            whole.update(file.read_bytes())
    return whole.hexdigest()[:10]


def code_of(room: str) -> str:
    """What the figures of a room depend on: its code and its tests."""
    own = sorted((ROOT / "slide").glob("*.py")) if room == GROUND else [ROOT / "slide" / room]
    return digest([*own, *(path for piece in pieces(room) for path in piece.paths)])


def run(piece: Piece, seconds: float) -> Path | None:
    """The data of a piece, which runs if there are none of this code; None: it took too long."""
    name = piece.name.replace("/", ".")
    folder = KEPT / f"{name}-{digest([ROOT / 'slide', *piece.paths])}"
    if folder.exists():
        return folder
    with tempfile.TemporaryDirectory(dir=KEPT) as begun:
        data = f"--data-file={begun}/data/data"
        (Path(begun) / "data").mkdir()
        words = ["run", data, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        try:
            done = _coverage([*words, *map(str, piece.paths)], piece.environment, seconds)
        except subprocess.TimeoutExpired:
            return None
        if done.returncode not in (0, 5):  # 5: no test of the file runs this way.
            raise SystemExit(f"{piece.name} fails:\n{done.stdout[-3000:]}")
        print(piece.name, done.stdout.strip().rpartition("\n")[2], flush=True)
        (Path(begun) / "data").rename(folder)
    for other in KEPT.iterdir():
        if other.name.rpartition("-")[0] == name and other != folder:
            shutil.rmtree(other)  # Of other code.
    return folder


def measure(room: str, seconds: float) -> Row:
    """The figures of a room."""
    KEPT.mkdir(exist_ok=True)
    found = {piece.name: run(piece, seconds) for piece in pieces(room)}
    folders = [str(folder) for folder in found.values() if folder is not None]
    with tempfile.TemporaryDirectory() as scratch:
        data, report = f"--data-file={scratch}/data", Path(scratch) / "report.json"
        _coverage(["combine", "--keep", "-q", data, *folders]).check_returncode()
        words = ["json", data, "-q", f"--include={sources(room)}", "-o", str(report)]
        _coverage(words).check_returncode()
        numbers = figures(json.loads(report.read_text()))
    return numbers | {"cut": [name for name, folder in found.items() if folder is None]}


def _coverage(
    words: list[str], environment: dict[str, str] | None = None, seconds: float | None = None
) -> Any:
    command = [sys.executable, "-m", "coverage", *words]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    where: dict[str, Any] = {
        "cwd": ROOT,
        "env": os.environ | {"PYTHONPATH": paths} | (environment or {}),
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
    }
    return subprocess.run(command, **where, text=True, timeout=seconds)


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
        "The tests of a room are those of its folder, edge cases of all rooms, and a few that the "
        "program names; what other tests reach by the way does not count. Kernels count as plain "
        "Python.\n\n"
        f"{table(cells)}\n"
        f"Not measured yet: {', '.join(left) or 'none'}. "
        f"Tests that were stopped for their time, so that their rooms reach more: "
        f"{', '.join(cut) or 'none'}.\n\n"
        f"The longest pieces that no test of the room reaches, of {len(gaps)}:\n\n"
    )
    for _, name, piece in gaps[:LONGEST_GAPS]:
        text += f"* `{name}`: {piece}\n"
    return text + origin([row | {"code": row["commit"]} for row in rows], "room")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=rooms(), choices=rooms(), metavar="ROOM")
    parser.add_argument("--longest", type=float, default=600, help="seconds of a piece")
    add_store_options(parser)
    given = parser.parse_args()
    store = Store("coverage", ("room",), page, given, program="coverage_page")
    if given.render:
        store.render()
        return
    for room in given.only:
        code = code_of(room)
        for case in store.missing([{"room": room}], code):
            row = measure(room, given.longest)
            # With tests that took too long it is a lower bound, which the next call measures again.
            store.add([case | row], "cut short" if row["cut"] else code)
    store.report()


if __name__ == "__main__":
    main()
