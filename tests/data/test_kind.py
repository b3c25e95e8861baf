"""What training rows are, which labels of rows to come are seen, and rows that are held out."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.matrices import ones_of, rows_of
from helpers.splits import split_of

import slide
from slide.data import (
    SeenItems,
    SeenLabels,
    Split,
    divide,
    find_seen,
    first_unseen,
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


@pytest.mark.parametrize(("own", "proposed"), [(132, [("items", False)]), (136, [])])
def test_half_as_many_as_by_chance_are_possible_items(own, proposed):
    split = baskets(own=own)
    assert (own <= by_chance(split) / 2) == bool(proposed)
    found, against = propose_kinds(split)
    assert [each[:2] for each in found] == proposed
    assert [each[:8] for each in against] == ["no graph"] + ["no items"] * (not proposed)


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


def lists_all_labels(split):
    return kind_of(split) == "graph"


def graph(rows, seed=0, most=12):
    """Rows of two features each, all different, with 0 to ``most`` labels of 50."""
    rng = np.random.default_rng(seed)
    labels = [rng.permutation(50)[: rng.integers(0, most + 1)].tolist() for _ in range(rows)]
    return split_of([[row // 40, 1000 + row % 40] for row in range(rows)], labels, 2000, 50)


def texts(rows, seed=0):
    rng = np.random.default_rng(seed)
    features = [np.sort(rng.permutation(300)[:9]).tolist() for _ in range(rows)]
    return split_of(features, [[row % 50] for row in range(rows)], 300, 50)


def split(rows, num_features):
    """Rows of these features, with two labels each."""
    return split_of(rows, [[0, 1]] * len(rows), num_features, 2)


def pairs(split):
    """``{(features of the row, label)}``; for rows without labels, with None."""
    found = set()
    for name, labels in zip(rows_of(split.features), rows_of(split.labels), strict=True):
        found |= {(tuple(name), label) for label in labels or [None]}
    return found


def test_equal_rows_have_equal_keys(monkeypatch):
    x = ones_of([[3, 8], [8, 3], [3], [8], [], [3, 8], [3, 8]])
    x.values[:] = [1, 2, 2, 1, 1, 1, 2, 1, 1, 2]
    expected = row_keys(x)
    assert expected.dtype == np.uint64
    assert expected[0] == expected[1] == expected[6]
    assert len(set(expected.tolist())) == 5
    monkeypatch.setattr("slide.data.kind._BLOCK", 2)
    np.testing.assert_array_equal(row_keys(x), expected)
    zeros = ones_of([[3], [3, 5], [5, 3], [5]])
    zeros.values[:] = [1, 1, 0, -0.0, 1, 0]
    keys = row_keys(zeros)
    assert keys[0] == keys[1] == keys[2] != keys[3] == 0, "zeros count as missing"


def test_keys_of_many_rows_differ():
    """Of values that are all 1, too, and of rows with equal sums of column numbers."""
    rows = 200_000
    columns = np.stack([np.arange(rows), 2 * rows - np.arange(rows)], 1).ravel().astype(np.int32)
    x = CSR(np.arange(0, 2 * rows + 1, 2), columns, np.ones(2 * rows, np.float32))
    keys = row_keys(x)
    assert len(np.unique(keys)) == rows
    bits = (keys[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)
    assert np.abs(bits.mean(0) - 0.5).max() < 5 * 0.5 / rows**0.5


def test_a_knowledge_graph_lists_all_labels():
    assert lists_all_labels(graph(100))
    assert not lists_all_labels(graph(100, most=1)), "no row has two labels"
    assert not lists_all_labels(texts(100)), "rows are long"
    assert not lists_all_labels(split([[1, 2], [3], [1, 4]], 9)), "rows differ in length"
    rows = [[0, 1], [0, 3], [2, 1]]
    assert lists_all_labels(split(rows, 4))
    assert not lists_all_labels(split(rows, 3)), "rows have most of the features"
    assert not lists_all_labels(split([], 9))
    assert not lists_all_labels(split([[]], 9))


def test_features_of_a_knowledge_graph_have_a_slot():
    assert lists_all_labels(split([[0, 5], [8, 5], [0, 7], [8, 7]], 9)), "in any order"
    assert not lists_all_labels(split([[0, 5], [5, 7], [0, 7]], 9)), "a ring of three"
    assert not lists_all_labels(split([[0, 1], [1, 2], [2, 3], [3, 4], [4, 0]], 11)), "of five"
    assert lists_all_labels(split([[0, 3, 6], [1, 3, 7], [2, 4, 6]], 8))
    assert not lists_all_labels(split([[0, 3, 6], [1, 3, 7], [2, 6, 7]], 8)), "6 has two slots"
    assert lists_all_labels(split([[0], [2], [3]], 5))


def triples(count, repeats=0, seed=0):
    """Rows of head and relation with one of 60 tails, none of them twice, then some once more."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(12 * 5 * 60)[:count]
    chosen = np.concatenate([chosen, chosen[:repeats]])
    questions, tails = chosen // 60, chosen % 60
    features = np.stack([questions // 5, 12 + questions % 5], 1).tolist()
    return split_of(features, tails[:, None].tolist(), 50, 60)


def test_a_row_for_each_triple_is_a_knowledge_graph():
    """Chance would repeat about 80 triples of 760 rows, and two of 120."""
    assert lists_all_labels(triples(760))
    assert lists_all_labels(triples(760, repeats=3))
    assert not lists_all_labels(triples(760, repeats=6)), "triples are repeated"
    assert not lists_all_labels(triples(120)), "so few say nothing"
    few = graph(200)
    assert lists_all_labels(few.take(np.array([*range(200), 7, 9]))), "two copies among 200 rows"
    assert not lists_all_labels(few.take(np.array([*range(200), 7, 9, 11])))


@pytest.mark.parametrize(
    ("rows", "expected"), [(2, 1), (4, 1), (100, 20), (6000, 1000), (20_000, 2000), (100_000, 8192)]
)
def test_how_many_rows_are_held_out(rows, expected):
    labels = Pattern(np.arange(rows + 1), np.zeros(rows, np.int32))
    features = CSR(*labels, np.ones(rows, np.float32))
    train, held = validation_split(Split(features, labels, 1, 1), seed=0)
    assert (len(train), len(held)) == (rows - expected, expected)


def two_rows(lists, kind):
    return replace(split_of([[0, 5], [1, 6]], lists, 9, 7), kind=kind)


def test_what_cannot_be_divided():
    said = "1 training row with 1 label cannot be divided .* choices: take more rows$"
    with pytest.raises(ValueError, match=said):
        validation_split(texts(1), seed=0)
    with pytest.raises(ValueError, match=r"or a smaller dataset\.holdout"):
        divide(texts(1), 0.5, seed=0)
    for kind in ("graph", "other"):  # The only label is not held out.
        rows = two_rows([[1], []], kind)
        seed = next(n for n in range(50) if len(divide(rows, 0.5, n)[1].labels.indices))
        with pytest.raises(ValueError, match="2 training rows with 1 label cannot be divided"):
            validation_split(rows, seed)
    for seed in range(30):  # A pair of a small graph stays for learning.
        train, held = validation_split(two_rows([[1], [2]], "graph"), seed)
        assert (len(train.labels.indices), len(held.labels.indices)) == (1, 1)


@pytest.mark.parametrize("make", [graph, texts])
def test_each_pair_is_on_one_side(make):
    split = make(1600)
    train, held = validation_split(split, seed=3)
    assert pairs(train) | pairs(held) == pairs(split)
    assert not pairs(train) & pairs(held)
    assert (train.num_features, train.num_labels) == (split.num_features, 50)
    assert (held.num_features, held.num_labels) == (split.num_features, 50)
    again, other = validation_split(split, seed=3), validation_split(split, seed=4)
    assert pairs(again[1]) == pairs(held) != pairs(other[1])


def test_pairs_are_held_out_with_one_probability():
    split = graph(1600)
    train, held = validation_split(split, seed=0)
    assert len(held) == pytest.approx(320, abs=5 * 320**0.5)
    assert (np.diff(held.labels.indptr) > 0).all()
    assert len(train) + len(held) > len(split), "most rows are on both sides"
    # Rows of many labels lose as large a share of them as rows of few.
    sizes = dict(zip(row_keys(split.features).tolist(), np.diff(split.labels.indptr), strict=True))
    whole = np.array([sizes[key] for key in row_keys(held.features).tolist()])
    lost = np.diff(held.labels.indptr)
    shares = []
    for part in (whole <= 6, whole > 6):
        every = np.array([s for s in sizes.values() if (s <= 6) == bool(whole[part][0] <= 6)])
        shares.append((lost[part].sum() / every.sum(), every.sum()))
    (few, n), (many, m) = shares
    assert abs(few - many) < 5 * (few * (1 / n + 1 / m)) ** 0.5
    # Rows without labels stay, and rows that lost all are gone.
    assert (np.diff(train.labels.indptr) == 0).sum() == (np.diff(split.labels.indptr) == 0).sum()


def test_the_known_labels_are_those_of_the_equal_rows():
    train = split_of([[4, 9], [1], [7, 2], [4, 9]], [[5, 3], [], [8], [1]], 10, 9)
    known = find_seen(train, "graph").of(ones_of([[9, 4], [4], [1], [2, 7], []]))
    assert known.indptr.tolist() == [0, 3, 3, 3, 4, 4]
    assert known.indices.tolist() == [5, 3, 1, 8], "of all equal rows"
    empty = SeenLabels(split_of([[4], []], [[5], [3]], 10, 9))
    assert not len(empty.of(ones_of([[], []])).indices), "a row without any asks nothing"
    nothing = SeenLabels(train.slice(0, 0)).of(ones_of([[4], [1]]))
    assert (nothing.indptr.tolist(), len(nothing.indices)) == ([0, 0, 0], 0)


def test_known_ids_are_left_out():
    rng = np.random.default_rng(0)
    ids = np.stack([rng.permutation(30)[:12] for _ in range(40)])
    ids[3, 7:] = -1
    known = [rng.permutation(40)[: rng.integers(0, 12)].tolist() for _ in range(40)]
    found = first_unseen(ids, Pattern.from_lists(known), 5)
    for row, (best, mine) in enumerate(zip(ids.tolist(), known, strict=True)):
        left = [label for label in best if label not in mine and label >= 0][:5]
        assert found[row].tolist() == left + [-1] * (5 - len(left))
    assert first_unseen(ids[:, :2], Pattern.from_lists(known), 5).shape == (40, 5)
