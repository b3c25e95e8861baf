"""What the benchmarks share: the machine in words, tables, and pages measured row by row.

A row of a page has the keys that name what was measured (a case, such as data set, method and
seed), the figures, and a stamp: date, commit, machine, threads, and ``code``, the version of what
was measured: the commit, or name and version of a peer. A chosen row is measured if it is not
there, or if its code, machine or number of threads is another one, or with --again. All other rows
stay as they are. So a program can be stopped and called again, and several calls may run side by
side.
"""

import argparse
import fcntl
import hashlib
import json
import math
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from slide import runtime

Row = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "results"
RESULTS = PAGES / "benchmarks"
# What a run depends on.
SOURCES = ("slide", "conf", "train.py")
SCORES = [f"{kind}_at_{k}" for kind in ("p", "psp") for k in (1, 3, 5)]


def machine() -> str:
    """Processor, cores and memory, without the machine's name."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB"


def table(rows: list[dict[str, object]]) -> str:
    """A Markdown table; the keys of the first row are the header."""
    titles = list(rows[0])
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(str(row[title]) for title in titles) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def insert(page: Path, block: str, text: str) -> None:
    """Replace what stands in a page between ``<!-- block: ... -->`` and ``<!-- /block -->``."""
    before, opening, rest = page.read_text().partition(f"<!-- {block}: ")
    note, end, rest = rest.partition("-->\n")
    _, closing, after = rest.partition(f"<!-- /{block} -->")
    if not (opening and end and closing):
        raise ValueError(f"{page} has no block {block}")
    page.write_text(f"{before}{opening}{note}{end}{text}{closing}{after}")


def last(name: str, folder: Path = RESULTS) -> dict:
    """What the benchmark ``name`` found when it ran last."""
    return json.loads((folder / f"{name}.json").read_text())


def shown_versions(versions: dict[str, str] | None = None) -> str:
    """Versions of packages in a line; None: of those here."""
    known = runtime.versions() if versions is None else versions
    return ", ".join(f"{key} {value}" for key, value in known.items())


def publish(
    name: str,
    found: dict,
    page: Callable[[dict], str],
    folder: Path = RESULTS,
    program: str | None = None,
) -> None:
    """Write ``<folder>/<name>.{json,md}``: figures, and a page that says whence."""
    found = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": runtime.versions(),
    } | found
    versions = shown_versions(found["versions"])
    head = (
        f"Made by `python tests/benchmarks/{program or name}.py` on {found['date']}; "
        f"{found['machine']}; {versions}.\n\n"
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / f"{name}.md").write_text(head + page(found))


def commit() -> str:
    """The last commit that changed SOURCES, and a digest of later changes."""
    last = _git("log", "-1", "--format=%H", "--", *SOURCES).strip()[:10]
    changed = _git("diff", "HEAD", "--", *SOURCES)
    return last + ("+" + hashlib.sha1(changed.encode()).hexdigest()[:6] if changed else "")


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def key(row: Row, keys: Iterable[str]) -> tuple[Any, ...]:
    return tuple(row[name] for name in keys)


def merge(rows: list[Row], new: list[Row], keys: Iterable[str]) -> list[Row]:
    """All rows, the new ones instead of old ones of the same case; sorted by case."""
    names = tuple(keys)
    by_key = {key(row, names): row for row in [*rows, *new]}
    return [by_key[each] for each in sorted(by_key, key=str)]


class Store:
    def __init__(
        self,
        name: str,
        keys: tuple[str, ...],
        page: Callable[[dict[str, Any]], str],
        options: argparse.Namespace,
        program: str | None = None,
    ):
        self.name, self.keys, self.page, self.program = name, keys, page, program
        self.folder, self.again = options.results.resolve(), options.again
        self.end = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
        self.commit, self.left = commit(), 0
        self.rows = self._read()

    def missing(self, cases: Iterable[Row], code: str | None = None) -> Iterator[Row]:
        """The cases to measure, as long as there is time; the others are counted."""
        stamp = self.stamp(code)
        stamp = {name: stamp[name] for name in ("code", "machine", "threads")}
        found = {key(row, self.keys): row for row in self.rows}
        for case in cases:
            row = found.get(key(case, self.keys), {})
            if not self.again and stamp.items() <= row.items():
                continue
            if time.monotonic() > self.end:
                self.left += 1
            else:
                yield case

    def add(self, rows: list[Row], code: str | None = None) -> None:
        """Put rows in, write figures and page, and print the rows."""
        new = [{**row, **self.stamp(code)} for row in rows]
        for row in new:
            print("  ".join(f"{name} {shown(value)}" for name, value in row.items()), flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # Another call may add rows, too.
            self.rows = merge(self._read(), new, self.keys)
            self.render()
        finally:
            os.close(lock)

    def render(self) -> None:
        publish(self.name, {"rows": self.rows}, self.page, self.folder, self.program)

    def stamp(self, code: str | None) -> Row:
        return {
            "date": time.strftime("%Y-%m-%d"),
            "commit": self.commit,
            "code": code or self.commit,
            "machine": machine(),
            "threads": runtime.num_threads(),
            "versions": shown_versions(),
        }

    def report(self) -> None:
        if self.left:
            print(f"the time is over, {self.left} cases are left: call this again", flush=True)

    def _read(self) -> list[Row]:
        path = self.folder / f"{self.name}.json"
        rows = json.loads(path.read_text())["rows"] if path.exists() else []
        own = {*self.keys, "date"}
        return [row for row in rows if own <= set(row)]  # No rows of an earlier form.


def shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def add_options(parser: argparse.ArgumentParser, datasets: list[str], seeds: list[int]) -> None:
    parser.add_argument("--root", type=Path, help="folder with a folder a data set")
    parser.add_argument("--datasets", nargs="+", default=datasets)
    parser.add_argument("--seeds", nargs="+", type=int, default=seeds)
    add_store_options(parser)


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """Those of `add_options` that do not choose data sets."""
    parser.add_argument("--again", action="store_true", help="measure rows that there are, too")
    parser.add_argument("--minutes", type=float, default=0, help="begin no row later; 0: no limit")
    parser.add_argument("--results", type=Path, default=PAGES, help="folder of figures and page")
    parser.add_argument("--render", action="store_true", help="the page anew, without measuring")


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The arguments of the command line; ends the process if the data sets have no folder."""
    arguments = parser.parse_args()
    if arguments.root is None and not arguments.render:
        parser.error("--root is needed: the folder with a folder a data set")
    arguments.root = arguments.root and arguments.root.resolve()
    return arguments


def spread(values: list[float], sign: str = "", scale: float = 100) -> str:
    """The mean, in points; of several values also half the range."""
    if math.isnan(sum(values)):
        return ""
    text = f"{scale * sum(values) / len(values):{sign},.1f}"
    return text if len(values) == 1 else f"{text} ± {scale * (max(values) - min(values)) / 2:.1f}"


def gain(rows: list[Row], recipe: list[Row], name: str) -> str:
    """A score of a variant in words, and its difference to that of the recipe of the same seeds."""
    gained = [row[name] - same[name] for row, same in zip(rows, recipe, strict=True)]
    agree = len(gained) > 1 and (min(gained) > 0 or max(gained) < 0)
    mark = "**" if agree else ""
    return f"{spread([row[name] for row in rows])} ({mark}{spread(gained, '+')}{mark})"


def numbers(values: Iterable[int]) -> str:
    return ", ".join(str(value) for value in sorted(set(values)))


def origin(rows: list[Row], what: str = "dataset") -> str:
    """Sentences on when, where and of what rows were measured; ``what`` names a row."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        place = row["date"], row["code"], row["machine"], f"threads: {row['threads']}"
        versions = (row["versions"],) if "versions" in row else ()  # Earlier rows have none.
        groups.setdefault((*place, *versions), []).append(row[what])
    lines = [
        f"* {', '.join(place)}: {', '.join(dict.fromkeys(map(str, names)))}\n"
        for place, names in sorted(groups.items())
    ]
    return "\nThe rows were measured on these days, of these commits or versions:\n\n" + "".join(
        lines
    )
