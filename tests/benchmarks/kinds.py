"""Rows of unusual kinds, which are generated: is their kind found, and are the answers right?

    python tests/benchmarks/kinds.py

Query logs, retrieval with one training row for each label, knowledge graphs in three forms, a table
of categories, and embeddings. The default call of `slide.SlideClassifier` stands beside its network
alone and beside a vote of the nearest training rows by cosine. Writes results/kinds.{json,md}.
"""

import argparse
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.sparse
from report import publish, table
from rows import PAGES, commit
from sklearn.preprocessing import normalize

import slide
from slide.data import KnownLabels, Split, first_unknown, kind_of, row_keys
from slide.sparse import CSR, Pattern, hits

NEAR, PLACES = 20, 60
# Features and labels of each row: numbers of those that it has, or values of all features.
Rows = Sequence[tuple[Sequence[int] | np.ndarray, Sequence[int]]]


class Parts(NamedTuple):
    """Rows to learn from and rows to judge by, with numbers of features and labels."""

    train: Rows
    test: Rows
    num_features: int
    num_labels: int


def queries(seed: int) -> Parts:
    """Two or three words each, with all topics that were looked for; later ones repeat most."""
    rng, words, topics = np.random.default_rng(seed), 2000, 100
    own = [rng.choice(words, 40) for _ in range(topics)]
    known = []
    for _ in range(4000):
        topic = int(rng.integers(topics))
        picked = rng.choice(own[topic], rng.integers(2, 4))
        known.append((tuple(sorted({int(word) for word in picked})), topic))
    chance = np.arange(1, 4001) ** -0.9
    chance /= chance.sum()

    def asked(count: int) -> list[tuple[tuple[int, ...], int]]:
        found = []
        for number in rng.choice(4000, count, p=chance):
            query, topic = known[number]
            found.append((query, topic if rng.random() < 0.8 else (7 * topic + 1) % topics))
        return found

    log: dict[tuple[int, ...], set[int]] = {}
    for query, topic in asked(12_000):
        log.setdefault(query, set()).add(topic)
    train = [(query, sorted(found)) for query, found in log.items()]
    return Parts(train, [(query, [topic]) for query, topic in asked(1000)], words, topics)


def documents(seed: int) -> Parts:
    """A label for each of 6,000 documents; asked for by half of its words, and others."""
    rng, words = np.random.default_rng(seed), 3000
    chance = np.arange(1, words + 1) ** -0.7
    chance /= chance.sum()
    each = [rng.choice(words, 20, replace=False, p=chance) for _ in range(6000)]

    def noisy(row: np.ndarray) -> list[int]:
        kept = rng.choice(row, 8, replace=False), rng.choice(words, 6, p=chance)
        return np.unique(np.concatenate(kept)).tolist()

    train = [(row.tolist(), [number]) for number, row in enumerate(each)]
    return Parts(train, [(noisy(each[number]), [number]) for number in range(400)], words, 6000)


def graph(seed: int, form: str) -> Parts:
    """Triples of 400 entities and 12 relations, an eighth of them to be found."""
    rng, entities, relations = np.random.default_rng(seed), 400, 12
    places, turns = rng.normal(size=(entities, 6)), rng.normal(size=(relations, 6, 6)) / 6**0.5
    triples = [
        (head, relation, int(tail))
        for relation in range(relations)
        for head in rng.choice(entities, 220, replace=False).tolist()
        for tail in np.argsort(-places @ turns[relation].T @ places[head])[: rng.integers(1, 6)]
    ]
    triples = [triples[number] for number in rng.permutation(len(triples))]
    held = len(triples) // 8

    def lists(part: list[tuple[int, int, int]]) -> list[tuple[tuple[int, int], list[int]]]:
        found: dict[tuple[int, int], list[int]] = {}
        for head, relation, tail in part:
            found.setdefault((head, entities + relation), []).append(tail)
        return list(found.items())

    train: list = lists(triples[held:])
    if form == "one row twice":
        most = max(range(len(train)), key=lambda row: len(train[row][1]))
        question, tails = train.pop(most)
        train += [(question, tails[:1]), (question, tails[1:])]
    elif form == "triples":
        train = [((head, entities + relation), [tail]) for head, relation, tail in triples[held:]]
    return Parts(train, lists(triples[:held]), entities + relations, entities)


def categories(seed: int) -> Parts:
    """Twelve columns of 3 to 7 categories; the first one decides on the class of three."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(3, 8, 12)
    begins = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    values = np.stack([rng.integers(size, size=4000) for size in sizes], 1)
    classes = rng.integers(3, size=sizes[0])[values[:, 0]]
    noise = rng.random(4000) < 0.02
    classes[noise] = rng.integers(3, size=noise.sum())
    rows = [((v + begins).tolist(), [int(c)]) for v, c in zip(values, classes, strict=True)]
    return Parts(rows[:3000], rows[3000:], int(sizes.sum()), 3)


def embeddings(seed: int) -> Parts:
    """Dense rows with two of 300 labels, each of which has three centres; all far from 0."""
    rng, width = np.random.default_rng(seed), 60
    centres = rng.normal(size=(300, 3, width))
    rows = []
    for _ in range(5000):
        own = rng.choice(300, 2, replace=False)
        middle = centres[own, rng.integers(3, size=2)].sum(0)
        rows.append((3 + middle + 0.5 * rng.normal(size=width), own.tolist()))
    return Parts(rows[:4000], rows[4000:], width, 300)


SETS: dict[str, tuple[str, Callable[[int], Parts]]] = {
    "queries": ("other", queries),
    "a row for each label": ("other", documents),
    "graph": ("graph", lambda seed: graph(seed, "lists")),
    "graph, one row in two": ("graph", lambda seed: graph(seed, "one row twice")),
    "graph, a row for each triple": ("graph", lambda seed: graph(seed, "triples")),
    "categories": ("other", categories),
    "embeddings": ("dense", embeddings),
}


def as_split(rows: Rows, parts: Parts) -> Split:
    dense = [isinstance(row, np.ndarray) for row, _ in rows]
    own = [range(len(row)) if all(dense) else row for row, _ in rows]
    features = Pattern.from_lists(own)
    values = np.concatenate([row if all(dense) else np.ones(len(row)) for row, _ in rows])
    labels = Pattern.from_lists([found for _, found in rows])
    x = CSR(*features, values.astype(np.float32))
    return Split(x, labels, parts.num_features, parts.num_labels)


def as_matrix(pattern: CSR | Pattern, width: int) -> scipy.sparse.csr_array:
    values = pattern.values if isinstance(pattern, CSR) else np.ones(len(pattern.indices))
    shape = pattern.num_rows, width
    return scipy.sparse.csr_array((values, pattern.indices, pattern.indptr), shape=shape)


def nearest(train: Split, test: Split) -> np.ndarray:
    """The labels with the most votes of the `NEAR` nearest training rows of each row."""
    rows, asked = (normalize(as_matrix(s.features, s.num_features)) for s in (train, test))
    alike = (asked @ rows.T).toarray()
    near = np.argsort(-alike, axis=1, kind="stable")[:, :NEAR]
    weights = np.zeros_like(alike)
    np.put_along_axis(weights, near, np.take_along_axis(alike, near, 1), 1)
    votes = weights @ as_matrix(train.labels, train.num_labels).toarray()
    return np.argsort(-votes, axis=1, kind="stable")[:, :PLACES]


def measure(name: str, seed: int) -> dict[str, object]:
    """A row of the page."""
    kind, make = SETS[name]
    parts = make(seed)
    train, test = as_split(parts.train, parts), as_split(parts.test, parts)
    known = KnownLabels(train).of(test.features) if kind == "graph" else None
    matrices = (
        as_matrix(train.features, train.num_features),
        as_matrix(train.labels, train.num_labels),
    )
    asked = as_matrix(test.features, test.num_features)

    def p_at_1(ids: np.ndarray) -> float:
        best = ids[:, :1] if known is None else first_unknown(ids, known, 1)
        return 100 * float(hits(best, test.labels).mean())

    def answers(**options: object) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # That known labels are left out.
            model = slide.SlideClassifier(random_state=seed, **options).fit(*matrices)
        labels = model.predict_top_k(asked, k=min(PLACES, train.num_labels)).labels
        return np.array([[-1 if label is None else int(label) for label in row] for row in labels])

    repeated = np.isin(row_keys(test.features), row_keys(train.features))
    return {
        "set": name,
        "seed": seed,
        "kind": kind,
        "found": kind_of(train),
        "rows": len(train),
        "labels": train.num_labels,
        "repeated": float(repeated.mean()),
        "default": p_at_1(answers()),
        "network": p_at_1(answers(ranker=None)),
        "nearest": p_at_1(nearest(train, test)),
    }


def page(found: dict) -> str:
    lines = []
    for name in SETS:
        own = [row for row in found["rows"] if row["set"] == name]
        mean = {
            key: np.mean([row[key] for row in own]) for key in ("default", "network", "nearest")
        }
        lines.append(
            {
                "rows are": name,
                "training rows": f"{own[0]['rows']:,}",
                "labels": f"{own[0]['labels']:,}",
                "test rows that repeat a training row": f"{100 * own[0]['repeated']:.0f} %",
                "kind": own[0]["kind"],
                "found": ", ".join(sorted({row["found"] for row in own})),
                "**default call**, P@1": f"{mean['default']:.1f}",
                "its network alone": f"{mean['network']:.1f}",
                f"votes of {NEAR} nearest rows": f"{mean['nearest']:.1f}",
            }
        )
    seeds = ", ".join(str(seed) for seed in found["seeds"])
    return (
        "# Rows of unusual kinds\n\nWhat rows are decides which labels are no answers, which rows "
        "are held out and how long training lasts (`trainer.kind`). These sets are generated, and "
        "small; `tests/benchmarks/kinds.py` says how. In graphs all methods are judged without the "
        "known labels of a question. A table of categories is no recommender, although numbers of "
        "classes are numbers of columns, too; short queries are no graph, although each training "
        f"row lists all its labels. The mean of seeds {seeds}; commit {found['commit']}.\n\n"
        + table(lines)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    rows = []
    for name in SETS:
        for seed in arguments.seeds:
            rows.append(measure(name, seed))
            print(rows[-1], flush=True)
    publish("kinds", {"seeds": arguments.seeds, "commit": commit(), "rows": rows}, page, PAGES)


if __name__ == "__main__":
    main()
