"""The published tables: the default call beside the results that others published.

    python benchmarks/published.py
    python benchmarks/published.py --datasets eurlex4k wiki10_31k --seeds 0 1 2

Missing files are fetched into datasets/<name>; a set without files is reported, and the others go
on. published.json beside this file has the results of others, and where each of them stands. Writes
results/published.{json,md}.
"""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import harness
from harness import SCORES, Row, Store, grid, numbers, of, origin, run_train, spread, table, warm_up

from slide.config import read_config, user_errors

PUBLISHED = json.loads(Path(__file__).with_name("published.json").read_text())
TOP = (1, 3, 5)
TITLES = [f"{name}@{k}" for name in ("P", "PSP") for k in TOP]
FILES = ("train_file", "train_labels_file", "test_file", "test_labels_file")
OURS = "**ours**"


def advice(name: str) -> str:
    config = read_config([f"dataset={name}"]).dataset
    *first, last = (config[key] for key in FILES if config.get(key))
    listed = f"{', '.join(first)} and {last}" if first else last
    return f"Put {listed} into {config.root}; datasets/{name}/README.md says where they come from."


def measure(store: Store, arguments: argparse.Namespace) -> None:
    """The missing runs of all sets; says why a set has none, such as a missing file."""
    with user_errors():
        for name in arguments.datasets:
            read_config([f"dataset={name}"])
    warm_up()
    for name in arguments.datasets:
        folder, words = arguments.root and arguments.root / name, [f"dataset={name}"]
        words += [f"dataset.root={folder}", f"dataset.cache={folder / 'cache'}"] if folder else []
        for case in store.missing(grid(dataset=[name], seed=arguments.seeds)):
            try:
                harness.opened(tuple(words))
                summary = run_train(*words, f"seed={case['seed']}")
            except (SystemExit, subprocess.CalledProcessError) as error:
                print(f"{name} was not measured: {error}", flush=True)
                break
            scores = {key: summary[key] for key in (*SCORES, "peak_rss_mb")}
            store.add([case | scores | {"train_seconds": round(summary["train_seconds"], 3)}])


def page(found: dict[str, Any]) -> str:
    rows, text, sets = found["rows"], harness.prose("published", "about"), PUBLISHED["sets"]
    for name in dict.fromkeys([*sets, *(row["dataset"] for row in rows)]):
        text += section(name, of(rows, dataset=name))
    text += "\n## Sources\n\n"
    for source in PUBLISHED["sources"].values():
        on = f" Machine: {source['machine']}." if source["machine"] else ""
        text += f"* {source['name']}: {source['where']}{on}\n"
    return text + (origin(rows) if rows else "")


def section(name: str, ours: list[Row]) -> str:
    """The table of a set, and what there is to say about it."""
    known = PUBLISHED["sets"].get(name, {"title": name, "note": "", "rows": []})
    said = [known["note"]] if known["note"] else []
    if ours:
        peak = max(row["peak_rss_mb"] for row in ours)
        seeds = numbers(row["seed"] for row in ours)
        said.append(f"Ours: seeds {seeds}; peak memory {peak:,.0f} MB.")
    else:
        said.append(f"Ours was not measured. {advice(name)}")
    cells = [our_cells(ours), *map(their_cells, known["rows"])]
    return f"\n## {known['title']}\n\n{table(cells)}\n{' '.join(said)}\n"


def our_cells(ours: list[Row]) -> dict[str, str]:
    cells = {"method": OURS} | dict.fromkeys(TITLES, "")
    if not ours:
        return cells | {"training": "not measured", "source": ""}
    for key, title in zip(SCORES, TITLES, strict=True):
        cells[title] = spread([row[key] for row in ours])
    seconds = spread([row["train_seconds"] for row in ours], scale=1)
    return cells | {"training": f"{seconds} s", "source": "this page"}


def their_cells(row: dict[str, Any]) -> dict[str, str]:
    notes = ", ".join(row[key] for key in ("input", "note") if key in row)
    hours = f"{row['hours']:g} h" if "hours" in row else ""
    return {
        "method": row["method"] + (f" ({notes})" if notes else ""),
        **dict.fromkeys(TITLES, ""),
        **{f"P@{k}": f"{p:.1f}" for k, p in zip(TOP, row["p"], strict=False)},
        **{f"PSP@{k}": f"{p:.1f}" for k, p in zip(TOP, row.get("psp", []), strict=False)},
        "training": f"{row['seconds']:,} s" if "seconds" in row else hours,
        "source": PUBLISHED["sources"][row["source"]]["name"],
    }


def main() -> None:
    parser = harness.options(__doc__, PUBLISHED["sets"], [0])
    harness.fill_page("published", ("dataset", "seed"), page, measure, parser, rooted=False)


if __name__ == "__main__":
    main()
