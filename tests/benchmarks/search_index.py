"""top_k by an index over the weights beside exact search: what is found, how fast, at which cost.

    python tests/benchmarks/search_index.py --root path/to/data
    python tests/benchmarks/search_index.py --root path/to/data --datasets debian --epochs 2

Trains the default network with uniform draws and without a re-ranker, in this process, and asks its
output layer for the 5 best labels of all test rows, in batches of 1,000 and one by one: by exact
search, by `slide.search.RowIndex` with several shares of the rows that a query may see, and by
FAISS (IVF over the rows with the bias as a coordinate) with several numbers of lists. Writes
results/search_index.{json,md} after each measurement; rows that there are for this commit and
machine are not measured again (rows.py). amazon670k_like is generated, for times at its number of
labels.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from precision_page import TITLES
from report import table
from rows import PAGES, Row, Store, add_options, key, origin, parse
from runs import trained
from sets import GENERATED, place
from train_process import ROOT, warm_up

from slide import FaissProposer, SampledLinear, runtime
from slide.search import RowIndex, exact_top_k
from slide.search.row_index import SHARE
from slide.sparse import Pattern
from slide.training.metrics import precision_at_k

K, BATCH, SINGLE = 5, 1_000, 100
PLACES = (1, 3, 5)
# By method, the settings: the share of rows that a query may see, and lists that it visits.
CASES = {"exact": (None,), "index": (0.005, 0.01, SHARE, 0.03, 0.05), "faiss": (16, 64)}
Search = Callable[[torch.Tensor], np.ndarray]


def searches(layer: SampledLinear, wanted: list[Row]) -> Iterator[tuple[Row, Search, Row]]:
    """Each wanted case, its search from inputs to ids, and what making its index took."""
    made: dict[str, Any] = {}
    weight, bias = layer.weight.detach(), layer.bias
    for case in wanted:
        method, setting = case["method"], case["setting"]
        if method == "exact":
            yield case, lambda x: exact_top_k(x, weight, bias, K)[1].numpy(), {}
            continue
        if method not in made:
            begin = time.perf_counter()
            if method == "index":
                index = RowIndex(weight, bias)
            else:
                index = FaissProposer(layer.in_features, layer.out_features, kind="ivf")
                index.rebuild(weight, bias)
            seconds = time.perf_counter() - begin
            size = index.nbytes if method == "index" else len(index.state_dict()["index"])
            made[method] = index, {"build": seconds, "memory": size / weight.nbytes}
        index, cost = made[method]
        if method == "index":
            yield case, lambda x, i=index, s=setting: i.top_k(x, K, s)[1].numpy(), cost
        else:
            index.index.nprobe = setting
            yield case, lambda x, i=index: i.search(x, K), cost


def answers(search: Search, hidden: torch.Tensor) -> tuple[np.ndarray, Row]:
    """Ids ``(rows, K)`` of all inputs, and how long they took."""
    search(hidden[:BATCH])
    begin = time.perf_counter()
    ids = np.concatenate([search(part) for part in hidden.split(BATCH)])
    seconds, single = time.perf_counter() - begin, []
    for b in range(min(SINGLE, len(hidden))):
        begin = time.perf_counter()
        search(hidden[b : b + 1])
        single.append(1e3 * (time.perf_counter() - begin))
    p50, p99 = np.quantile(single, [0.5, 0.99])
    return ids, {"rows_per_second": len(hidden) / seconds, "p50": p50, "p99": p99}


def measure(store: Store, name: str, seed: int, arguments: argparse.Namespace) -> None:
    """All missing rows of a data set; exact search is measured again for the ratios."""
    epochs = arguments.epochs
    case = {"dataset": name, "epochs": epochs, "seed": seed}
    cases = [case | {"method": m, "setting": s} for m, each in CASES.items() for s in each]
    wanted = list(store.missing(cases))
    if not wanted:
        return
    exact = [each for each in wanted if each["method"] == "exact"] or cases[:1]
    wanted = [*exact, *(each for each in wanted if each["method"] != "exact")]
    where = GENERATED.get(name) or place(name, arguments.root)
    more = ["ranker=none", "sampler=uniform", "trainer.recall_every=0", "trainer.evaluation=index"]
    length = [f"trainer.epochs={epochs}", "trainer.max_epochs=null"]
    trainer, summary = trained([*where, *more, *length, f"seed={seed}"])
    split, layer = trainer.eval_split, trainer.network.output.eval()
    hidden = torch.cat([trainer.network.embed(part) for part in blocks(split)])
    known = {"labels": layer.out_features, "hidden": layer.in_features, "rows": len(split)}
    known["train_seconds"], best = summary["train_seconds"], None
    for case, search, cost in searches(layer, wanted):
        ids, times = answers(search, hidden)
        best = ids if best is None else best
        store.add([case | known | scores(ids, best, split.labels) | times | cost])


def blocks(split: Any) -> Iterator[Any]:
    """The features of a split in parts."""
    for start in range(0, len(split), BATCH):
        yield split.slice(start, min(start + BATCH, len(split))).features


def scores(ids: np.ndarray, best: np.ndarray, labels: Pattern) -> Row:
    """P@k, and the share of the k best that were found, in any order."""
    found = {f"p_at_{k}": precision_at_k(ids, labels, k) for k in PLACES}
    for k in PLACES:
        same = (best[:, :k, None] == ids[:, None, :]).any(2)
        found[f"found_{k}"] = float(same.mean())
    return found


def page(found: dict[str, Any]) -> str:
    """The generated page."""
    rows = [row for row in found["rows"] if row["setting"] in CASES[row["method"]]]
    text = (
        "# Search by an index over the weights\n\n"
        f"The {K} best labels of all test rows by the output layer of the default network (uniform "
        "draws, no re-ranker). Times are those of the output layer alone, from the last hidden "
        f"layer to labels: rows a second in batches of {BATCH:,}, and one row at a time, of "
        f'{SINGLE} rows. `index` is `top_k(search="index")`, by the share of all rows that a '
        f"query may see ({SHARE} is the default); `faiss` is an IVF index of the rows with the "
        "bias as a coordinate, by the number of lists that a query visits. Found: the share of the "
        "exact 1, 3 and 5 best that are among the 5 answers; what is missed is mostly labels with "
        "hardly any score, as the precision shows. Memory is the share of that of the weights.\n"
    )
    keys = ("dataset", "epochs", "seed")
    for name, epochs, seed in sorted({key(row, keys) for row in rows}):
        own = [row for row in rows if key(row, keys) == (name, epochs, seed)]
        exact = next((row for row in own if row["method"] == "exact"), None)
        if exact is None:
            continue
        text += (
            f"\n## {name}, epochs: {epochs}, seed {seed}\n\n{exact['labels']:,} labels, "
            f"{exact['hidden']} hidden units, {exact['rows']:,} test rows.\n\n"
        )
        order = list(CASES)
        own.sort(key=lambda row: (order.index(row["method"]), row["setting"] or 0))
        text += table([line(row, exact) for row in own]) + whole(name)
    return text + origin(rows)


def whole(name: str) -> str:
    """What whole predictions of the same test rows take, with those of the peers."""
    path, rates = PAGES / "precision.json", {}
    for row in json.loads(path.read_text())["rows"] if path.exists() else []:
        if row["dataset"] == name and row["method"] in TITLES:
            rates.setdefault(TITLES[row["method"]], []).append(row["predict_rows_per_second"])
    if not rates:
        return ""
    said = [
        f"{title} {len(each) / sum(1 / rate for rate in each):,.0f} rows/s, or "
        f"{1e3 * np.mean([1 / rate for rate in each]):.2f} ms a row"
        for title, each in rates.items()
    ]
    return (
        "\nFrom the features of the same rows to labels ([precision](precision.md)): "
        f"{'; '.join(said)}. Ours is the default call with its re-ranker, in batches; omikuji "
        "answers one row at a time, PECOS all at once.\n"
    )


def line(row: Row, exact: Row) -> dict[str, str]:
    """A row of the table."""
    least = min(row[f"p_at_{k}"] / max(exact[f"p_at_{k}"], 1e-9) for k in PLACES)
    other = row is not exact
    return {
        "search": row["method"] + ("" if row["setting"] is None else f" {row['setting']}"),
        **{f"P@{k}": f"{100 * row[f'p_at_{k}']:.2f}" for k in PLACES},
        "least share of exact P@k": f"{least:.3f}" if other else "",
        "found": " / ".join(f"{row[f'found_{k}']:.3f}" for k in PLACES) if other else "",
        "rows/s": f"{row['rows_per_second']:,.0f}",
        "times exact": f"{row['rows_per_second'] / exact['rows_per_second']:.1f}" if other else "",
        "one row, ms, p50 / p99": f"{row['p50']:.2f} / {row['p99']:.2f}",
        "times exact, p50": f"{exact['p50'] / row['p50']:.0f}" if other else "",
        "made in, s": f"{row['build']:.1f}" if other else "",
        "memory": f"{row['memory']:.2f}" if other else "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, ["files", "amazon670k_like"], [0])
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parse(parser)
    runtime.set_threads(0)
    store = Store(
        "search_index", ("dataset", "epochs", "seed", "method", "setting"), page, arguments
    )
    if not arguments.render:
        os.chdir(ROOT)  # Caches lie in its datasets/.
        warm_up()
        for name in arguments.datasets:
            for seed in arguments.seeds:
                measure(store, name, seed, arguments)
    store.render()
    store.report()


if __name__ == "__main__":
    main()
