"""Other interpreters, and the lowest and newest versions of dependencies: does slide work there?

    python tests/benchmarks/versions.py python3.10 python3.12   # the versions of constraints.txt
    python tests/benchmarks/versions.py --dependencies lowest python3.10
    python tests/benchmarks/versions.py --dependencies newest python3.11

Calls .ci/versions, which makes an environment of its own for each, compares all kernels with plain
formulas and runs a short main job. An interpreter for which there is no build of PyTorch for the
CPU alone fetches gigabytes. Writes results/versions.{json,md}.
"""

import argparse
import os
import re
import subprocess
from typing import Any

from report import table
from rows import Row, Store, add_store_options
from train_process import ROOT

# What .ci/versions is told by its environment.
TOLD = {"tested": {}, "lowest": {"LOWEST": "1"}, "newest": {"NEWEST": "1"}}
SHOWN = ("torch", "numpy", "numba", "faiss-cpu")


def found_in(output: str) -> Row:
    """What the script's output says.

    Raises:
        ValueError: if it does not tell versions, or the end of the self-test or of the run.
    """
    versions = re.search(r"^versions: (.+)$", output, re.M)
    scores = re.search(r"P@1 +[\d.]+", output)
    right = len(re.findall(r"^  right  ", output, re.M))
    if not (versions and scores and right):
        raise ValueError(f"this does not tell all: {output[-2000:]}")
    pairs = dict(each.rsplit(" ", 1) for each in versions[1].split(", "))
    return {
        "python": pairs["python"],
        "installed": {name: pairs[name] for name in SHOWN},
        "kernels": right,
        "run": scores[0],
    }


def page(found: dict[str, Any]) -> str:
    """The page."""
    rows = [
        {
            "Python": row["python"],
            "dependencies": row["dependencies"],
            **row["installed"],
            "kernels that are right": f"all {row['kernels']}",
            "main job, 20 steps": row["run"],
            "measured": f"{row['date']}, {row['commit']}",
        }
        for row in found["rows"]
    ]
    return f"""\
# Interpreters and versions

Each row is an environment of its own, made by `.ci/versions`. Dependencies are those of \
constraints.txt (tested), the lowest that pyproject.toml allows, or the newest that pip finds. All \
tests run with the tested versions on one interpreter; here each kernel is compared with a plain \
formula, and 20 steps of the main job are trained and evaluated.

{table(rows)}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pythons", nargs="*", help="interpreters, such as python3.10")
    parser.add_argument("--dependencies", choices=list(TOLD), default="tested")
    add_store_options(parser)
    options = parser.parse_args()
    store = Store("versions", ("python", "dependencies"), page, options)
    if options.render:
        return store.render()
    for python in options.pythons:
        command = ["bash", str(ROOT / ".ci/versions"), python]
        told = os.environ | TOLD[options.dependencies]
        done = subprocess.run(command, env=told, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{python}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
        store.add([{"dependencies": options.dependencies, **found_in(done.stdout)}])


if __name__ == "__main__":
    main()
