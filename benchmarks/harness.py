"""What the benchmarks share: arguments, pages and their rows, runs of train.py, own processes.

A row of a page has the keys that name what was measured (a case, such as data set, method and
seed), the figures, and a stamp: date, commit, machine, threads, and ``code``, the version of what
was measured: the commit, or name and version of a peer. A chosen row is measured if it is not
there, or if its code, machine or number of threads is another one, or with --again; with --absent
only if it is not there. All other rows stay as they are, until their JSON file is deleted. So a
program can be stopped and called again, and several calls may run side by side.

As a program it writes into a file what a function of a module of this folder returns (`started`).
"""

import argparse
import fcntl
import hashlib
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

from slide import runtime
from slide.config import build_trainer, find_conf, open_dataset, read_config, user_errors
from slide.data import SparseDataset
from slide.training import Trainer

Row = dict[str, Any]
Measure = Callable[["Store", argparse.Namespace], object]
ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "results"
RESULTS = PAGES / "benchmarks"
# What a run depends on.
SOURCES = ("slide", "conf", "train.py")
SCORES = [f"{kind}_at_{k}" for kind in ("p", "psp") for k in (1, 3, 5)]
# Share of the training rows that is held out where settings are compared, by data set. debian:
# packages and what they depend on. bibtex, delicious: tags. fb15k: a knowledge graph, FB15k-237.
# gowalla: places that a user visits, and later ones. files: directories and their files.
HELD_OUT = {
    "debian": 0.1,
    "bibtex": 0.15,
    "delicious": 0.15,
    "fb15k": 0.05,
    "gowalla": 0.1,
    "files": 0.03,
}


def machine() -> str:
    """Processor, cores and memory, without the machine's name."""
    model = platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = (line.partition(":") for line in cpuinfo.read_text().splitlines())
        model = next((value.strip() for name, _, value in names if "model name" in name), model)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB"


def resident_memory() -> int:
    """Bytes that this process holds now, without files that it has mapped; 0: not known."""
    status = Path("/proc/self/status")
    held = re.search(r"RssAnon:\s*(\d+)", status.read_text() if status.exists() else "")
    return 1024 * int(held[1]) if held else 0


def is_busy() -> bool:
    """Whether other programs have run, so that seconds say nothing."""
    return os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)


def table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table; the keys of all rows are the header, and what a row lacks is empty."""
    titles = list(dict.fromkeys(title for row in rows for title in row))
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(str(row.get(t, "")) for t in titles) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def insert(page: Path, block: str, text: str) -> None:
    """Replace what stands in a page between ``<!-- block: ... -->`` and ``<!-- /block -->``."""
    before, opening, rest = page.read_text().partition(f"<!-- {block}: ")
    note, end, rest = rest.partition("-->\n")
    _, closing, after = rest.partition(f"<!-- /{block} -->")
    if not (opening and end and closing):
        raise ValueError(f"{page} has no block {block}")
    page.write_text(f"{before}{opening}{note}{end}{text}{closing}{after}")


def prose(name: str, part: str, **values: Any) -> str:
    """A part of a page's text in prose.md, with values in place of ``{names}``."""
    text = Path(__file__).with_name("prose.md").read_text()
    found = text.partition(f"<!-- {name} {part} -->\n")[2].partition("\n<!-- ")[0]
    return found.format(**values) if values else found


def last(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """What the benchmark ``name`` found when it ran last."""
    return json.loads((folder / f"{name}.json").read_text())


def shown_versions(versions: dict[str, str]) -> str:
    return ", ".join(f"{key} {value}" for key, value in versions.items())


def publish(
    name: str,
    found: dict[str, Any],
    page: Callable[[dict[str, Any]], str],
    folder: Path = RESULTS,
    program: str | None = None,
) -> None:
    """Write ``<folder>/<name>.{json,md}``: figures, and a page that says whence."""
    found = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": runtime.versions(),
    } | found
    head = (
        f"Made by `python benchmarks/{program or name}.py` on {found['date']}; "
        f"{found['machine']}; {shown_versions(found['versions'])}.\n\n"
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / f"{name}.md").write_text(head + page(found))


def commit() -> str:
    """The last commit that changed SOURCES, and a digest of later changes."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, **said).stdout

    said: dict[str, Any] = {"capture_output": True, "text": True, "check": True}
    latest = git("log", "-1", "--format=%H", "--", *SOURCES).strip()[:10]
    changed = git("diff", "HEAD", "--", *SOURCES)
    return latest + ("+" + hashlib.sha1(changed.encode()).hexdigest()[:6] if changed else "")


def grid(**axes: Iterable[Any]) -> list[Row]:
    """A case for each combination of values."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def of(rows: Iterable[Row], /, **case: Any) -> list[Row]:
    """The rows of a case."""
    return [row for row in rows if case.items() <= row.items()]


class Store:
    """The rows of a page, which are measured one after the other."""

    def __init__(
        self,
        name: str,
        keys: tuple[str, ...],
        page: Callable[[dict[str, Any]], str],
        options: argparse.Namespace,
        program: str | None = None,
    ):
        self.name, self.keys, self.page, self.program = name, keys, page, program
        self.folder = options.results.resolve()
        self.again, self.absent = options.again, options.absent
        self.end = time.monotonic() + 60 * options.minutes if options.minutes else math.inf
        self.commit, self.left = commit(), 0
        self.rows = self._read()

    def missing(self, cases: Iterable[Row], code: str | None = None) -> Iterator[Row]:
        """The cases to measure, as long as there is time; the others are counted."""
        stamp = self.stamp(code)
        stamp = {name: stamp[name] for name in ("code", "machine", "threads")}
        found = {self._key(row): row for row in self.rows}
        for case in cases:
            known = found.get(self._key(case), {})
            stays = stamp.items() <= known.items() or (self.absent and known)
            if stays and not self.again:
                continue
            if time.monotonic() > self.end:
                self.left += 1
            else:
                yield case

    def fill(
        self, cases: Iterable[Row], measure: Callable[[Row], Row], code: str | None = None
    ) -> None:
        """Measure the missing cases."""
        for case in self.missing(cases, code):
            self.add([case | measure(case)], code)

    def add(self, rows: list[Row], code: str | None = None) -> None:
        """Put rows in, write figures and page, and print the rows."""
        new = [{**row, **self.stamp(code)} for row in rows]
        for row in new:
            print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # Another call may add rows, too.
            by_key = {self._key(row): row for row in [*self._read(), *new]}
            self.rows = [by_key[each] for each in sorted(by_key, key=str)]
            self.render()
        finally:
            os.close(lock)

    def render(self, found: Row | None = None) -> None:
        found = found or {"rows": self.rows}
        publish(self.name, found, self.page, self.folder, self.program)

    def stamp(self, code: str | None) -> Row:
        return {
            "date": time.strftime("%Y-%m-%d"),
            "commit": self.commit,
            "code": code or self.commit,
            "machine": machine(),
            "threads": runtime.num_threads(),
            "versions": shown_versions(runtime.versions()),
        }

    def _key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.keys)

    def _read(self) -> list[Row]:
        path = self.folder / f"{self.name}.json"
        rows = json.loads(path.read_text())["rows"] if path.exists() else []
        own = {*self.keys, "date"}
        return [row for row in rows if own <= set(row)]  # No rows of an earlier form.


def options(
    about: str | None, datasets: Iterable[str] = (), seeds: Iterable[int] = (), folder: Path = PAGES
) -> argparse.ArgumentParser:
    """The arguments that programs with a `Store` share; ``datasets`` and ``seeds`` by default."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    if datasets:
        parser.add_argument("--root", type=Path, help="folder with a folder a data set")
        parser.add_argument("--datasets", "--sets", nargs="+", default=list(datasets))
        parser.add_argument("--seeds", nargs="+", type=int, default=list(seeds))
    parser.add_argument("--again", action="store_true", help="measure rows that there are, too")
    parser.add_argument("--absent", action="store_true", help="measure no row that there is")
    parser.add_argument("--minutes", type=float, default=0, help="begin no row later; 0: no limit")
    parser.add_argument("--results", type=Path, default=folder, help="folder of figures and page")
    parser.add_argument("--render", action="store_true", help="the page anew, without measuring")
    return parser


def legend_below(figure: Any, columns: int) -> None:
    """One legend of all lines, each of them once."""
    found: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    figure.legend(found.values(), found, loc="outside lower center", ncols=columns, frameon=False)


def fill_page(
    name: str,
    keys: tuple[str, ...],
    page: Callable[[dict[str, Any]], str],
    measure: Measure,
    parser: argparse.ArgumentParser,
    draw: Callable[[list[Row], Path], None] | None = None,
    words: list[str] | None = None,
    program: str | None = None,
    rooted: bool = True,
) -> Store:
    """A whole program: parse arguments, measure missing rows, write the page, draw its picture."""
    arguments = parser.parse_args(words)
    if "root" in arguments:
        if rooted and arguments.root is None and not arguments.render:
            parser.error("--root is needed: the folder with a folder a data set")
        arguments.root = arguments.root and arguments.root.resolve()
    arguments.results = arguments.results.resolve()
    runtime.set_threads(0)
    os.chdir(ROOT)  # Caches lie in its datasets/.
    store = Store(name, keys, page, arguments, program)
    if not arguments.render:
        measure(store, arguments)
    # The page of old figures has their date and machine.
    store.render(last(name, store.folder) if arguments.render else {})
    if draw:
        draw(store.rows, store.folder)
    if store.left:
        print(f"the time is over, {store.left} cases are left: call this again", flush=True)
    return store


def spread(values: list[float], sign: str = "", scale: float = 100) -> str:
    """The mean, in points; of several values also half the range."""
    if math.isnan(sum(values)):
        return ""
    text = f"{scale * sum(values) / len(values):{sign},.1f}"
    return text if len(values) == 1 else f"{text} ± {scale * (max(values) - min(values)) / 2:.1f}"


def triple(rows: list[Row], kind: str) -> str:
    """A kind of score at 1, 3 and 5."""
    return " / ".join(spread([row[f"{kind}_at_{k}"] for row in rows]) for k in (1, 3, 5))


def numbers(values: Iterable[int]) -> str:
    return ", ".join(str(value) for value in sorted(set(values)))


def origin(rows: list[Row], what: str = "dataset") -> str:
    """Sentences on when, where and of what rows were measured; ``what`` names a row."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        stamp = row["date"], row["code"], row["machine"], f"threads: {row['threads']}"
        versions = (row["versions"],) if "versions" in row else ()  # Earlier rows have none.
        groups.setdefault((*stamp, *versions), []).append(row[what])
    return "\nThe rows were measured on these days, of these commits or versions:\n\n" + "".join(
        f"* {', '.join(stamp)}: {', '.join(dict.fromkeys(map(str, names)))}\n"
        for stamp, names in sorted(groups.items())
    )


def overrides_of(name: str, root: Path) -> list[str]:
    """Overrides that choose a set; an unknown name is a folder with files in XMC text."""
    known = (find_conf() / "dataset" / f"{name}.yaml").is_file()
    chosen = [f"dataset={name}"] if known else ["dataset=xmc", f"dataset.name={name}"]
    return [*chosen, f"dataset.root={root / name}"]


@cache
def opened(overrides: tuple[str, ...]) -> SparseDataset:
    with user_errors():
        return open_dataset(read_config(overrides))


def run_train(*overrides: str, folder: Path | None = None) -> dict[str, Any]:
    """The summary of a run of train.py as a process of its own; without a folder none stays."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = folder or Path(scratch) / "run"
        command = [sys.executable, str(ROOT / "train.py"), *overrides, f"run_dir={folder}"]
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        return json.loads((folder / "summary.json").read_text())


def warm_up() -> None:
    """After it no other run on this machine pays for compiling kernels."""
    command = [sys.executable, "-m", "slide.config.warm_up"]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def trained(overrides: list[str]) -> tuple[Trainer, dict[str, Any]]:
    """A run of train.py within this process: its trainer and its summary; no folder stays."""
    with tempfile.TemporaryDirectory() as scratch, user_errors():
        trainer = build_trainer(read_config([*overrides, f"run_dir={scratch}/run"]))
        return trainer, trainer.fit()


def started(
    file: Path, module: str, function: str, *arguments: Any, **environment: object
) -> subprocess.Popen:
    """A process that begins empty and writes into a file what a function of a module returns."""
    command = [sys.executable, __file__, str(file), module, function, json.dumps(arguments)]
    env = os.environ | {name: str(value) for name, value in environment.items()}
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, env=env)


def in_process(module: str, function: str, *arguments: Any) -> dict[str, Any]:
    """What a function returns in a process of its own, which has a memory of its own.

    A process that a signal ended, as where memory does not suffice, gives ``killed``: the signal.
    """
    with tempfile.TemporaryDirectory() as scratch:
        found = Path(scratch) / "found.json"
        code = started(found, module, function, *arguments).wait()
        if code > 0:
            raise RuntimeError(f"{module}.{function} ended with {code}")
        return {"killed": -code} if code else json.loads(found.read_text())


def main() -> None:
    file, module, function, arguments = sys.argv[1:]
    found = getattr(import_module(module), function)(*json.loads(arguments))
    Path(file).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
