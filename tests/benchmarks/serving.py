"""Requests a second and waiting times of a server, asked by locust on the same machine.

A network of Amazon-670K's shape with random weights, rows of random features, one row a request:

    python tests/benchmarks/serving.py
"""

import argparse
import csv
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import numpy as np
import requests
import torch
from report import RESULTS, last, publish, table

from slide import FullSampler, SlideNetwork
from slide.model import Model

FEATURES, LABELS, HIDDEN, NONZEROS = 135_909, 670_091, 256, 75
CLIENTS, BODIES, SECONDS = (1, 8, 64), 512, 8
FOLDER = RESULTS.parent
# A file of locust; each user asks again as soon as it has an answer.
USER = """
import os, random
from locust import FastHttpUser, constant, task

BODIES = open(os.environ["SLIDE_BODIES"]).read().splitlines()

class Asking(FastHttpUser):
    wait_time = constant(0)

    @task
    def predict(self):
        headers = {"Content-Type": "application/json"}
        self.client.post("/predict", data=random.choice(BODIES), headers=headers)
"""


def make_model(folder: Path, labels: int) -> None:
    """Save a network with random weights."""
    torch.manual_seed(0)
    Model(SlideNetwork(FEATURES, [HIDDEN], labels, FullSampler)).save(folder)


def draw_row(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of features and their values."""
    indices = np.sort(rng.choice(FEATURES, NONZEROS, False))
    return indices, rng.random(NONZEROS).round(4)


def write_bodies(path: Path, search: str) -> None:
    """A request in each line."""
    rng, lines = np.random.default_rng(0), []
    for _ in range(BODIES):
        indices, values = draw_row(rng)
        row = {"indices": indices.tolist(), "values": values.tolist()}
        lines.append(json.dumps({"rows": [row], "search": search}))
    path.write_text("\n".join(lines))


@contextmanager
def server(folder: Path, log: Path, threads: int) -> Iterator[str]:
    """The address of a server, which is stopped in the end."""
    words = [sys.executable, "-m", "slide.serve", folder, "--port", "0", "--threads", str(threads)]
    words += ["--search", "index"]  # Made before the first request; each names its search.
    environment = {**os.environ, "PYTHONPATH": str(FOLDER.parent)}
    with log.open("w") as file:
        process = subprocess.Popen(words, stderr=file, env=environment)
    try:
        while not (found := re.search(r"running on (http://[\d.:]+)", log.read_text())):
            if process.poll() is not None:
                sys.exit(f"the server did not start:\n{log.read_text()}")
            time.sleep(0.1)
        yield found[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def batches(address: str) -> np.ndarray:
    """How many rows were answered so far, and in how many products."""
    text = requests.get(f"{address}/metrics", timeout=10).text
    found = [re.search(rf"slide_batch_rows_{name} ([\d.e+]+)", text) for name in ("sum", "count")]
    return np.array([float(each[1]) for each in found if each])


def drive(address: str, clients: int, bodies: Path, seconds: float) -> dict[str, float]:
    """What locust reports of some clients."""
    folder = bodies.parent
    (folder / "user.py").write_text(USER)
    words = [sys.executable, "-m", "locust", "-f", folder / "user.py", "--host", address]
    words += ["--headless", "--only-summary", "--reset-stats", "--csv", folder / "stats"]
    words += ["-u", clients, "-r", clients, "-t", f"{seconds:g}s"]
    before = batches(address)
    environment = {**os.environ, "SLIDE_BODIES": str(bodies)}
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, env=environment)
    rows, products = batches(address) - before
    if done.returncode:
        sys.exit(f"locust failed:\n{done.stderr}")
    with (folder / "stats_stats.csv").open() as file:
        total = next(row for row in csv.DictReader(file) if row["Name"] == "Aggregated")
    assert int(total["Failure Count"]) == 0, total
    figures = {f"p{p}": float(total[f"{p}%"]) for p in (50, 95, 99)}
    return {"rate": float(total["Requests/s"]), **figures, "batch": float(rows / products)}


def page(found: dict) -> str:
    rows = [
        {
            "search": search,
            "clients": clients,
            "requests/s": f"{row['rate']:.1f}",
            **{f"{p}, ms": f"{row[p]:.0f}" for p in ("p50", "p95", "p99")},
            "rows in a batch": f"{row['batch']:.1f}",
        }
        for search, cases in found["cases"].items()
        for clients, row in cases.items()
    ]
    return (
        f"# Serving\n\n`slide-serve --threads {found['threads']}`, asked by locust "
        f"{found['locust']}, which takes the rest of the same machine. A network of "
        f"{FEATURES:,} features, {HIDDEN} hidden units and {found['labels']:,} labels with random "
        f"weights and no re-ranker; a request has one row of {NONZEROS} random features and asks "
        "for 5 labels. (Features, labels and their number in a row are those of Amazon-670K.) Each "
        f"client asks again as soon as it has an answer, for {found['seconds']:g} s. `index` "
        "scores the few labels that an index over the weights brings up. Times are those that a "
        "client sees; locust rounds them to milliseconds, and from 100 ms "
        f"on to 10 ms.\n\n{table(rows)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--labels", type=int, default=LABELS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each case")
    left = max(1, (os.cpu_count() or 2) - 1)
    parser.add_argument("--threads", type=int, default=left, help="of the server")
    parser.add_argument("--render", action="store_true", help="write the page again")
    options = parser.parse_args()
    if options.render:
        publish("serving", last("serving", FOLDER), page, FOLDER)
        return
    cases: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(folder / "model", options.labels)
        with server(folder / "model", folder / "log", options.threads) as address:
            for search in ("exact", "index"):
                write_bodies(folder / "bodies", search)
                cases[search] = {}
                for clients in CLIENTS:
                    case = drive(address, clients, folder / "bodies", options.seconds)
                    cases[search][str(clients)] = case
                    print(search, clients, case, flush=True)
    sizes = {key: getattr(options, key) for key in ("labels", "seconds", "threads")}
    found = {"locust": metadata.version("locust"), "cases": cases}
    publish("serving", {**sizes, **found}, page, FOLDER)


if __name__ == "__main__":
    main()
