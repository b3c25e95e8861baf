"""Other sets of the kinds of the real ones, made of their training rows."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from slide.data import Split, holdout
from slide.data.formats.text_writer import write_xmc
from slide.sparse import CSR, Pattern, row_bounds

# Share of the rows, or of the triples of a graph, that are test rows.
TEST = 0.12
SEED = 0
Parts = tuple[Split, Split]


class Derived(NamedTuple):
    """How a set is made.

    Attributes:
        source: the set whose training rows it is made of.
        about: in words.
        make: rows for training and test rows, from these rows and a generator.
    """

    source: str
    about: str
    make: Callable[[Split, np.random.Generator], Parts]


def write(name: str, train: Split, folder: Path) -> None:
    """Write a set as XMC text into a folder of its name, if it is not there.

    Args:
        name: one of `DERIVED`.
        train: the training rows of its source.
        folder: the folder of all derived sets.
    """
    place = folder / name
    if (place / "train.txt").exists():
        return
    parts = DERIVED[name].make(train, np.random.default_rng(SEED))
    place.mkdir(parents=True, exist_ok=True)
    # The training rows come last: they say that the set is whole.
    for file, split in zip(("test.txt", "train.txt"), parts[::-1], strict=True):
        write_xmc(place / file, split)


def turned(split: Split, rng: np.random.Generator) -> Parts:
    """The labels of a row are its features, and its features are to be predicted."""
    features = CSR(*split.labels, np.ones(len(split.labels.indices), np.float32))
    labels = Pattern(split.features.indptr, split.features.indices)
    return divided(Split(features, labels, split.num_labels, split.num_features))


def parted(split: Split, rng: np.random.Generator) -> Parts:
    """Of the items of a row, features and labels alike, a random quarter is to be predicted."""
    drawn = []
    for row in range(len(split)):
        own = np.union1d(_row(split.features, row), _row(split.labels, row))
        drawn.append(rng.permutation(own))
    lists = [(own[len(own) // 4 :], own[: len(own) // 4]) for own in drawn if len(own) >= 4]
    known, asked = (Pattern.from_lists([each[part] for each in lists]) for part in (0, 1))
    features = CSR(*known, np.ones(len(known.indices), np.float32))
    return divided(Split(features, asked, split.num_features, split.num_labels))


def fewer(count: int) -> Callable[[Split, np.random.Generator], Parts]:
    """Some rows only."""

    def make(split: Split, rng: np.random.Generator) -> Parts:
        return divided(split.take(np.sort(rng.permutation(len(split))[:count])))

    return make


def thinned(share: float) -> Callable[[Split, np.random.Generator], Parts]:
    """A graph of which a share of the triples is left."""

    def make(split: Split, rng: np.random.Generator) -> Parts:
        triples = triples_of(split)
        return _graph(triples[rng.random(len(triples)) < share], split, rng)

    return make


def among(count: int) -> Callable[[Split, np.random.Generator], Parts]:
    """The part of a graph that lies among some of its entities."""

    def make(split: Split, rng: np.random.Generator) -> Parts:
        kept = np.zeros(split.num_labels, bool)
        kept[rng.permutation(split.num_labels)[:count]] = True
        triples = triples_of(split)
        return _graph(triples[kept[triples[:, 0]] & kept[triples[:, 2]]], split, rng)

    return make


def triples_of(split: Split) -> np.ndarray:
    """The triples ``(n, 3)`` of a knowledge graph: head, relation, tail, each once.

    A row has an entity and a relation as features, whose numbers follow those of all entities. The
    second half of the relations are the inverse ones of the first half, in the same order.
    """
    pairs, half = split.features.indices.reshape(-1, 2), _relations(split)
    sizes = np.diff(split.labels.indptr)
    heads, relations = np.repeat(pairs.min(1), sizes), np.repeat(pairs.max(1), sizes)
    relations, tails = relations - split.num_labels, split.labels.indices
    inverse = relations >= half
    found = (
        np.where(inverse, tails, heads),
        np.where(inverse, relations - half, relations),
        np.where(inverse, heads, tails),
    )
    return np.unique(np.stack(found, axis=1), axis=0)


def divided(split: Split) -> Parts:
    """Rows with features and labels, divided at random."""
    whole = (np.diff(split.features.indptr) > 0) & (np.diff(split.labels.indptr) > 0)
    return holdout(split.take(np.flatnonzero(whole)), TEST, SEED)


def _relations(split: Split) -> int:
    """The number of relations, without the inverse ones."""
    return (split.num_features - split.num_labels) // 2


def _graph(triples: np.ndarray, split: Split, rng: np.random.Generator) -> Parts:
    """Triples, divided at random, as rows of both directions."""
    judged = rng.random(len(triples)) < TEST
    return _rows(triples[~judged], split), _rows(triples[judged], split)


def _rows(triples: np.ndarray, split: Split) -> Split:
    """A row for each head and relation, and for each tail and inverse relation."""
    back = triples[:, ::-1] + np.array([0, _relations(split), 0])
    both = np.unique(np.concatenate([triples, back]), axis=0)
    rows, sizes = np.unique(both[:, :2], axis=0, return_counts=True)
    features = (rows + np.array([0, split.num_labels])).astype(np.int32).ravel()
    bounds = np.arange(len(rows) + 1) * 2
    return Split(
        CSR(bounds, features, np.ones(len(features), np.float32)),
        Pattern(row_bounds(sizes), both[:, 2].astype(np.int32)),
        split.num_features,
        split.num_labels,
    )


def _row(matrix: CSR | Pattern, row: int) -> np.ndarray:
    return matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]]


DERIVED = {
    "debian_turned": Derived(
        "debian", "from what a package depends on to what is said of it", turned
    ),
    "delicious_turned": Derived("delicious", "from the tags of a page to its words", turned),
    "gowalla_turned": Derived("gowalla", "from later places to earlier ones", turned),
    "gowalla_parted": Derived("gowalla", "a random quarter of the places of a user", parted),
    "fb15k_third": Derived("fb15k", "three tenths of the triples", thinned(0.3)),
    "fb15k_tenth": Derived("fb15k", "a tenth of the triples", thinned(0.1)),
    "fb15k_among": Derived("fb15k", "the triples among 4,000 entities", among(4000)),
    "files_few": Derived("files", "48,000 of the rows", fewer(48_000)),
}
