"""Predictions beside the peers on the same rows, and requests a second of a server.

    pip install -e '.[bench]'
    python benchmarks/prediction.py --root path/to/data --pecos-python pecos/bin/python
    python benchmarks/prediction.py --root path/to/data --datasets debian --methods slide

Of each data set train.py trains a model without any setting.
Writes results/benchmarks/prediction.{json,md}.
"""

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import harness
import numpy as np
import peers
import requests
import torch
from harness import RESULTS, ROOT, Row, Store, fill_page, grid, opened, origin, run_train, table

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
# What happens halfway to a server of fewer labels, which starts sooner, beside slow clients, whose
# requests take two seconds to arrive.
EVENT_LABELS, CROWDS, SLOW = 100_000, (64, 256), 8
EVENTS = {
    "quiet": "nothing",
    "renamed": "its folder is replaced by a rename, each second",
    "cut": "a file of it is cut in place",
    "stopped": "SIGTERM",
}


def overrides_of(name: str, root: Path) -> list[str]:
    return GENERATED.get(name) or harness.overrides_of(name, root)


def figures(model: Model, rows: Split, search: str) -> Row:
    """Of all rows (raw, with their labels) in one call, and of one after the other."""
    model.predict_ids(rows.slice(0, min(WARM, len(rows))).features, search=search)
    begin = time.perf_counter()
    ids, _ = model.predict_ids(rows.features, search=search)
    seconds, times = time.perf_counter() - begin, []
    while len(times) < WARM + SINGLES and sum(times) < SECONDS_OF_SINGLES:
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
            if model is None:
                run_train(*words, folder=Path(scratch) / "run")
                model = load(Path(scratch) / "run")
        store.add([case | figures(model, rows, case["search"])])


def of_peer(peer: peers.Peer, method: str, words: list[str], _: Row) -> Row:
    data = opened(tuple(words))
    found = peers.measure(peer, method, data)[-1]
    row = {"rows_per_second": found.pop("predict_rows_per_second"), "rows": len(data.test)}
    scores = {name: found[name] for name in found if name.startswith("p_at_")}
    return scores | row | {"labels": data.num_labels}


def requests_of(search: str) -> list[bytes]:
    head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    rng, found = np.random.default_rng(0), []
    for _ in range(BODIES):
        indices = np.sort(rng.choice(FEATURES, NONZEROS, False)).tolist()
        row = {"indices": indices, "values": rng.random(NONZEROS).round(4).tolist()}
        body = json.dumps({"rows": [row], "search": search})
        found.append(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return found


class Crowd:
    """Clients that ask again as soon as they have an answer, for `SECONDS`.

    ``waits`` has the seconds from a request to its answer, and ``outcomes`` counts statuses, and
    requests that had none.
    """

    def __init__(self, address: str, bodies: list[bytes]):
        self.place, self.bodies = urlsplit(address), bodies
        self.waits: list[float] = []
        self.outcomes: Counter[str] = Counter()

    def ask(self, clients: int, slow: int, event: Callable[[], None]) -> None:
        async def whole() -> None:
            end = time.perf_counter() + SECONDS
            asking = [self._client(end, 1) for _ in range(clients)]
            asking += [self._client(end, 20) for _ in range(slow)]
            await asyncio.gather(*asking, self._later(event))

        asyncio.run(whole())

    async def _later(self, event: Callable[[], None]) -> None:
        await asyncio.sleep(SECONDS / 2)
        await asyncio.to_thread(event)

    async def _client(self, end: float, pieces: int) -> None:
        writer = None
        while (begin := time.perf_counter()) < end:
            try:
                if writer is None:
                    where = self.place.hostname, self.place.port
                    reader, writer = await asyncio.open_connection(*where)
            except ConnectionRefusedError:
                self.outcomes["refused"] += 1
                await asyncio.sleep(0.1)
                continue
            try:
                closes = await self._request(reader, writer, pieces, begin)
            except (OSError, asyncio.IncompleteReadError):
                self.outcomes["no answer"] += 1
                closes = True
            if closes:
                writer.close()
                writer = None
        if writer is not None:
            writer.close()

    async def _request(self, reader: Any, writer: Any, pieces: int, begin: float) -> bool:
        """Whether the connection ends with the answer."""
        body = random.choice(self.bodies)
        size = -(-len(body) // pieces)
        for start in range(0, len(body), size):
            writer.write(body[start : start + size])
            if pieces > 1:
                await asyncio.sleep(2 / pieces)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        lengths = re.search(r"content-length: (\d+)", head)
        await reader.readexactly(int(lengths[1]) if lengths else 0)
        self.outcomes[head.split()[1]] += 1
        if pieces == 1:
            self.waits.append(time.perf_counter() - begin)
        return "connection: close" in head


@contextmanager
def server(folder: Path, log: Path, threads: int) -> Iterator[tuple[str, subprocess.Popen]]:
    """The address of a server, which is stopped in the end, and its process."""
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
        yield found[1], process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def batches(address: str) -> np.ndarray:
    """How many rows were answered so far, and in how many products."""
    text = requests.get(f"{address}/metrics", timeout=10).text
    found = [re.search(rf"slide_batch_rows_{name} ([\d.e+]+)", text) for name in ("sum", "count")]
    return np.array([float(each[1]) for each in found if each])


def measure_server(store: Store) -> None:
    of_server = {"method": ["server"]}
    cases = grid(dataset=["requests"], **of_server, search=SEARCHES, clients=CLIENTS)
    cases += grid(dataset=EVENTS, **of_server, search=["index"], clients=CROWDS)
    missing, threads = list(store.missing(cases)), max(1, (os.cpu_count() or 2) - 1)
    random.seed(0)
    for labels in (EVENT_LABELS, LABELS):
        own = [case for case in missing if (case["dataset"] in EVENTS) == (labels == EVENT_LABELS)]
        if not own:
            continue
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            torch.manual_seed(0)
            Model(SlideNetwork(FEATURES, [HIDDEN], labels, FullSampler)).save(folder / "model")
            if labels == EVENT_LABELS:
                shutil.copytree(folder / "model", folder / "whole")
            while own:  # One server answers until something happened to it or to its files.
                with server(folder / "model", folder / "log", threads) as (address, process):
                    while own:
                        case = own.pop(0)
                        found = ask(address, process, case, folder)
                        store.add([case | found | {"labels": labels, "server": threads}])
                        if case["dataset"] not in ("requests", "quiet"):
                            break
                if own:
                    shutil.rmtree(folder / "model")
                    shutil.copytree(folder / "whole", folder / "model")


def ask(address: str, process: Any, case: Row, folder: Path) -> dict[str, Any]:
    """What clients see; half of the seconds before the event of the case, and half after it."""
    crowd, event = Crowd(address, requests_of(case["search"])), case["dataset"]
    before, slow = batches(address), 0 if event == "requests" else SLOW

    def happen() -> None:
        if event == "renamed":
            for _ in range(SECONDS // 2):
                shutil.copytree(folder / "whole", folder / "new")
                (folder / "model").rename(folder / "old")
                (folder / "new").rename(folder / "model")
                shutil.rmtree(folder / "old")
                time.sleep(1)
        elif event == "cut":
            os.truncate(folder / "model" / "network.safetensors", 100)
        elif event == "stopped":
            process.send_signal(signal.SIGTERM)

    crowd.ask(case["clients"], slow, happen)
    found = {f"p{q}": round(1e3 * float(np.percentile(crowd.waits, q)), 1) for q in QUANTILES}
    found["rows_per_second"] = round(len(crowd.waits) / SECONDS, 1)
    if event != "requests":
        names = ("200", "503", "no answer", "refused")
        assert crowd.outcomes.keys() <= set(names), crowd.outcomes
        return found | {"outcomes": {name: crowd.outcomes[name] for name in names}}
    assert crowd.outcomes.keys() == {"200"}, crowd.outcomes
    rows, products = batches(address) - before
    return found | {"batch": float(rows / products)}


def page(found: dict[str, Any]) -> str:
    rows, order = found["rows"], list(METHODS)
    rows = sorted(rows, key=lambda r: (r["labels"], order.index(r["method"]), r["clients"]))
    lines = [line_of(row) for row in rows if row["method"] != "server"]
    text = harness.prose("prediction", "about") + (table(lines) if lines else "")
    served = sorted((r for r in rows if r["dataset"] == "requests"), key=lambda r: r["search"])
    upset = [row for event in EVENTS for row in rows if row["dataset"] == event]
    if served:
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
    if upset:
        told = {"labels": EVENT_LABELS, "seconds": SECONDS, "slow": SLOW}
        text += harness.prose("prediction", "upset", **told) + table(
            [
                {
                    "halfway": EVENTS[row["dataset"]],
                    "clients": f"{row['clients']} + {SLOW}",
                    "requests/s": f"{row['rows_per_second']:.0f}",
                    **{f"p{q}, ms": f"{row[f'p{q}']:.0f}" for q in (50, 99)},
                    **{f"status {name}" if name.isdecimal() else name: f"{count:,}"
                       for name, count in row["outcomes"].items()},
                }
                for row in upset
            ]
        )  # fmt: skip
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
        measure_server(store)


def main() -> None:
    parser = harness.options(__doc__, ["debian", "files", *GENERATED], [0], RESULTS)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    peers.add_pecos(parser)
    fill_page("prediction", ("dataset", "method", "search", "clients"), page, measure, parser)


if __name__ == "__main__":
    main()
