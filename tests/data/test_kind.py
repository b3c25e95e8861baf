"""What training rows are, and which labels of rows to come are seen."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.matrices import ones_of
from helpers.splits import split_of

import slide
from slide.data import (
    SeenItems,
    SeenLabels,
    Split,
    find_seen,
    kind_of,
    labels_and_items,
    row_keys,
    validation_split,
)
from slide.data.kind import propose_kinds
from slide.sparse import CSR, Pattern


def are_items(split):
    return kind_of(split) == "items"


def baskets(rows=300, own=0, seed=0, rising=0):
    """Rows of 10 of 30 items, 6 as features; ``own`` rows ask for one of these."""
    weights = 1 + rising * np.arange(30)  # Items with high numbers may be popular.
    order = np.argsort(-np.random.default_rng(seed).random((rows, 30)) * weights, axis=1)
    labels = [list(row[6:10]) + list(row[: int(n < own)]) for n, row in enumerate(order)]
    return split_of(order[:, :6].tolist(), labels, 30, 30)


def by_chance(split):
    """How often a feature would be a label of its row."""
    features, labels = (
        np.bincount(ids, minlength=30) for ids in (split.features.indices, split.labels.indices)
    )
    return features @ labels / len(split)


@pytest.mark.parametrize(("own", "expected"), [(11, True), (14, False)])
def test_the_share_of_own_items_decides(own, expected):
    split = baskets(own=own)
    assert (own / by_chance(split) < 0.05) == expected
    assert are_items(split) == expected
    assert are_items(baskets(rising=1))


def test_few_rows_say_nothing():
    """Of two expected pairs there is none in one data set of seven."""
    found = {rows: (by_chance(baskets(rows)) >= 3, are_items(baskets(rows))) for rows in (2, 20)}
    assert found == {2: (False, False), 20: (True, True)}
    assert not are_items(split_of([], [], 30, 30))


def test_few_labels_and_copies_of_rows_say_nothing():
    """A class that is the number of a column, by accident, and one that never stands beside it."""
    rng = np.random.default_rng(0)
    rows = ones_of((rng.integers(3, size=(3000, 2)) + np.array([0, 3])).tolist())
    classes = Pattern.from_lists(((rows.indices[::2] + 1) % 3)[:, None].tolist())
    distinct = CSR(rows.indptr, rows.indices, rng.random(6000, np.float32))
    assert not are_items(Split(distinct, classes, 8, 3))
    few = baskets(rows=2)
    assert not are_items(few), "chance would not do it often enough"
    assert not are_items(few.take(np.arange(3500) % 2))


def test_labels_that_have_nothing_to_do_with_features_are_no_items():
    split = baskets(rising=1)
    assert not are_items(Split(split.features, baskets(seed=1, rising=1).labels, 30, 30))
    shifted = Pattern(split.labels.indptr, split.labels.indices + np.int32(30))
    assert not are_items(Split(split.features, shifted, 30, 60)), "no number is both"


@pytest.mark.parametrize(("own", "proposed"), [(132, [("items", False)]), (136, [])])
def test_half_as_many_as_by_chance_are_possible_items(own, proposed):
    split = baskets(own=own)
    assert (own <= by_chance(split) / 2) == bool(proposed)
    found, against = propose_kinds(split)
    assert [each[:2] for each in found] == proposed
    assert [each[:8] for each in against] == ["no graph"] + ["no items"] * (not proposed)


def test_all_rows_are_looked_at():
    """However many there are, and wherever own items are."""
    split = baskets(rows=30_000, own=30_000)
    rows = np.r_[np.arange(30_000 - 2, 30_000), np.arange(2)]
    quiet = baskets(rows=30_000)
    assert are_items(quiet)
    assert not are_items(split)
    assert propose_kinds(split.take(rows))[1][1].startswith("no items")


def test_short_rows_that_all_differ_are_a_graph():
    rows = [[a, 10 + b] for a in range(10) for b in range(20)]
    split = split_of(rows, [[20 + r % 7, 27] for r in range(200)], 30, 30)
    assert kind_of(split) == "graph"
    assert isinstance(find_seen(split, "graph"), SeenLabels)
    single = split_of(rows, [[20 + r % 7] for r in range(200)], 30, 30)
    assert kind_of(single) == "other", "a classification"
    assert kind_of(split_of([[1, 2], [1, 2]], [[0, 2], [1]], 5, 5)) == "other"


@pytest.mark.parametrize(
    ("count", "width", "kind"),
    [(3, 5, "dense"), (3, 6, "other"), (17, 135, "dense"), (17, 136, "other"), (16, 127, "other")],
)
def test_dense_rows_have_most_features_or_many(count, width, kind):
    rows = [[*range(first, first + count)] for first in range(3)]
    assert kind_of(split_of(rows, [[0], [1], [0]], width, 2)) == kind


def test_own_items_are_features_that_are_labels():
    rows = ones_of([[3, 9, 7], [], [8], [0, 11, 2]])
    every = SeenItems(8).of(rows)
    assert every.indptr.tolist() == [0, 2, 2, 2, 4]
    assert every.indices.tolist() == [3, 7, 0, 2]
    some = SeenItems(12).restricted(np.array([2, 7, 9]))
    assert some.num_labels == 3
    assert some.of(rows).indptr.tolist() == [0, 2, 2, 2, 3]
    assert some.of(rows).indices.tolist() == [2, 1, 0]
    assert some.restricted(np.array([0, 2])).of(rows).indices.tolist() == [1, 0]
    assert isinstance(find_seen(baskets(), "items"), SeenItems)


def test_labels_and_items_are_joined():
    split = split_of([[5, 31, 2], [7], [], [1, 4]], [[2, 9], [], [3], [8, 0]], 35, 30)
    joined = labels_and_items(split)
    assert joined.indptr.tolist() == [0, 3, 4, 5, 9]
    assert joined.indices.tolist() == [2, 5, 9, 7, 3, 0, 1, 4, 8]


@pytest.mark.parametrize("kind", ["graph", "items", "dense", "other"])
def test_what_rows_are_said_to_be_counts(kind):
    split = replace(baskets(), kind=kind)
    assert kind_of(baskets()) == "items"
    for part in (split, split.take(np.arange(9)), split.slice(2, 9)):
        assert kind_of(part) == kind
    # Only in a graph a held-out row may have the features of another one.
    train, held = validation_split(split, seed=0)
    assert (train.kind, held.kind) == (kind, kind)
    both = set(row_keys(train.features).tolist()) & set(row_keys(held.features).tolist())
    assert bool(both) == (kind == "graph")
    with pytest.raises(ValueError, match="kind must be one of auto, graph"):
        replace(split, kind="table")


def test_a_table_whose_few_equal_rows_have_equal_labels_is_no_graph():
    """A class follows from the columns, but for a row of noise."""
    rng = np.random.default_rng(0)
    rows = np.unique(rng.integers(0, 40, (3000, 3)) + np.array([0, 40, 80]), axis=0)
    classes = (rows[:, 0] + rows[:, 1]) % 7
    again = rng.permutation(len(rows))[:10]
    every, labels = np.concatenate([rows, rows[again]]), np.concatenate([classes, classes[again]])
    labels[-1] = (labels[-1] + 1) % 7
    assert kind_of(split_of(every.tolist(), labels[:, None].tolist(), 120, 7)) == "other"
    # Where equal rows have other labels, they are questions.
    labels[-10:] = (classes[again] + 1) % 7
    assert kind_of(split_of(every.tolist(), labels[:, None].tolist(), 120, 7)) == "graph"


def test_names_of_an_earlier_version():
    for old, new in slide.data._ALIASES.items():
        assert getattr(slide.data, old) is getattr(slide.data, new)
    with pytest.raises(AttributeError, match="no attribute 'unknown'"):
        _ = slide.data.unknown
