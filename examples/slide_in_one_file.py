"""SLIDE in one file of NumPy: a huge output layer, trained by hash tables.

    OMP_NUM_THREADS=1 python examples/slide_in_one_file.py --help

Chen et al., MLSys 2020, "SLIDE: In Defense of Smart Algorithms over Hardware Acceleration for
Large-Scale Deep Learning Systems". A step computes an active set of each sample's outputs: labels,
and those that hash tables find near its hidden vector. Beside it are trained a dense network, and
one with random active sets (uniform: what chance finds). What SLIDE gives up: tables miss most of
the largest outputs, and more as they grow old; a look-up takes K * L projections, and time that in
NumPy only tens of thousands of outputs pay back. Tests compute all outputs. In shapes: B samples,
C features, H hidden units, N outputs, A of them active, R rows of a weight.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy import ndarray as Array

HIDDEN, BATCH, RATE = 64, 64, 0.01
FIRST_INTERVAL, GROWTH = 10.0, np.exp(0.05)  # N0 and exp(lambda) in section 4.2 of the paper
TITLES = "method", "P@1", "outputs a sample", "top 10 found", "seconds"
Row = tuple[Array, Array, Array]  # labels, features, values of the features


def read_xmc(path: Path) -> tuple[list[Row], int, int]:
    """The rows that have labels, and the numbers of features and labels."""
    (_, *sizes), *lines = (line.rstrip().split(" ") for line in path.read_text().splitlines())
    rows = []
    for labels, *entries in (line for line in lines if line[0]):
        ids, values = np.array([entry.split(":") for entry in entries], float).reshape(-1, 2).T
        rows.append((np.array(labels.split(","), int), ids.astype(int), values))
    return rows, int(sizes[0]), int(sizes[1])


def made_up(count: int, size: int, rng: np.random.Generator) -> Iterator[Row]:
    """Rows of ``size`` features and labels; a label has 6 of the 20 features of its group."""
    groups = rng.integers(size, size=(size // 20, 20))
    own = rng.permuted(np.tile(groups, (20, 1)), axis=1)[:, :6]
    for _ in range(count):  # The square makes some labels frequent, and most of them rare.
        labels = np.unique((len(own) * rng.random(rng.integers(1, 4)) ** 2).astype(int))
        seen = own[labels][rng.random((len(labels), 6)) < 0.75]
        features = np.unique(np.append(seen, rng.integers(size, size=2)))
        yield labels, features, np.ones(len(features))


class HashTables:
    """L tables of 2^K buckets. A hash code is the signs of K random projections (SimHash)."""

    def __init__(self, width: int, K: int, L: int, rng: np.random.Generator):
        self.K, self.L, self.rng, self.due, self.interval = K, L, rng, 0.0, FIRST_INTERVAL
        self.planes = rng.normal(size=(width, L * K)).astype(np.float32)

    def codes(self, vectors: Array) -> Array:
        """Buckets ``(n, L)`` of vectors ``(n, H + 1)``, numbered through all tables."""
        # Two vectors differ in a sign with probability angle / pi: near ones share more buckets.
        signs = (vectors @ self.planes > 0).reshape(len(vectors), self.L, self.K)
        return signs @ (1 << np.arange(self.K)) + (np.arange(self.L) << self.K)

    def rebuild(self, weight: Array, hidden: Array) -> None:
        """Put rows ``(N, H + 1)`` into buckets, by some hidden vectors ``(B, H + 1)``."""
        # A mean that all hidden vectors share would decide most of their signs alike. So a score
        # is split, w h + b = w (h - mean) + (w mean + b) 1: the bracket is the new bias.
        self.mean, rows = hidden.mean(0), weight.copy()
        rows[:, -1] = weight @ self.mean
        codes = self.codes(rows - rows.mean(0)).T.ravel()  # The mean row shifts all scores alike.
        self.members = codes.argsort(kind="stable") % len(rows)
        self.due, self.interval = self.due + self.interval, self.interval * GROWTH
        self.starts = np.append(0, np.bincount(codes, minlength=self.L << self.K).cumsum())

    def active_sets(self, hidden: Array, labels: list[Array], A: int, N: int) -> Array | None:
        """Outputs ``(B, A)``, each once: labels (at most half), most shared buckets, random."""
        if A == N:
            return None
        active, centred = np.empty((len(hidden), A), int), hidden - self.mean
        centred[:, -1] = 1
        for chosen, own, codes in zip(active, labels, self.codes(centred), strict=True):
            buckets = [self.members[self.starts[c] : self.starts[c + 1]] for c in codes]
            found, votes = np.unique(np.concatenate([own[:0], *buckets]), return_counts=True)
            found = found[np.argsort(-votes - self.rng.random(len(votes)))[:A]]  # Ties at random.
            ids = np.concatenate([own[: (A + 1) // 2], found, self.rng.choice(N, A, replace=False)])
            chosen[:] = ids[np.sort(np.unique(ids, return_index=True)[1])[:A]]
        return active


def hidden_layer(first: Array, batch: list[Row]) -> tuple[Array, Array, Array]:
    """The batch's features ``(C,)`` and values ``(B, C)``, bias last; hidden vectors, 1 last."""
    columns = np.unique(np.concatenate([[len(first) - 1], *(row[1] for row in batch)]))
    x = np.zeros((len(batch), len(columns)), np.float32)
    x[:, -1] = 1
    for line, (_, features, values) in zip(x, batch, strict=True):
        line[np.searchsorted(columns, features)] = values / (np.linalg.norm(values) or 1)
    hidden = np.maximum(x @ first[columns], 0)
    return columns, x, np.pad(hidden, ((0, 0), (0, 1)), constant_values=1)


def gradients(second: Array, x: Array, hidden: Array, active: Array | None, labels: list[Array]):
    """Mean softmax cross-entropy; rows used ``(R,)``; gradients ``(R, H + 1)`` and ``(C, H)``."""
    dense = active is None
    scores = hidden @ second.T if dense else (second[active] @ hidden[:, :, None])[:, :, 0]
    shares = np.zeros_like(scores)
    for i, own in enumerate(labels):
        shares[i, own if dense else np.isin(active[i], own)] = 1
    shares /= shares.sum(1, keepdims=True)
    logs = scores - scores.max(1, keepdims=True)
    logs -= np.log(np.exp(logs).sum(1, keepdims=True))
    rows, slopes = slice(None), (np.exp(logs) - shares) / len(x)
    if not dense:  # Samples share rows: ``(B, R)`` has 0 where a row is not active.
        rows, narrow = np.unique(active), slopes
        slopes = np.zeros((len(x), len(rows)), narrow.dtype)
        np.put_along_axis(slopes, np.searchsorted(rows, active), narrow, axis=1)
    inner = (slopes @ second[rows] * (hidden > 0))[:, :-1]
    return -(shares * logs).sum() / len(x), rows, slopes.T @ hidden, x.T @ inner


def adam(weight: Array, rows: Array | slice, gradient: Array, rate: float, step: int) -> None:
    """Update values and moments, ``weight[0]`` and ``weight[1:]``, of these rows and no others."""
    mean = weight[1, rows] = 0.9 * weight[1, rows] + 0.1 * gradient
    square = weight[2, rows] = 0.999 * weight[2, rows] + 0.001 * gradient**2
    mean, square = mean / (1 - 0.9**step), square / (1 - 0.999**step)
    weight[0, rows] -= rate * mean / (np.sqrt(square) + 1e-8)


def train(rows: list[Row], sizes: list[int], A: int, tables: HashTables, epochs: int):
    """Two weights, ``(3, features + 1, H)`` and ``(3, N, H + 1)``: values and Adam's moments."""
    rng, batches, step = tables.rng, -(-len(rows) // BATCH), 0
    shapes = (3, sizes[0] + 1, HIDDEN), (3, sizes[1], HIDDEN + 1)
    first, second = (np.zeros(shape, np.float32) for shape in shapes)
    first[0], second[0] = (rng.normal(0, HIDDEN**-0.5, shape[1:]) for shape in shapes)
    counts = 0.5 + np.bincount(np.concatenate([row[0] for row in rows]), minlength=sizes[1])
    second[0, :, -1] = np.log(counts / counts.sum())  # It begins by predicting frequencies.
    for _ in range(epochs):
        for ids in np.array_split(rng.permutation(len(rows)), batches):
            batch, labels = [rows[i] for i in ids], [rows[i][0] for i in ids]
            columns, x, hidden = hidden_layer(first[0], batch)
            if step >= tables.due:
                tables.rebuild(second[0], hidden)
            active = tables.active_sets(hidden, labels, A=A, N=sizes[1])
            _, used, outer, inner = gradients(second[0], x, hidden, active=active, labels=labels)
            rate, step = RATE * (1 - step / epochs / batches), step + 1
            adam(first, columns, inner, rate=rate, step=step)
            adam(second, used, outer, rate=rate, step=step)
    return first, second


def score(rows: list[Row], first: Array, second: Array, A: int, tables: HashTables):
    """P@1, and the share of the 10 largest outputs that active sets hold without labels."""
    right, held = 0, 0
    for batch in (rows[i : i + BATCH] for i in range(0, len(rows), BATCH)):
        hidden = hidden_layer(first[0], batch)[2]
        scores = hidden @ second[0].T
        right += sum(best in row[0] for best, row in zip(scores.argmax(1), batch, strict=True))
        top = np.argpartition(-scores, 10, axis=1)[:, :10]
        active = tables.active_sets(hidden, list(top[:, :0]), A=A, N=len(second[0]))
        held += sum(map(np.mean, map(np.isin, top, top if active is None else active)))
    return right / len(rows), held / len(rows)


def main(arguments: list[str] | None = None) -> list[dict]:
    made = argparse.ArgumentParser(description="SLIDE in NumPy, beside dense and uniform training.")
    made.add_argument("--data", type=Path, help="folder of train.txt and test.txt; else made up")
    made.add_argument("--K", type=int, default=7, help="bits of a hash code")
    made.add_argument("--L", type=int, default=32, help="number of hash tables")
    made.add_argument("--active", type=int, default=64, help="outputs of a sample in a step")
    made.add_argument("--epochs", type=int, default=10, help="passes over the training rows")
    made.add_argument("--seed", type=int, default=0, help="of all random numbers but the data")
    options = made.parse_args(arguments)
    if options.data:
        rows, *sizes = read_xmc(options.data / "train.txt")
        held_out = read_xmc(options.data / "test.txt")[0]
    else:
        rows, sizes = list(made_up(5000, 2000, np.random.default_rng(0))), [2000, 2000]
        rows, held_out = rows[1000:], rows[:1000]
    results, A, N = [], min(options.active, sizes[1]), sizes[1]
    print("".join(f"{title:>18}" for title in TITLES))
    for name, size, L in (("dense", N, 0), ("lsh", A, options.L), ("uniform", A, 0)):
        rng = np.random.default_rng(options.seed)
        tables, start = HashTables(HIDDEN + 1, options.K, L, rng), time.perf_counter()
        weights = train(rows, sizes, A=size, tables=tables, epochs=options.epochs)
        seconds = time.perf_counter() - start
        precision, found = score(held_out, *weights, A=size, tables=tables)
        results.append(dict(zip(TITLES, (name, precision, size, found, seconds), strict=True)))
        print(f"{name:>18}{precision:18.4f}{size:18,}{found:18.1%}{seconds:18.1f}", flush=True)
    return results


if __name__ == "__main__":
    main()
