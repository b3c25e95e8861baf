"""Predictions beside the peers on the same rows, and requests a second of a server.

    pip install -e '.[bench]'
    python tests/benchmarks/prediction.py --root path/to/data --pecos-python pecos/bin/python
    python tests/benchmarks/prediction.py --root path/to/data --datasets debian --methods slide

Of each data set train.py trains a model without any setting, unless --run names the folder of one.
Writes results/benchmarks/prediction.{json,md}.
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
from functools import partial
from pathlib import Path
from typing import Any

import harness
import numpy as np
import peers
import requests
import torch
from harness import RESULTS, ROOT, Row, Store, fill_page, grid, of, opened, origin, run_train, table

from slide import FullSampler, SlideNetwork
from slide.data import Split
from slide.model import Model, load

GENERATED = {
    "amazon670k_like": [
        *("dataset=amazon670k_like", "dataset.train_samples=20000", "dataset.test_samples=2000"),
        *("dataset.cache=datasets/amazon670k_like/cache_20000", "trainer.max_epochs=5"),
    ]
}
METHODS = {
    "slide": "**slide**",
    "omikuji": "omikuji, 3 trees",
    "pecos-1": "PECOS XR-Linear, 1 model",
    "server": "slide-serve",
}
SEARCHES, QUANTILES = ("exact", "index"), (50, 95, 99)
# Calls with one row, at most, and seconds of them.
SINGLES, SECONDS_OF_SINGLES = 2000, 15
# The first rows are not timed: they make indexes and compile kernels.
WARM = 20
# What the server answers.
FEATURES, LABELS, HIDDEN, NONZEROS = 135_909, 670_091, 256, 75
CLIENTS, BODIES, SECONDS = (1, 8, 64), 512, 8
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


def overrides_of(name: str, root: Path) -> list[str]:
    return GENERATED.get(name) or harness.overrides_of(name, root)


def figures(model: Model, rows: Split, search: str, singles: int) -> Row:
    """Of all rows (raw, with their labels) in one call, and of one after the other."""
    model.predict_ids(rows.slice(0, min(WARM, len(rows))).features, search=search)
    begin = time.perf_counter()
    ids, _ = model.predict_ids(rows.features, search=search)
    seconds, times = time.perf_counter() - begin, []
    while len(times) < WARM + singles and sum(times) < SECONDS_OF_SINGLES:
        row = len(times) % len(rows)
        x = rows.slice(row, row + 1).features
        begin = time.perf_counter()
        model.predict_ids(x, search=search)
        times.append(time.perf_counter() - begin)
    waits = 1e3 * np.percentile(times[WARM:], QUANTILES)
    sizes = {"rows": len(rows), "labels": model.num_labels, "default": model.search}
    named = {f"p{q}": round(float(wait), 3) for q, wait in zip(QUANTILES, waits, strict=True)}
    scores = {f"p_at_{k}": peers.precision_at_k(ids, rows.labels, k) for k in peers.TOP}
    return scores | named | {"rows_per_second": round(len(rows) / seconds, 1)} | sizes


def measure_ours(store: Store, name: str, arguments: argparse.Namespace) -> None:
    """The missing rows of both searches; a model is trained if there are some."""
    words, model = overrides_of(name, arguments.root), None
    cases = grid(dataset=[name], method=["slide"], search=SEARCHES, clients=[0])
    for case in store.missing(cases):
        rows = opened(tuple(words)).test
        with tempfile.TemporaryDirectory() as scratch:
            folder = arguments.run or Path(scratch) / "run"
            if not (model or arguments.run):
                run_train(*words, folder=folder)
            model = model or load(folder)
        store.add([case | figures(model, rows, case["search"], arguments.singles)])


def of_peer(peer: peers.Peer, method: str, words: list[str], _: Row) -> Row:
    data = opened(tuple(words))
    found = peers.measure(peer, method, data)[-1]
    row = {"rows_per_second": found.pop("predict_rows_per_second"), "rows": len(data.test)}
    scores = {name: found[name] for name in found if name.startswith("p_at_")}
    return scores | row | {"labels": data.num_labels}


def write_bodies(path: Path, search: str) -> None:
    rng, lines = np.random.default_rng(0), []
    for _ in range(BODIES):
        indices = np.sort(rng.choice(FEATURES, NONZEROS, False)).tolist()
        row = {"indices": indices, "values": rng.random(NONZEROS).round(4).tolist()}
        lines.append(json.dumps({"rows": [row], "search": search}))
    path.write_text("\n".join(lines))


@contextmanager
def server(folder: Path, log: Path, threads: int) -> Iterator[str]:
    """The address of a server, which is stopped in the end."""
    words = [sys.executable, "-m", "slide.serve", folder, "--port", "0", "--threads", str(threads)]
    words += ["--search", "index"]  # Made before the first request; each names its search.
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
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


def ask(address: str, clients: int, bodies: Path, seconds: float) -> dict[str, float]:
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
    figures = {f"p{p}": float(total[f"{p}%"]) for p in QUANTILES}
    rate = float(total["Requests/s"])
    return figures | {"rows_per_second": rate, "batch": float(rows / products)}


def measure_server(store: Store, arguments: argparse.Namespace) -> None:
    cases = grid(dataset=["requests"], method=["server"], search=SEARCHES, clients=CLIENTS)
    missing = list(store.missing(cases))
    if not missing:
        return
    with tempfile.TemporaryDirectory() as name:
        folder, threads = Path(name), max(1, (os.cpu_count() or 2) - 1)
        torch.manual_seed(0)
        network = SlideNetwork(FEATURES, [HIDDEN], arguments.labels, FullSampler)
        Model(network).save(folder / "model")
        with server(folder / "model", folder / "log", threads) as address:
            for case in missing:
                write_bodies(folder / "bodies", case["search"])
                found = ask(address, case["clients"], folder / "bodies", arguments.seconds)
                store.add([case | found | {"labels": arguments.labels, "server": threads}])


def page(found: dict[str, Any]) -> str:
    rows, order = found["rows"], list(METHODS)
    rows = sorted(rows, key=lambda r: (r["labels"], order.index(r["method"]), r["clients"]))
    lines = [line_of(row) for row in rows if row["method"] != "server"]
    text = harness.prose("prediction", "about") + (table(lines) if lines else "")
    if served := sorted(of(rows, method="server"), key=lambda row: row["search"]):
        threads = served[0]["server"]
        sizes = {"features": FEATURES, "hidden": HIDDEN, "labels": LABELS, "nonzeros": NONZEROS}
        text += harness.prose("prediction", "served", **sizes, seconds=SECONDS) + table(
            [
                {
                    f"threads: {threads}": row["search"],
                    "clients": row["clients"],
                    "requests/s": f"{row['rows_per_second']:.1f}",
                    **{f"p{q}, ms": f"{row[f'p{q}']:.0f}" for q in QUANTILES},
                    "rows in a batch": f"{row['batch']:.1f}",
                }
                for row in served
            ]
        )
    return text + origin(rows)


def line_of(row: Row) -> dict[str, str]:
    name = METHODS[row["method"]]
    if row["search"]:
        search = f"`{row['search']}`"
        name += f", {f'**{search}**' if row['search'] == row['default'] else search}"
    return {
        "data set": row["dataset"],
        "labels": f"{row['labels']:,}",
        "": name,
        "P@1 / P@3 / P@5": " / ".join(f"{100 * row[f'p_at_{k}']:.2f}" for k in (1, 3, 5)),
        "rows/s": f"{row['rows_per_second']:,.0f}",
        **{f"p{q}, ms": f"{row[f'p{q}']:.1f}" if f"p{q}" in row else "" for q in QUANTILES},
    }


def measure(store: Store, arguments: argparse.Namespace) -> None:
    found = peers.installed(arguments.methods, arguments.pecos_python)
    for name in arguments.datasets:
        if "slide" in arguments.methods:
            measure_ours(store, name, arguments)
        for method, peer in found.items():
            cases = grid(dataset=[name], method=[method], search=[None], clients=[0])
            words = overrides_of(name, arguments.root)
            store.fill(cases, partial(of_peer, peer, method, words), peer.version)
    if "server" in arguments.methods:
        measure_server(store, arguments)


def main() -> None:
    parser = harness.options(__doc__, ["debian", "files", *GENERATED], [0], RESULTS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--run", type=Path, help="a trained model, instead of training one")
    parser.add_argument("--singles", type=int, default=SINGLES, help="calls with one row, at most")
    parser.add_argument("--labels", type=int, default=LABELS, help="of the server")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a number of clients")
    peers.add_pecos(parser)
    fill_page("prediction", ("dataset", "method", "search", "clients"), page, measure, parser)


if __name__ == "__main__":
    main()
