"""Predictions beside the peers on the same rows, and requests a second of a server.

    pip install -e '.[bench]'
    python tests/benchmarks/prediction.py --root path/to/data --pecos-python pecos/bin/python
    python tests/benchmarks/prediction.py --root path/to/data --datasets debian --methods slide

Of each data set train.py trains a model without any setting, unless --run names the folder of one.
The server is asked from the same machine: a network of Amazon-670K's shape with random weights,
rows of random features, one row a request; then a smaller one while its model is replaced, its
files are cut, or it is stopped. --methods server alone takes less than three minutes. Rows that
there are for this commit and machine are not measured again (report.py). Writes
results/benchmarks/prediction.{json,md}.
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
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import peers
import requests
import torch
from report import RESULTS, ROOT, Row, Store, add_options, origin, parse, table
from runs import opened, place, run_train

from slide import FullSampler, SlideNetwork, runtime
from slide.data import Split
from slide.model import Model, load

GENERATED = {
    "amazon670k_like": [
        *("dataset=amazon670k_like", "dataset.train_samples=50000", "dataset.test_samples=2000"),
        *("dataset.cache=datasets/amazon670k_like/cache_50000", "trainer.max_epochs=5"),
    ]
}
METHODS = {
    "slide": "**slide**",
    "omikuji": "omikuji, 3 trees",
    "pecos": "PECOS XR-Linear, 3 models",
    "server": "slide-serve",
}
SEARCHES, QUANTILES, SINGLES = ("exact", "index"), (50, 95, 99), 2000
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
ABOUT = """\
# Predictions

Models are those of `train.py` without any setting, with their re-ranker. rows/s: all test rows in \
one call; the quantiles are of calls with one row. `exact` scores all labels, `index` those that \
an index over the weights brings up; a call that names neither takes the one in bold. The peers \
have their default settings. omikuji takes a call for each row, so its rows/s hold for single \
rows, too.

"""
SERVED = f"""
## Over HTTP

`slide-serve`, asked by a program that takes the rest of the same machine. A network of \
{FEATURES:,} features, {HIDDEN} hidden units and {LABELS:,} labels with random weights and no \
re-ranker; a request has one row of {NONZEROS} random features and asks for 5 labels. (Features, \
labels and their number in a row are those of Amazon-670K.) Each client asks again as soon as it \
has an answer, for {SECONDS} s. Times are those that a client sees.

"""
UPSET = f"""
The same network with {EVENT_LABELS:,} labels, by its index, for {SECONDS} s, with {SLOW} clients \
more whose requests take two seconds to arrive; what the table says happens halfway. No answer: \
the server ended the connection. Refused: nobody listens any more; a client tries again after 0.1 s.

"""


def overrides_of(name: str, root: Path) -> list[str]:
    return GENERATED.get(name) or place(name, root)


def measure(model: Model, rows: Split, search: str, singles: int) -> dict[str, float]:
    """All rows (raw, with their labels) in one call, and ``singles`` one after the other."""
    model.predict_ids(rows.slice(0, min(WARM, len(rows))).features, search=search)
    begin = time.perf_counter()
    ids, _ = model.predict_ids(rows.features, search=search)
    seconds, times = time.perf_counter() - begin, []
    for row in range(WARM + singles):
        x = rows.slice(row % len(rows), row % len(rows) + 1).features
        begin = time.perf_counter()
        model.predict_ids(x, search=search)
        times.append(time.perf_counter() - begin)
    waits = 1e3 * np.percentile(times[WARM:], QUANTILES)
    named = {f"p{q}": round(float(wait), 3) for q, wait in zip(QUANTILES, waits, strict=True)}
    return {f"p_at_{k}": peers.precision_at_k(ids, rows.labels, k) for k in peers.TOP} | (
        named | {"rows_per_second": round(len(rows) / seconds, 1)}
    )


def measure_ours(store: Store, name: str, arguments: argparse.Namespace) -> None:
    """The missing rows of both searches; a model is trained if there are some."""
    cases = [
        {"dataset": name, "method": "slide", "search": each, "clients": 0} for each in SEARCHES
    ]
    missing = list(store.missing(cases))
    if not missing:
        return
    words = overrides_of(name, arguments.root)
    data = opened(tuple(words))
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.run
        if folder is None:
            folder = Path(scratch) / "run"
            run_train(*words, folder=folder)
        model = load(folder)
        for case in missing:
            found = measure(model, data.test, case["search"], arguments.singles)
            sizes = {"rows": len(data.test), "labels": model.num_labels, "default": model.search}
            store.add([case | sizes | found])


def measure_peers(store: Store, name: str, peer: peers.Peer, method: str, root: Path) -> None:
    case = {"dataset": name, "method": method, "search": None, "clients": 0}
    for _ in store.missing([case], peer.version):
        data = opened(tuple(overrides_of(name, root)))
        found = peers.measure(peer, method, data)[-1]
        row = {each: found[each] for each in found if each.startswith("p_at_")}
        row |= {"rows_per_second": found["predict_rows_per_second"], "rows": len(data.test)}
        store.add([case | row | {"labels": data.num_labels}], peer.version)


def requests_of(search: str) -> list[bytes]:
    head = "POST /predict HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    rng, found = np.random.default_rng(0), []
    for _ in range(BODIES):
        indices = np.sort(rng.choice(FEATURES, NONZEROS, False)).tolist()
        row = {"indices": indices, "values": rng.random(NONZEROS).round(4).tolist()}
        body = json.dumps({"rows": [row], "search": search})
        found.append(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return found


class Crowd:
    """Clients that ask again as soon as they have an answer, for some seconds.

    ``waits`` has the seconds from a request to its answer, and ``outcomes`` counts statuses, and
    requests that had none.
    """

    def __init__(self, address: str, bodies: list[bytes]):
        self.place, self.bodies = urlsplit(address), bodies
        self.waits: list[float] = []
        self.outcomes: Counter[str] = Counter()

    def ask(self, clients: int, slow: int, seconds: float, event: Callable[[], None]) -> None:
        async def whole() -> None:
            end = time.perf_counter() + seconds
            asking = [self._client(end, 1) for _ in range(clients)]
            asking += [self._client(end, 20) for _ in range(slow)]
            await asyncio.gather(*asking, self._later(seconds / 2, event))

        asyncio.run(whole())

    async def _later(self, seconds: float, event: Callable[[], None]) -> None:
        await asyncio.sleep(seconds)
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


def measure_server(store: Store, arguments: argparse.Namespace) -> None:
    cases = [
        {"dataset": "requests", "method": "server", "search": search, "clients": clients}
        for search in SEARCHES
        for clients in CLIENTS
    ]
    cases += [
        {"dataset": event, "method": "server", "search": "index", "clients": clients}
        for event in EVENTS
        for clients in CROWDS
    ]
    missing, threads = list(store.missing(cases)), max(1, (os.cpu_count() or 2) - 1)
    random.seed(0)
    for labels in sorted({labels_of(case, arguments) for case in missing}):
        own = [case for case in missing if labels_of(case, arguments) == labels]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            torch.manual_seed(0)
            Model(SlideNetwork(FEATURES, [HIDDEN], labels, FullSampler)).save(folder / "model")
            if any(case["dataset"] in EVENTS for case in own):
                shutil.copytree(folder / "model", folder / "whole")
            while own:  # One server answers until something happened to it or to its files.
                with server(folder / "model", folder / "log", threads) as (address, process):
                    while own:
                        case = own.pop(0)
                        found = ask(address, process, case, folder, arguments.seconds)
                        store.add([case | found | {"labels": labels, "server": threads}])
                        if case["dataset"] not in ("requests", "quiet"):
                            break
                if own:
                    shutil.rmtree(folder / "model")
                    shutil.copytree(folder / "whole", folder / "model")


def labels_of(case: Row, arguments: argparse.Namespace) -> int:
    return arguments.labels if case["dataset"] == "requests" else arguments.event_labels


def ask(address: str, process: Any, case: Row, folder: Path, seconds: float) -> dict[str, Any]:
    """What clients see; half of the seconds before the event of the case, and half after it."""
    crowd, event = Crowd(address, requests_of(case["search"])), case["dataset"]
    before, slow = batches(address), 0 if event == "requests" else SLOW

    def happen() -> None:
        if event == "renamed":
            for _ in range(max(1, int(seconds / 2))):
                shutil.copytree(folder / "whole", folder / "new")
                (folder / "model").rename(folder / "old")
                (folder / "new").rename(folder / "model")
                shutil.rmtree(folder / "old")
                time.sleep(1)
        elif event == "cut":
            os.truncate(folder / "model" / "network.safetensors", 100)
        elif event == "stopped":
            process.send_signal(signal.SIGTERM)

    crowd.ask(case["clients"], slow, seconds, happen)
    found = {f"p{q}": round(1e3 * float(np.percentile(crowd.waits, q)), 1) for q in QUANTILES}
    found["rows_per_second"] = round(len(crowd.waits) / seconds, 1)
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
    text = ABOUT + (table(lines) if lines else "")
    served = sorted((r for r in rows if r["dataset"] == "requests"), key=lambda r: r["search"])
    upset = [row for event in EVENTS for row in rows if row["dataset"] == event]
    if served:
        threads = served[0]["server"]
        text += SERVED + table(
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
        text += UPSET + table(
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, ["debian", "files", *GENERATED], [0])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--run", type=Path, help="a trained model, instead of training one")
    parser.add_argument("--singles", type=int, default=SINGLES, help="calls with one row")
    parser.add_argument("--labels", type=int, default=LABELS, help="of the server")
    parser.add_argument("--event-labels", type=int, default=EVENT_LABELS, help="beside events")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a number of clients")
    peers.add_pecos(parser)
    parser.set_defaults(results=RESULTS)
    arguments = parse(parser)
    runtime.set_threads(0)
    store = Store("prediction", ("dataset", "method", "search", "clients"), page, arguments)
    if not arguments.render:
        found = peers.installed(arguments.methods, arguments.pecos_python)
        os.chdir(ROOT)  # Caches lie in its datasets/.
        for name in arguments.datasets:
            if "slide" in arguments.methods:
                measure_ours(store, name, arguments)
            for method, peer in found.items():
                measure_peers(store, name, peer, method, arguments.root)
        if "server" in arguments.methods:
            measure_server(store, arguments)
    store.render()
    store.report()


if __name__ == "__main__":
    main()
