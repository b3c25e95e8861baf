"""The published tables: the default call beside the results that others published.

    python tests/benchmarks/published.py
    python tests/benchmarks/published.py --datasets eurlex4k wiki10_31k --seeds 0 1 2

Each run is `python train.py dataset=<name> seed=<seed>`, a process of its own without any other
setting, judged on the whole test set. Missing files are fetched into datasets/<name>; a set without
files is reported, and the others go on. published.json beside this file has the results of others,
and where each of them stands. Writes results/published.{json,md} after each set; sets that were
measured before keep their rows.
"""

import argparse
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from report import RESULTS, machine, table
from train_process import ROOT, run_train, seconds_of, warm_up

from slide import runtime
from slide.config import open_dataset, read_config, user_errors

PUBLISHED = json.loads(Path(__file__).with_name("published.json").read_text())
PAGES = RESULTS.parent
TOP = (1, 3, 5)
SCORES = [f"{name}_at_{k}" for name in ("p", "psp") for k in TOP]
TITLES = [f"{name}@{k}" for name in ("P", "PSP") for k in TOP]
FILES = ("train_file", "train_labels_file", "test_file", "test_labels_file")
OURS = "**ours**"
NO_FILES = "files not fetched"


def place(name: str, root: Path | None) -> list[str]:
    """The overrides that choose a set, and the folder of its files if it is not the usual one."""
    if root is None:
        return [f"dataset={name}"]
    folder = root / name
    return [f"dataset={name}", f"dataset.root={folder}", f"dataset.cache={folder / 'cache'}"]


def files_of(name: str, root: Path | None) -> tuple[Path, list[str]]:
    """The folder of a set, and the names of its files."""
    config = read_config(place(name, root)).dataset
    return Path(config.root), [config[key] for key in FILES if config.get(key)]


def advice(name: str, root: Path | None) -> str:
    """A sentence on where to put the files of a set."""
    folder, (*first, last) = files_of(name, root)
    listed = f"{', '.join(first)} and {last}" if first else last
    return f"Put {listed} into {folder}; datasets/{name}/README.md says where they come from."


def unavailable(name: str, root: Path | None) -> str | None:
    """Fetch and read a set; why that fails, or None."""
    try:
        with user_errors():
            open_dataset(read_config(place(name, root)))
    except SystemExit as stop:
        folder, names = files_of(name, root)
        there = all((folder / each).is_file() for each in names)
        return str(stop.code).removeprefix("error: ") if there else NO_FILES
    return None


def measure(name: str, root: Path | None, seeds: list[int]) -> dict[str, Any]:
    """The default call once a seed: the scores of each run, and on what they were measured."""
    runs = []
    for seed in seeds:
        summary, _ = run_train(*place(name, root), f"seed={seed}")
        seconds = seconds_of(summary)
        scores = {key: summary[key] for key in SCORES}
        runs.append({"seed": seed} | scores | {"train_seconds": round(seconds, 3)})
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "versions": runtime.versions(),
        "peak_rss_mb": summary["peak_rss_mb"],
        "runs": runs,
    }


def page(found: dict[str, Any]) -> str:
    """The generated page."""
    text = (
        "# The default call beside published results\n\n"
        "Made by `python tests/benchmarks/published.py`. "
        "Ours is `python train.py dataset=<name>` without any other setting, on the whole test set "
        "(with several seeds: their mean, and half the range). All in points; a place is empty "
        "where published.json has no figure. The results of others are copied from their "
        "sources, which stand at the end of the page, and were measured on other machines. They "
        "learn from bags of words, as ours does, but for the rows of raw text, which read the "
        "words in their order, often with pretrained models, and on small sets with other splits "
        "into training and test rows.\n"
    )
    for name in [*PUBLISHED["sets"], *(n for n in found["sets"] if n not in PUBLISHED["sets"])]:
        text += section(name, found)
    named = [f"* {each['name']}: {cited(each)}\n" for each in PUBLISHED["sources"].values()]
    return text + "\n## Sources\n\n" + "".join(named)


def cited(source: dict[str, str]) -> str:
    on = source["machine"]
    return source["where"] + (f" Machine: {on}." if on else "")


def section(name: str, found: dict[str, Any]) -> str:
    """The table of a set, and what there is to say about it."""
    known = PUBLISHED["sets"].get(name, {"title": name, "note": "", "rows": []})
    said = [known["note"]] if known["note"] else []
    ours = found["sets"].get(name)
    if ours:
        versions = ", ".join(f"{key} {value}" for key, value in ours["versions"].items())
        seeds = ", ".join(str(run["seed"]) for run in ours["runs"])
        said.append(
            f"Ours: seed {seeds}, {ours['date']}; {ours['machine']}; {versions}; "
            f"peak memory {ours['peak_rss_mb']:,.0f} MB."
        )
    else:
        why = found["missing"].get(name)
        said.append(f"Ours was not measured{f': {why}' if why else ''}.")
        said += [advice(name, None)] if why == NO_FILES else []
    rows = [our_cells(ours), *map(their_cells, known["rows"])]
    return f"\n## {known['title']}\n\n{table(rows)}\n{' '.join(filter(None, said))}\n"


def our_cells(ours: dict[str, Any] | None) -> dict[str, str]:
    """Our row of a table; None: there is no measurement."""
    if ours is None:
        blank = dict.fromkeys([*TITLES, "training", "source"], "")
        return {"method": OURS} | blank | {"training": "not measured"}
    runs = ours["runs"]
    scores = [[100 * run[key] for run in runs] for key in SCORES]
    return {
        "method": OURS,
        **{title: spread(values, 1) for title, values in zip(TITLES, scores, strict=True)},
        "training": spread([run["train_seconds"] for run in runs], 0) + " s",
        "source": "this page",
    }


def their_cells(row: dict[str, Any]) -> dict[str, str]:
    """A published row of a table."""
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


def spread(values: list[float], digits: int) -> str:
    """The mean; of several values also half the range."""
    text = f"{sum(values) / len(values):,.{digits}f}"
    half = (max(values) - min(values)) / 2
    return text if len(values) == 1 else f"{text} ± {half:.{digits}f}"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", nargs="+", default=list(PUBLISHED["sets"]))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--root", type=Path, help="instead of datasets/; it holds the caches too")
    parser.add_argument("--results", type=Path, default=PAGES, help="folder of published.{json,md}")
    parser.add_argument("--render", action="store_true", help="the page anew, without any run")
    arguments = parser.parse_args(words)
    root = arguments.root.resolve() if arguments.root else None
    results = arguments.results.resolve()
    os.chdir(ROOT)  # The usual folders of files are relative to it.
    path = results / "published.json"
    found = json.loads(path.read_text()) if path.exists() else {"sets": {}, "missing": {}}
    with user_errors():
        for name in arguments.datasets:
            read_config([f"dataset={name}"])
    warm = False
    if arguments.render:
        return write(found, results)
    for name in arguments.datasets:
        why = unavailable(name, root)
        if why is None:
            warm = warm or (warm_up() or True)
            try:
                found["sets"][name] = measure(name, root, arguments.seeds)
            except subprocess.CalledProcessError as error:
                why = f"train.py ended with code {error.returncode}"
        found["missing"].pop(name, None)
        if why is not None:
            found["missing"][name] = why
        report(name, found, root)
        write(found, results)


def write(found: dict[str, Any], folder: Path) -> None:
    """The figures of ours, and the page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "published.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / "published.md").write_text(page(found))


def report(name: str, found: dict[str, Any], root: Path | None) -> None:
    """Print a line on a set."""
    why = found["missing"].get(name)
    if why is None:
        cells = our_cells(found["sets"][name])
        print(f"{name}: " + "  ".join(f"{title} {cells[title]}" for title in TITLES), flush=True)
    elif why == NO_FILES:
        print(f"{name} was not measured: {why}. {advice(name, root)}", flush=True)
    else:
        print(f"{name} was not measured: {why}", flush=True)


if __name__ == "__main__":
    main()
