"""What the benchmarks share: the machine in words, and Markdown tables."""

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

from slide import runtime

RESULTS = Path(__file__).resolve().parents[2] / "results" / "benchmarks"


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
    versions = ", ".join(f"{key} {value}" for key, value in found["versions"].items())
    head = (
        f"Made by `python tests/benchmarks/{program or name}.py` on {found['date']}; "
        f"{found['machine']}; {versions}.\n\n"
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / f"{name}.md").write_text(head + page(found))
