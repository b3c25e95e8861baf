"""What custom sparse layers were asked for, and what this library does: each against PyTorch.

    python tests/benchmarks/seeds.py --root path/to/data

Runs every benchmark called seed_*.py as a process of its own, compares what it finds with its
targets, and writes results/seeds.md and results/seeds.json. `--only conv` runs one of them and
leaves what the page says of the others, unless that was found on another machine or with other
versions: then it leaves it out, and says so. `--quick` takes smaller sizes and writes nothing.
"""

import argparse
import json
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "benchmarks")]

from report import last, machine, publish, table  # noqa: E402
from targets import SEEDS  # noqa: E402

from slide import runtime  # noqa: E402

RESULTS = ROOT / "results"


def run(name: str, root: Path | None, quick: bool) -> dict:
    """One benchmark: its rows, when, and how long it took."""
    seed, start = SEEDS[name], time.perf_counter()
    arguments = dict(seed.quick) if quick else {}
    if seed.data and root:
        arguments["data"] = root / seed.data
    runtime.set_threads(0)
    rows = import_module(f"seed_{name}").rows(**arguments)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "seconds": round(time.perf_counter() - start),
        "rows": rows,
    }


def stored() -> dict[str, dict]:
    """What earlier runs found on this machine with these versions."""
    path = RESULTS / "seeds.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    here = {"machine": machine(), "versions": runtime.versions()}
    others = [name for name, value in here.items() if found.get(name) != value]
    if not found or not others:
        return found.get("seeds", {})
    lost = ", ".join(found["seeds"])
    print(f"not taken over from an earlier run, of other {' and '.join(others)}: {lost}")
    return {}


def judge(name: str, one: dict) -> list[dict]:
    """What a benchmark found beside its targets."""
    return [target.check(one["rows"]) for target in SEEDS[name].targets]


def rounded(row: dict) -> dict:
    return {k: round(v, 3) if isinstance(v, float) and v > 1e-3 else v for k, v in row.items()}


def page(found: dict) -> str:
    """The generated page: targets, and then what each benchmark found."""
    seeds = {name: found["seeds"][name] for name in SEEDS if name in found["seeds"]}
    targets = [
        {"benchmark": name} | line for name, one in seeds.items() for line in judge(name, one)
    ]
    parts = ["# What was asked for, and what it takes\n", table(targets)]
    for name, one in seeds.items():
        about = (import_module(f"seed_{name}").__doc__ or "").partition(".py")[2].partition("\n\n")
        titles = dict.fromkeys(title for row in one["rows"] for title in row)
        parts += [
            f"\n## {name}: {SEEDS[name].asked}\n",
            f"`python tests/benchmarks/seed_{name}.py`, {one['seconds']} s on {one['date']}.\n",
            about[2].strip() + "\n",
            table(
                [{title: rounded(row).get(title, "") for title in titles} for row in one["rows"]]
            ),
        ]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, help="folder with mnist/ and text/; else fetched")
    parser.add_argument("--only", choices=SEEDS, help="run one benchmark")
    parser.add_argument("--quick", action="store_true", help="smaller sizes; nothing is written")
    parser.add_argument("--render", action="store_true", help="the page anew from the last figures")
    options = parser.parse_args()
    if options.render:
        return publish("seeds", last("seeds", RESULTS), page, RESULTS)
    root = options.root and options.root.resolve()
    if options.only:
        one = run(options.only, root, options.quick)
        if options.quick:
            print(page({"seeds": {options.only: one}}))
        else:
            found = {"seeds": stored() | {options.only: one}}
            publish("seeds", found, page, RESULTS)
            print(table(judge(options.only, one)))
        return
    for place, name in enumerate(SEEDS, 1):
        print(f"[{place}/{len(SEEDS)}] {name}", flush=True)
        command = [sys.executable, __file__, "--only", name]
        command += ["--root", str(root)] if root else []
        command += ["--quick"] if options.quick else []
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
