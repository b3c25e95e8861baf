"""The default call beside the tools of a field: language models, graphs, recommenders, texts.

    python tests/benchmarks/specialists.py --root path/to/data
    python tests/benchmarks/specialists.py --root path/to/data --datasets lastfm --methods EASE

The specialists are short and written here. Writes results/specialists.{json,md}.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import harness
import numpy as np
import scipy.sparse
import torch
from harness import Row, Store, grid, is_busy, of, opened, origin, run_train, spread, table, warm_up
from torch import nn

from slide.data import Split, find_seen, holdout, labels_and_items
from slide.ranking import choose_kind
from slide.ranking.scorers.item_factors import ItemFactors
from slide.sparse import Pattern
from slide.training.evaluation import ranking_scores

OURS = "slide"
# Labels of a row that are answered: as many as our own metrics read.
TOP = 20
# Rows that are scored at a time.
BLOCK = 500
# 10,000 items: the matrix of EASE takes 400 MB.
MOST_ITEMS = 10_000
PRECISIONS = {f"P@{k}": f"p_at_{k}" for k in (1, 3, 5)}
FIGURES = {
    "other": PRECISIONS,
    "graph": {"MRR": "mrr"} | {f"Hits@{k}": f"hits_at_{k}" for k in (1, 3, 10)},
    "items": {"Recall@20": "recall_at_20", "nDCG@20": "ndcg_at_20"},
}
Scores = Callable[[Split], Iterator[np.ndarray]]


def trigrams(train: Split, scale: float) -> Scores:
    """Witten-Bell interpolation of the last two features, the last one, and no feature."""
    width = train.num_labels
    of_all = np.bincount(train.labels.indices, minlength=width) / len(train.labels.indices)

    def keys(rows: Split, size: int) -> np.ndarray:
        ends = rows.features.indptr[1:]
        found = np.zeros(len(rows), np.int64)
        for back in range(1, size + 1):
            found = found * rows.num_features + rows.features.indices[ends - back]
        return found

    def counted(size: int) -> tuple[np.ndarray, scipy.sparse.csr_array]:
        known, own = np.unique(keys(train, size), return_inverse=True)
        own, ones = own[train.labels.entry_rows()], np.ones(len(train.labels.indices))
        shape = len(known) + 1, width  # The last row is empty: what no row has.
        return known, scipy.sparse.csr_array((ones, (own, train.labels.indices)), shape)

    models = [counted(1), counted(2)]

    def scores(rows: Split) -> Iterator[np.ndarray]:
        for part in rows.blocks(BLOCK):
            found = np.tile(of_all, (len(part), 1))
            for size, (known, counts) in enumerate(models, 1):
                wanted = keys(part, size)
                at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
                own = counts[np.where(known[at] == wanted, at, len(known))]
                new = scale * np.diff(own.indptr)
                total = own.sum(1) + new
                weight = np.where(total > 0, new / np.maximum(total, 1e-9), 1)
                shares = own.toarray() / np.maximum(total, 1e-9)[:, None]
                found = weight[:, None] * found + shares
            yield found

    return scores


def embeddings(train: Split, epochs: int, score: str, lr: float = 0.1) -> Scores:
    """A model of a knowledge graph whose scores are products with embeddings of all entities."""
    torch.manual_seed(0)
    inputs = nn.Parameter(torch.randn(train.num_features, 200) * 0.05)
    entities = nn.Parameter(torch.randn(train.num_labels, 200) * 0.05)
    optimizer = torch.optim.Adagrad([inputs, entities], lr)

    def products(part: Split) -> torch.Tensor:
        pairs = torch.from_numpy(part.features.indices.reshape(len(part), 2)).long()
        head, relation = inputs[pairs[:, 0]], inputs[pairs[:, 1]]
        if score == "TransE":
            return 2 * (head + relation) @ entities.T - (entities**2).sum(1)
        (a, b), (c, d) = head.chunk(2, 1), relation.chunk(2, 1)
        return torch.cat([a * c - b * d, a * d + b * c], 1) @ entities.T

    return _softmax(train, epochs, optimizer, products)


def fast_text(train: Split, epochs: int, lr: float = 0.01) -> Scores:
    """The sum of embeddings of features, and a softmax over all labels."""
    torch.manual_seed(0)
    embed = nn.EmbeddingBag(train.num_features, 100, mode="sum")
    output = nn.Linear(100, train.num_labels)
    nn.init.zeros_(output.weight)
    optimizer = torch.optim.Adam([*embed.parameters(), *output.parameters()], lr)

    def products(part: Split) -> torch.Tensor:
        indptr, indices, values = (torch.from_numpy(np.copy(each)) for each in part.features)
        return output(embed(indices.long(), indptr[:-1], per_sample_weights=values))

    return _softmax(train, epochs, optimizer, products)


def _softmax(train: Split, epochs: int, optimizer: Any, products: Any) -> Scores:
    """Train by the cross-entropy of all labels; the rate falls to 0."""
    draws, steps = np.random.default_rng(0), epochs * -(-len(train) // BLOCK)
    rates = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, steps)
    for _ in range(epochs):
        order = draws.permutation(len(train))
        for begin in range(0, len(train), BLOCK):
            part = train.take(np.sort(order[begin : begin + BLOCK]))
            logs = products(part).log_softmax(1)
            rows, labels = part.labels.entry_rows(), part.labels.indices
            loss = -logs[torch.from_numpy(rows), torch.from_numpy(labels).long()].sum() / len(part)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rates.step()

    def scores(rows: Split) -> Iterator[np.ndarray]:
        with torch.no_grad():
            for part in rows.blocks(BLOCK):
                yield products(part).numpy()

    return scores


def _baskets(items: Any, width: int) -> scipy.sparse.csr_array:
    """Rows of items as a matrix of ones."""
    ones = np.ones(len(items.indices), np.float32)
    return scipy.sparse.csr_array((ones, items.indices, items.indptr), (items.num_rows, width))


def _products(weights: Any, width: int) -> Scores:
    """Scores of rows of items by a matrix ``(items, items)``."""

    def scores(rows: Split) -> Iterator[np.ndarray]:
        for part in rows.blocks(BLOCK):
            found = _baskets(part.features, width) @ weights
            yield found.toarray() if scipy.sparse.issparse(found) else found

    return scores


def item_knn(train: Split, shrink: float) -> Scores:
    """Cosines of items, small where few rows have both."""
    x = _baskets(labels_and_items(train), train.num_labels)
    shared = (x.T @ x).tocoo()
    lengths = np.sqrt(x.sum(0))
    cosines = shared.data / (lengths[shared.row] * lengths[shared.col] + shrink)
    cosines[shared.row == shared.col] = 0
    weights = scipy.sparse.csr_array((cosines, (shared.row, shared.col)), shared.shape)
    return _products(weights, train.num_labels)


def ease(train: Split, penalty: float) -> Scores:
    """Ridge regressions of each item on all others, in closed form."""
    x, width = _baskets(labels_and_items(train), train.num_labels), train.num_labels
    kept = np.sort(np.argsort(-x.sum(0), kind="stable")[:MOST_ITEMS])
    gram = (x[:, kept].T @ x[:, kept]).toarray()
    gram[np.diag_indices_from(gram)] += penalty
    inverse = np.linalg.inv(gram)
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)

    def scores(rows: Split) -> Iterator[np.ndarray]:
        for part in rows.blocks(BLOCK):
            found = np.full((len(part), width), -1e9, np.float32)
            found[:, kept] = _baskets(part.features, width)[:, kept] @ weights
            yield found

    return scores


def ials(train: Split, unobserved: float) -> Scores:
    """Factors of rows and of items by alternating least squares; new rows are folded in."""
    sizes = train.num_features, train.num_labels
    model = ItemFactors(factors=128, unobserved=unobserved, passes=10)
    model.fit(labels_and_items(train), *sizes)

    def scores(rows: Split) -> Iterator[np.ndarray]:
        for part in rows.blocks(BLOCK):
            yield model.of_rows(part.features) @ model.labels.T

    return scores


# For each data set what its figures are, and its specialists with the settings to choose from.
SETS: dict[str, tuple[str, dict[str, tuple[Callable[..., Scores], list[dict[str, Any]]]]]] = {
    "nextword": (
        "other",
        {
            "trigrams": (trigrams, [{"scale": s} for s in (0.5, 1, 2, 4)]),
            "fastText": (fast_text, [{"epochs": 2}, {"epochs": 4}]),
        },
    ),
    "wordnet": ("other", {"fastText": (fast_text, [{"epochs": 5}, {"epochs": 15}])}),
    "fb15k": (
        "graph",
        {
            name: (embeddings, [{"score": name, "epochs": n} for n in (10, 30)])
            for name in ("TransE", "ComplEx")
        },
    ),
    **{
        name: (
            "items",
            {
                "item-kNN": (item_knn, [{"shrink": s} for s in (0, 10, 50)]),
                "EASE": (ease, [{"penalty": p} for p in (200, 800, 3200)]),
                "iALS": (ials, [{"unobserved": n} for n in (30, 100, 300, 1000)]),
            },
        )
        for name in ("gowalla", "lastfm")
    },
}


def figures_of(scores: Scores, rows: Split, seen: Pattern | None, kind: str) -> dict[str, float]:
    """The figures of the best labels that are not seen."""
    parts, begin = [], 0
    for block in scores(rows):
        block = np.array(block, np.float32)
        if seen is not None:
            own = seen.slice(begin, begin + len(block))
            block[own.entry_rows(), own.indices] = -np.inf
        found, best = torch.from_numpy(block).topk(TOP)
        parts.append(best.masked_fill(torch.isneginf(found), -1).numpy())
        begin += len(block)
    scored = ranking_scores(np.concatenate(parts), rows, np.ones(rows.num_labels), kind)
    return {name: scored[name] for name in FIGURES[kind].values()}


def specialist(
    train: Split, test: Split, fit: Callable[..., Scores], settings: list[dict[str, Any]], kind: str
) -> Row:
    """A row of a specialist: its settings, which a tenth of the training rows choose; figures."""

    def figures(learnt: Split, asked: Split, own: dict[str, Any]) -> tuple[dict[str, float], float]:
        begin = time.perf_counter()
        scores = fit(learnt, **own)
        seconds = time.perf_counter() - begin
        rows = choose_kind(train).kind
        seen = None if rows in ("other", "dense") else find_seen(learnt, rows).of(asked.features)
        return figures_of(scores, asked, seen, kind), seconds

    learnt, held = holdout(train, 0.1, 0)
    best = max(settings, key=lambda own: next(iter(figures(learnt, held, own)[0].values())))
    found, seconds = figures(train, test, best)
    told = {"settings": best, "train_seconds": round(seconds, 1), "busy": is_busy()}
    return told | {name: round(value, 6) for name, value in found.items()}


def measure(store: Store, arguments: argparse.Namespace) -> None:
    """All missing rows."""
    if OURS in arguments.methods:
        warm_up()
    for name in arguments.datasets:
        kind, methods = SETS[name]
        overrides = harness.overrides_of(name, arguments.root)
        cases = grid(dataset=[name], method=[OURS], seed=arguments.seeds)
        for case in store.missing(cases) if OURS in arguments.methods else ():
            summary = run_train(*overrides, f"seed={case['seed']}")
            scores = {score: summary[score] for score in FIGURES[kind].values()}
            seconds = {"train_seconds": round(summary["train_seconds"], 1), "busy": is_busy()}
            store.add([case | seconds | scores])
        for method, (fit, settings) in methods.items():
            version = f"{method}, torch {torch.__version__}, NumPy {np.__version__}"
            cases = grid(dataset=[name], method=[method], seed=[None])
            for case in store.missing(cases, version) if method in arguments.methods else ():
                data = opened(tuple(overrides))
                row = specialist(data.train, data.test, fit, settings, kind)
                store.add([case | row], version)


def page(found: dict[str, Any]) -> str:
    text = harness.prose("specialists", "about", top=TOP, items=MOST_ITEMS)
    for name, (kind, methods) in SETS.items():
        lines = []
        for method in (OURS, *methods):
            if rows := of(found["rows"], dataset=name, method=method):
                cells = {"method": f"**{method}**" if method == OURS else method}
                for title, score in FIGURES[kind].items():
                    cells[title] = spread([row[score] for row in rows])
                quiet = [row["train_seconds"] for row in rows if not row["busy"]]
                cells["training, s"] = spread(quiet, scale=1) if quiet else ""
                chosen = rows[0].get("settings", {}).items()
                cells["settings"] = ", ".join(f"{key} {value}" for key, value in chosen)
                lines.append(cells)
        if lines:
            text += f"\n## {name}\n\n" + table(lines)
    return text + origin(found["rows"])


def main() -> None:
    parser = harness.options(__doc__, SETS, [0, 1, 2])
    known = dict.fromkeys([OURS, *(each for _, methods in SETS.values() for each in methods)])
    parser.add_argument("--methods", nargs="+", choices=known, default=list(known))
    harness.fill_page("specialists", ("dataset", "method", "seed"), page, measure, parser)


if __name__ == "__main__":
    main()
