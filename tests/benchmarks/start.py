"""How long it takes from the start of a process to its first step, and where the time goes.

    python tests/benchmarks/start.py
    python tests/benchmarks/start.py dataset=bibtex dataset.root=path/to/bibtex

Each run is a process of its own, which does what train.py does until its first step is done, with
the data prepared beforehand. The first run finds no compiled kernels; the later ones find those of
the first. Writes results/benchmarks/start.{json,md}.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# The process begins its run when it is called by this name.
RUN = "--run"
PARTS = (
    "Python",
    "import torch",
    "import slide",
    "configuration",
    "data and network",
    "first step",
)
FIRST, LATER = "first run", "later runs"
TARGET, IMPORT_TARGET = 3.0, 0.8


def run(began: float, overrides: list[str]) -> dict[str, Any]:
    """The seconds of each of `PARTS` in this process, which began at a time of ``time.time``."""
    ends = [time.time()]
    import torch  # noqa: F401

    ends.append(time.time())
    import slide  # noqa: F401

    ends.append(time.time())
    from slide.compilation import compile_seconds
    from slide.config import build_trainer, read_config, user_errors

    config = read_config(overrides)
    ends.append(time.time())
    with user_errors():
        trainer = build_trainer(config)
    ends.append(time.time())
    with closing(trainer.monitor), closing(trainer.checkpoint):
        loss, _, _ = trainer.learner.forward(trainer.batches.batch(0, 0))
        trainer.learner.update(loss)
        ends.append(time.time())
    seconds = [end - begin for begin, end in zip([began, *ends], ends, strict=False)]
    parts = dict(zip(PARTS, seconds, strict=True))
    return {"parts": parts, "seconds": ends[-1] - began, "compile_seconds": compile_seconds()}


def in_own_process(overrides: list[str], kernels: Path) -> dict[str, Any]:
    """What `run` returns, of a process of its own that has its compiled kernels in a folder."""
    with tempfile.TemporaryDirectory() as scratch:
        words = [*overrides, f"run_dir={scratch}/run"]
        command = [sys.executable, __file__, RUN, repr(time.time()), *words]
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(kernels)}
        more = {"cwd": ROOT, "env": environment, "stdout": subprocess.PIPE}
        return json.loads(subprocess.run(command, check=True, **more).stdout.splitlines()[-1])


def measure(overrides: list[str], repeats: int) -> list[dict[str, Any]]:
    """The first run, and the medians of later ones."""
    with tempfile.TemporaryDirectory() as kernels:
        first = in_own_process(overrides, Path(kernels))
        later = [in_own_process(overrides, Path(kernels)) for _ in range(repeats)]
    parts = {each: statistics.median(found["parts"][each] for found in later) for each in PARTS}
    medians = {
        name: statistics.median(found[name] for found in later)
        for name in ("seconds", "compile_seconds")
    }
    return [{"case": FIRST} | first, {"case": LATER, "parts": parts} | medians]


def page(found: dict[str, Any]) -> str:
    """The generated page."""
    from report import table

    lines, (_, later) = [], found["rows"]
    for row in found["rows"]:
        cells = {"": row["case"]} | {part: f"{row['parts'][part]:.2f}" for part in PARTS}
        total = {"in all": f"{row['seconds']:.2f}", "compiling": f"{row['compile_seconds']:.2f}"}
        lines.append(cells | total)
    imported = later["parts"]["import torch"] + later["parts"]["import slide"]
    # No folder of a machine.
    words = [f"{w.partition('=')[0]}=..." if "/" in w else w for w in found["overrides"]]
    targets = [
        ("start to the end of the first step, s", later["seconds"], TARGET),
        ("importing torch and slide, s", imported, IMPORT_TARGET),
        ("compiling, s", later["compile_seconds"], 0.0),
    ]
    checks = [
        {
            "later runs": text,
            "target": f"at most {most:g}",
            "found": f"{value:.2f}",
            "": "met" if value <= most else "**missed**",
        }
        for text, value, most in targets
    ]
    return (
        "# From the start to the first step\n\n"
        f"`{' '.join(['python train.py', *words])}`, until the first step is done: seconds "
        "of its parts, in the order in which they come. The data were prepared before. The first "
        f"run finds no compiled kernels on the disk; of the {found['repeats']} later runs the "
        "table has medians. The seconds of compiling are part of the others.\n\n"
        + table(lines)
        + "\n"
        + table(checks)
    )


def main() -> None:
    if sys.argv[1:2] == [RUN]:
        print(json.dumps(run(float(sys.argv[2]), sys.argv[3:])))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", help="of train.py")
    parser.add_argument("--repeats", type=int, default=5, help="later runs")
    parser.add_argument("--results", type=Path, help="folder of figures and page")
    arguments = parser.parse_args()
    from report import RESULTS, publish

    from slide.config import open_dataset, read_config, user_errors

    os.chdir(ROOT)  # Caches lie in its datasets/.
    with user_errors():
        open_dataset(read_config(arguments.overrides))
    rows = measure(arguments.overrides, arguments.repeats)
    found = {"overrides": arguments.overrides, "repeats": arguments.repeats, "rows": rows}
    publish("start", found, page, arguments.results or RESULTS)


if __name__ == "__main__":
    main()
