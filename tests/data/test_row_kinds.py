"""What rows are taken for, where counts alone do not say it."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.splits import split_of

from slide.data.kind import propose_kinds
from slide.data.row_kinds import choose_kind
from slide.sparse import Pattern


def recommender(rows, items, groups):
    """Rows of about 4 items of a user, and 3 further ones; 0.7 of them are of two ``groups``."""
    rng = np.random.default_rng(0)
    weight = (np.arange(items) + 10.0) ** -0.7
    group = rng.integers(groups, size=items)
    members = [np.flatnonzero(group == number) for number in range(groups)]
    sums = [np.cumsum(weight[each]) for each in [*members, np.arange(items)]]
    features, labels = [], []
    for _ in range(rows):
        first, second = 1 + rng.poisson([3, 2])
        tastes, drawn = rng.integers(groups, size=2), {}
        while len(drawn) < first + second:  # Each item once, in the order of the draws.
            taste = tastes[rng.integers(2)] if rng.random() < 0.7 else groups
            index = np.searchsorted(sums[taste], rng.random() * sums[taste][-1], side="right")
            drawn[int(index if taste == groups else members[taste][index])] = None
        features.append(sorted(list(drawn)[:first]))
        labels.append(sorted(list(drawn)[first:]))
    return split_of(features, labels, items, items)


def proposed(train):
    return {found.kind: found.likely for found in propose_kinds(train)[0]}


def figures(why):
    """The two precisions that were compared."""
    rest = why.partition("; mean of P@1, P@3 and P@5 without ")[2]
    words = rest.partition(" on ")[0].replace(",", "").split()
    return [float(word) for word in words if word[0].isdigit()]


def questions(repeats, other=True):
    """400 questions, each ``repeats`` times, of which the answers differ or are the same."""
    rng = np.random.default_rng(0)
    asked = np.unique(rng.integers([0, 300], [300, 308], (400, 2)), axis=0)
    first = (asked[:, 0] * 7 + asked[:, 1]) % 300
    again = np.tile(np.arange(len(asked)), repeats)
    turn = np.repeat(np.arange(repeats), len(asked)) if other else 0
    labels = (first[again] + turn) % 300
    return split_of(asked[again].tolist(), labels[:, None].tolist(), 308, 300)


def test_a_recommender_of_few_items_a_row_is_one():
    """Chance would make some 20 own items in all, too few for a rule that asks for 30."""
    train = recommender(3000, 4000, groups=100)
    kind, why = choose_kind(train)
    assert kind == "items"
    count, chance = why.partition("of their row: ")[2].partition(";")[0].split(", by chance ")
    assert count == "0"
    assert 20 < float(chance) < 30
    own, other = figures(why)
    assert own > 1.5 * other
    assert "on 600 held-out rows" in why
    assert why.endswith("trainer.kind=graph or other overrides it")


def test_numbers_that_seem_to_be_items_are_none_if_held_out_rows_say_so(monkeypatch):
    """Words and tags with numbers of their own; a row has none that is both."""
    rng = np.random.default_rng(0)
    topic = rng.integers(40, size=2000)
    words = [sorted({40 * t + int(w) for w in rng.integers(12, size=5)}) for t in topic]
    tags = [sorted({40 * t + 20 + int(w) for w in rng.integers(3, size=2)}) for t in topic]
    labels = [sorted({*own, int(rng.integers(1600))}) for own in tags]  # Chance would make some.
    rows = zip(words, labels, rng.integers(1600, size=2000).tolist(), strict=True)
    features = [sorted({*own, one} - set(asked)) for own, asked, one in rows]
    train = split_of(features, labels, 1600, 1600)
    said = "no items: frequent features have other numbers than frequent labels, correlation -0."
    assert proposed(train) == {}
    assert said in choose_kind(train).why
    monkeypatch.setattr("slide.data.kind._ALIKE", -1)
    assert proposed(train) == {"items": True}
    kind, why = choose_kind(train)
    own, other = figures(why)
    assert (kind, own < other) == ("other", True)
    assert why.endswith("trainer.kind=graph or items overrides it")


def test_a_repeated_question_asks_for_other_answers_in_a_graph_alone():
    graph, classes = (questions(3, other) for other in (True, False))
    assert proposed(graph) == {"graph": True}
    assert choose_kind(graph).kind == "graph"
    assert "graph" not in proposed(classes)
    assert choose_kind(classes).kind == "other"


def test_a_possible_graph_must_be_better():
    """Each third question repeats its answer: more than a rule allows."""
    train = questions(3)
    labels = train.labels.indices.copy()
    count = len(labels) // 3
    labels[:count:3] = labels[count : 2 * count : 3]
    train = replace(train, labels=train.labels._replace(indices=labels))
    assert proposed(train) == {"graph": False}
    kind, why = choose_kind(train)
    own, other = figures(why)
    assert kind == ("graph" if own > other else "other")
    assert f"{len(labels):,}"[:2] in why


def test_without_equal_questions_the_counts_decide():
    kind, why = choose_kind(questions(1))
    assert kind == "other", "each question has one answer"
    rows = questions(1)
    double = Pattern.from_lists([[a, (a + 1) % 300] for a in rows.labels.indices.tolist()])
    kind, why = choose_kind(replace(rows, labels=double))
    assert kind == "graph"
    assert "so none compares" in why


@pytest.mark.parametrize("kind", ["graph", "items", "dense", "other"])
def test_what_rows_are_said_to_be_is_not_weighed(kind):
    found, why = choose_kind(replace(recommender(30, 50, groups=3), kind=kind))
    assert found == kind
    assert why.startswith(kind)
    assert why.endswith("as trainer.kind says")
