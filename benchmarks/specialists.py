"""The default call beside the tools of a field: language models, graphs, recommenders, texts.

    python benchmarks/specialists.py --root path/to/data
    python benchmarks/specialists.py --root path/to/data --sets lastfm --methods EASE

The specialists are short and written here. Writes results/specialists.{json,md}.
"""

import argparse
import time
from collections.abc import Callable
from itertools import pairwise
from multiprocessing.pool import ThreadPool
from typing import Any

import harness
import numpy as np
import scipy.sparse
import torch
from harness import Row, Store, grid, is_busy, of, opened, origin, run_train, spread, table, warm_up
from sklearn.svm import LinearSVC
from torch import nn
from torch.nn.functional import embedding, pad

from slide.data import Split, find_seen, holdout, labels_and_items
from slide.sparse import CSR, Pattern
from slide.training.evaluation import ranking_scores
from slide.utils.resources import peak_memory_mb

OURS = "slide"
# Labels of a row that are answered: as many as our own metrics read.
TOP = 20
# Rows that are scored at a time.
BLOCK = 500
# 10,000 items: the matrix of EASE takes 400 MB.
MOST_ITEMS = 10_000
# Outputs of a sampled softmax besides the labels of a batch.
NEGATIVES = 2000
# Training rows that are held out to choose settings, a tenth of them at most.
HELD = 2000
FIGURES = {
    "other": {f"P@{k}": f"p_at_{k}" for k in (1, 3, 5)},
    "graph": {"MRR": "mrr"} | {f"Hits@{k}": f"hits_at_{k}" for k in (1, 3, 10)},
    "items": {"Recall@20": "recall_at_20", "nDCG@20": "ndcg_at_20"},
}
Scores = Callable[[Split], np.ndarray]  # Of all labels for some rows.


def trigrams(train: Split, scale: float) -> Scores:
    """Witten-Bell interpolation of the last two features, the last one, and no feature."""
    width = train.num_labels
    of_all = np.bincount(train.labels.indices, minlength=width) / len(train.labels.indices)

    def keys(rows: Split, size: int) -> np.ndarray:
        last = rows.features.indices[rows.features.indptr[1:, None] - np.arange(1, size + 1)]
        return last @ rows.num_features ** np.arange(size)

    def counted(size: int) -> tuple[np.ndarray, scipy.sparse.csr_array]:
        known, own = np.unique(keys(train, size), return_inverse=True)
        own, ones = own[train.labels.entry_rows()], np.ones(len(train.labels.indices))
        shape = len(known) + 1, width  # The last row is empty: what no row has.
        return known, scipy.sparse.csr_array((ones, (own, train.labels.indices)), shape)

    models = [counted(1), counted(2)]

    def scores(rows: Split) -> np.ndarray:
        found = np.tile(of_all, (len(rows), 1))
        for size, (known, counts) in enumerate(models, 1):
            wanted = keys(rows, size)
            at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
            own = counts[np.where(known[at] == wanted, at, len(known))]
            new = scale * np.diff(own.indptr)
            total = own.sum(1) + new
            weight = np.where(total > 0, new / np.maximum(total, 1e-9), 1)
            shares = own.toarray() / np.maximum(total, 1e-9)[:, None]
            found = weight[:, None] * found + shares
        return found

    return scores


def trans_e(train: Split, seconds: float, lr: float = 0.1) -> Scores:
    """Squared distances of head + relation from all entities."""
    torch.manual_seed(0)
    inputs = nn.Parameter(torch.randn(train.num_features, 200) * 0.05)
    entities = nn.Parameter(torch.randn(train.num_labels, 200) * 0.05)

    def products(part: Split, ids: torch.Tensor) -> torch.Tensor:
        pairs = torch.tensor(part.features.indices).long().view(len(part), 2)
        outputs = embedding(ids, entities, sparse=True)
        translated = embedding(pairs, inputs, sparse=True).sum(1)
        return 2 * translated @ outputs.T - (outputs**2).sum(1)

    return _softmax(train, seconds, lr, [inputs, entities], products)


def fast_text(train: Split, seconds: float, lr: float) -> Scores:
    """The sum of embeddings of features."""
    torch.manual_seed(0)
    embed = nn.EmbeddingBag(train.num_features, 100, mode="sum", sparse=True)
    nn.init.uniform_(embed.weight, -0.1, 0.1)
    output = nn.Parameter(torch.zeros(train.num_labels, 101))  # The last column: biases.

    def products(part: Split, ids: torch.Tensor) -> torch.Tensor:
        indptr, indices, values = (torch.tensor(each) for each in part.features)
        hidden = embed(indices.long(), indptr[:-1], per_sample_weights=values)
        return pad(hidden, (0, 1), value=1) @ embedding(ids, output, sparse=True).T

    return _softmax(train, seconds, lr, [embed.weight, output], products)


def lstm(train: Split, seconds: float, lr: float = 0.1) -> Scores:
    """A recurrent network over the words of a row; each place has features of its own for them."""
    torch.manual_seed(0)
    words = nn.Embedding(train.num_labels, 128, sparse=True)
    network = nn.LSTM(128, 128, batch_first=True)
    output = nn.Parameter(torch.zeros(train.num_labels, 129))

    def products(part: Split, ids: torch.Tensor) -> torch.Tensor:
        own = torch.tensor(part.features.indices % train.num_labels).long().view(len(part), -1)
        hidden = network(words(own))[0][:, -1]
        return pad(hidden, (0, 1), value=1) @ embedding(ids, output, sparse=True).T

    return _softmax(train, seconds, lr, [words.weight, *network.parameters(), output], products)


@torch.sparse.check_sparse_tensor_invariants(False)
def _softmax(train: Split, seconds: float, lr: float, parameters: Any, products: Any) -> Scores:
    """Train by a sampled softmax; the rate falls to 0 while the seconds pass.

    The labels of a batch and uniform draws, which count for all other labels, take part.
    """
    draws, count, order = np.random.default_rng(0), train.num_labels, np.empty(0, np.int64)
    optimizer = torch.optim.Adagrad(parameters, lr)
    optimizer.step()  # Without gradients: it imports what it needs.
    begin, gone = time.perf_counter(), 0.0
    while gone < 1:
        order = order if len(order) else draws.permutation(len(train))
        part, order = train.take(np.sort(order[:BLOCK])), order[BLOCK:]
        labels, own = np.unique(part.labels.indices, return_inverse=True)
        others = np.setdiff1d(draws.choice(count, min(NEGATIVES, count), replace=False), labels)
        shift = torch.zeros(len(labels) + len(others))
        shift[len(labels) :] = np.log((count - len(labels)) / max(len(others), 1))
        ids = torch.from_numpy(np.concatenate([labels, others])).long()
        logs = (products(part, ids) + shift).log_softmax(1)
        loss = -logs[torch.from_numpy(part.labels.entry_rows()), torch.from_numpy(own)].sum()
        optimizer.zero_grad()
        (loss / len(part)).backward()
        optimizer.step()
        gone = (time.perf_counter() - begin) / seconds
        optimizer.param_groups[0]["lr"] = lr * max(1 - gone, 0)

    return torch.no_grad()(lambda rows: products(rows, torch.arange(count)).numpy())


def linear_svm(train: Split, labels: int) -> Scores:
    """LinearSVC of the most frequent labels, each against all rows; others get no scores."""
    x = _matrix(train.features, train.num_features)
    counts = np.bincount(train.labels.indices, minlength=train.num_labels)
    known = np.argsort(-counts, kind="stable")[: min(labels, np.count_nonzero(counts))]

    def fit(label: int) -> np.ndarray:
        own = train.labels.entry_rows()[train.labels.indices == label]
        model = LinearSVC(dual=True, tol=0.01).fit(x, np.isin(np.arange(len(train)), own))
        return np.append(model.coef_, model.intercept_)

    with ThreadPool() as pool:  # The solver releases the lock of the interpreter.
        weights = np.stack(pool.map(fit, known)).T

    def scores(rows: Split) -> np.ndarray:
        found = np.full((len(rows), train.num_labels), -np.inf, np.float32)
        found[:, known] = _matrix(rows.features, rows.num_features) @ weights[:-1] + weights[-1]
        return found

    return scores


def _matrix(rows: CSR | Pattern, width: int) -> scipy.sparse.csr_matrix:
    """Rows as a matrix; entries without values are ones."""
    values = rows.values if isinstance(rows, CSR) else np.ones(len(rows.indices), np.float32)
    indptr = rows.indptr.astype(np.int32)  # LinearSVC takes no others.
    return scipy.sparse.csr_matrix((values, rows.indices, indptr), (len(indptr) - 1, width))


def item_knn(train: Split, shrink: float) -> Scores:
    """Cosines of items, small where few rows have both."""
    x = _matrix(labels_and_items(train), train.num_labels)
    shared = (x.T @ x).tocoo()
    lengths = np.sqrt(np.asarray(x.sum(0)).ravel())
    cosines = shared.data / (lengths[shared.row] * lengths[shared.col] + shrink)
    cosines[shared.row == shared.col] = 0
    weights = scipy.sparse.csr_matrix((cosines, (shared.row, shared.col)), shared.shape)
    return lambda rows: (_matrix(rows.features, train.num_labels) @ weights).toarray()


def ease(train: Split, penalty: float) -> Scores:
    """Ridge regressions of each item on all others, in closed form."""
    x, width = _matrix(labels_and_items(train), train.num_labels), train.num_labels
    kept = np.sort(np.argsort(-np.asarray(x.sum(0)).ravel(), kind="stable")[:MOST_ITEMS])
    gram = (x[:, kept].T @ x[:, kept]).toarray()
    gram[np.diag_indices_from(gram)] += penalty
    inverse = np.linalg.inv(gram)
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0)

    def scores(rows: Split) -> np.ndarray:
        found = np.full((len(rows), width), -1e9, np.float32)
        found[:, kept] = _matrix(rows.features, width)[:, kept] @ weights
        return found

    return scores


def ials(train: Split, unobserved: float) -> Scores:
    """Factors of rows and of items by alternating least squares; new rows are folded in."""
    count = max(train.num_labels, train.num_features)
    known = _matrix(labels_and_items(train), count)
    factors = 0.01 * np.random.default_rng(0).standard_normal((count, 128))
    share = unobserved / count

    def solve(rows: scipy.sparse.csr_matrix, others: np.ndarray) -> np.ndarray:
        """The factors of rows with the least squared errors and penalty."""
        gram, found = share * others.T @ others, np.zeros((rows.shape[0], others.shape[1]))
        for row, (begin, end) in enumerate(pairwise(rows.indptr)):
            own = others[rows.indices[begin:end]]
            penalty = 0.01 * (end - begin + share * len(others)) * np.eye(others.shape[1])
            found[row] = np.linalg.solve(gram + own.T @ own + penalty, own.sum(0))
        return found

    for _ in range(10):
        factors = solve(known.T.tocsr(), solve(known, factors))

    def scores(rows: Split) -> np.ndarray:
        return solve(_matrix(rows.features, count), factors) @ factors[: train.num_labels].T

    return scores


# Methods that are trained for a number of seconds.
BOUNDED = (trans_e, fast_text, lstm)
FAST_TEXT = {"fastText": (fast_text, [{"lr": 0.2}, {"lr": 1.0}])}
OF_WORDS = {
    "trigrams": (trigrams, [{"scale": s} for s in (0.5, 1, 2, 4)]),
    "LSTM": (lstm, [{}]),
    "linear SVM": (linear_svm, [{"labels": 100}]),
}
OF_ITEMS = {
    "item-kNN": (item_knn, [{"shrink": s} for s in (0, 10, 50)]),
    "EASE": (ease, [{"penalty": p} for p in (200, 800, 3200)]),
    "iALS": (ials, [{"unobserved": n} for n in (30, 100, 300, 1000)]),
}
# For each data set what its rows are, and its specialists with the settings to choose from.
SETS: dict[str, tuple[str, dict[str, tuple[Callable[..., Scores], list[dict[str, Any]]]]]] = {
    "nextword": ("other", FAST_TEXT | OF_WORDS),
    "wordnet": ("other", FAST_TEXT | {"linear SVM": (linear_svm, [{"labels": 500}])}),
    "fb15k": ("graph", {"TransE": (trans_e, [{}])}),
    "gowalla": ("items", OF_ITEMS),
    "lastfm": ("items", OF_ITEMS),
}


def figures_of(scores: Scores, rows: Split, seen: Pattern | None, kind: str) -> dict[str, float]:
    """The figures of the best labels that are not seen."""
    parts, begin = [], 0
    for part in rows.blocks(BLOCK):
        block = np.array(scores(part), np.float32)
        if seen is not None:
            own = seen.slice(begin, begin + len(block))
            block[own.entry_rows(), own.indices] = -np.inf
        found, best = torch.from_numpy(block).topk(TOP)
        parts.append(best.masked_fill(torch.isneginf(found), -1).numpy())
        begin += len(block)
    scored = ranking_scores(np.concatenate(parts), rows, np.ones(rows.num_labels), kind)
    return {name: round(scored[name], 6) for name in FIGURES[kind].values()}


def specialist(
    train: Split, test: Split, fit: Callable[..., Scores], settings: list[dict[str, Any]], kind: str
) -> Row:
    """A row of a specialist: its settings, which held-out training rows choose; figures."""

    def row(learnt: Split, asked: Split, own: dict[str, Any]) -> Row:
        begin = time.perf_counter()
        scores = fit(learnt, **own)
        told = {"settings": own, "train_seconds": round(time.perf_counter() - begin, 1)}
        seen = None if kind == "other" else find_seen(learnt, kind).of(asked.features)
        return told | {"busy": is_busy()} | figures_of(scores, asked, seen, kind)

    if settings[1:]:
        learnt, held = holdout(train, min(0.1, HELD / len(train)), 0)
        first = next(iter(FIGURES[kind].values()))
        settings = [max(settings, key=lambda own: row(learnt, held, own)[first])]
    return row(train, test, settings[0])


def run_specialist(name: str, method: str, overrides: list[str], seconds: float) -> Row:
    """The row of a specialist of a data set, in a process of its own for its memory."""
    data, (kind, methods) = opened(tuple(overrides)), SETS[name]
    fit, settings = methods[method]
    more = {"seconds": seconds} if fit in BOUNDED else {}
    row = specialist(data.train, data.test, fit, [own | more for own in settings], kind)
    return row | {"peak_rss_mb": peak_memory_mb()}


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
            kept = *FIGURES[kind].values(), "train_seconds", "peak_rss_mb"
            store.add([case | {key: summary[key] for key in kept} | {"busy": is_busy()}])
        for method, (fit, _) in methods.items():
            version = f"{method}, torch {torch.__version__}, NumPy {np.__version__}"
            version += f", {arguments.seconds:g} s" if fit in BOUNDED else ""
            cases = grid(dataset=[name], method=[method], seed=[None])
            for case in store.missing(cases, version) if method in arguments.methods else ():
                asked = "run_specialist", name, method, overrides, arguments.seconds
                store.add([case | harness.in_process("specialists", *asked)], version)


def page(found: dict[str, Any]) -> str:
    text = harness.prose(
        "specialists", "about", top=TOP, items=MOST_ITEMS, held=HELD, negatives=NEGATIVES
    )
    for name, (kind, methods) in SETS.items():
        lines = []
        for method in (OURS, *methods):
            if rows := of(found["rows"], dataset=name, method=method):
                cells = {"method": f"**{method}**" if method == OURS else method}
                for title, score in FIGURES[kind].items():
                    cells[title] = spread([row[score] for row in rows])
                quiet = [row["train_seconds"] for row in rows if not row["busy"]]
                cells["training, s"] = spread(quiet, scale=1) if quiet else ""
                memory = max(row.get("peak_rss_mb", 0) for row in rows)
                cells["peak memory, MB"] = f"{memory:,}" if memory else ""
                chosen = rows[0].get("settings", {}).items()
                cells["settings"] = ", ".join(f"{key} {value}" for key, value in chosen)
                lines.append(cells)
        if lines:
            text += f"\n## {name}\n\n" + table(lines)
    return text + origin(found["rows"])


def main() -> None:
    parser = harness.options(__doc__, SETS, [0])
    known = list(dict.fromkeys([OURS, *(name for _, own in SETS.values() for name in own)]))
    parser.add_argument("--methods", nargs="+", choices=known, default=known)
    parser.add_argument("--seconds", type=float, default=30, help="of bounded training")
    harness.fill_page("specialists", ("dataset", "method", "seed"), page, measure, parser)


if __name__ == "__main__":
    main()
