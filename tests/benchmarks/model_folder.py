"""Size of a model folder, how long it takes to open, and what weights of 16 and 8 bits cost.

Random weights of the shape of Amazon-670K, and a trained run of the data set debian:

    python train.py dataset=debian run_dir=results/debian/for_model_folder
    python tests/benchmarks/model_folder.py results/debian/for_model_folder datasets/debian/test.txt
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from report import RESULTS, publish, table

from slide import FullSampler, SlideNetwork, runtime
from slide.model import Model, load

FEATURES, HIDDEN, LABELS, NONZEROS = 135_909, 512, 670_091, 75
# Settings of the run that its page tells.
SHOWN = (("network", "hidden"), ("trainer", "epochs"))
DTYPES = ("float32", "bfloat16", "int8")
# In a process of its own, and without the time of `import slide`.
OPEN = """
import json, sys, time
import numpy as np, slide
from memory import memory
begin, before = time.perf_counter(), memory("VmRSS")
model = slide.load(sys.argv[1], verify=False)
found = {"open": time.perf_counter() - begin, "resident": memory("VmRSS") - before}
rng, times = np.random.default_rng(0), []
for _ in range(30):
    columns = np.sort(rng.choice(model.num_features, int(sys.argv[2]), False)).astype(np.int32)
    values = np.full(len(columns), len(columns) ** -0.5, np.float32)
    row = slide.CSR(np.array([0, len(columns)]), columns, values)
    begin = time.perf_counter()
    model.predict(row)
    times.append(time.perf_counter() - begin)
found |= {"first": times[0], "next": float(np.median(times[1:]))}
print(json.dumps(found))
"""


def open_elsewhere(folder: Path) -> dict[str, float]:
    """What a process measures that opens a model and predicts one row after the other."""
    words = [sys.executable, "-c", OPEN, str(folder), str(NONZEROS)]
    here = Path(__file__).parent
    root = here.parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{root}:{here}"}
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout)


def measure_opening(folder: Path, labels: int) -> dict[str, dict[str, float]]:
    """Seconds and bytes of a large network with random weights."""
    torch.manual_seed(0)
    model, found = Model(SlideNetwork(FEATURES, [HIDDEN], labels, FullSampler)), {}
    for dtype in DTYPES:
        begin = time.perf_counter()
        model.save(folder / dtype, dtype)
        saved = time.perf_counter() - begin
        size = sum(path.stat().st_size for path in (folder / dtype).iterdir())
        found[dtype] = {"save": saved, "bytes": size, **open_elsewhere(folder / dtype)}
    return found


def measure_precision(run: Path, rows: Path, folder: Path) -> dict[str, dict[str, float]]:
    """Precision of a trained model in each type, and bytes of its network."""
    found = {}
    for dtype in DTYPES:
        load(run).save(folder / f"run_{dtype}", dtype)
        words = [sys.executable, "-m", "slide.predict", folder / f"run_{dtype}", rows]
        begin = time.perf_counter()
        more = ["--metrics", folder / "m.json", "-o", folder / "answers.jsonl"]
        subprocess.run([*words, *more], check=True, capture_output=True)
        count = sum(1 for _ in (folder / "answers.jsonl").open())
        seconds = time.perf_counter() - begin
        size = (folder / f"run_{dtype}" / "network.safetensors").stat().st_size
        more = {"rows": count / seconds, "bytes": size}
        found[dtype] = json.loads((folder / "m.json").read_text()) | more
    return found


def page(found: dict) -> str:
    opening = [
        {
            "weights": dtype,
            "GB": f"{row['bytes'] / 1e9:.2f}",
            "save, s": f"{row['save']:.1f}",
            "open, s": f"{row['open']:.3f}",
            "resident after it, MB": f"{row['resident'] / 1e6:,.0f}",
            "first row, ms": f"{1e3 * row['first']:.0f}",
            "next rows, ms": f"{1e3 * row['next']:.0f}",
        }
        for dtype, row in found["opening"].items()
    ]
    precision = [
        {
            "weights": dtype,
            **({"network, MB": f"{row['bytes'] / 1e6:.1f}"} if "bytes" in row else {}),
            **{f"P@{k}": f"{100 * row[f'p_at_{k}']:.2f}" for k in (1, 3, 5)},
            "rows/s": f"{row['rows']:.0f}",
        }
        for dtype, row in found["precision"].items()
    ]
    told = ", ".join(f"{key}={value}" for key, value in found["settings"].items())
    shape = f"{FEATURES:,} features, {HIDDEN} hidden units and {found['labels']:,} labels"
    return (
        f"# The folder of a model\n\nA network of {shape} with random weights, exact search, one "
        "row after the other, in a new process; files that were just written, threads: "
        f"{found['threads']}. `open` is without `import slide`, and with "
        "`verify=False`: no hashes are compared.\n\n"
        f"{table(opening)}\nA trained run of debian ({told}) with its re-ranker, predicted by "
        f"`slide-predict` in each type, with the start of the process:\n\n{table(precision)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a run of debian")
    parser.add_argument("rows", type=Path, help="its test rows, with their labels")
    parser.add_argument("--labels", type=int, default=LABELS, help="of the random network")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the page")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, settings = Path(name), load(arguments.run).settings
        found = {
            "threads": runtime.num_threads(),
            "labels": arguments.labels,
            "opening": measure_opening(folder, arguments.labels),
            "settings": {key: settings[group][key] for group, key in SHOWN},
            "precision": measure_precision(arguments.run, arguments.rows, folder),
        }
    arguments.results.mkdir(parents=True, exist_ok=True)
    publish("model_folder", found, page, arguments.results)


if __name__ == "__main__":
    main()
