"""Factors of items, against alternating least squares with dense equations."""

import numpy as np
import pytest
from helpers.matrices import dense_of, ones_of

from slide.data import Split
from slide.ranking.base_scorer import Candidates, Queries, Training
from slide.ranking.scorers.item_factors import ItemFactors
from slide.sparse import CSR, Pattern, row_bounds

ITEMS, ROWS = 24, 120


@pytest.fixture
def baskets():
    """Items of one of two groups in each row, and some of the other."""
    rng = np.random.default_rng(0)
    group = np.arange(ITEMS) % 2 == np.arange(ROWS)[:, None] % 2
    return Pattern.from_lists(
        [np.flatnonzero(row).tolist() for row in rng.random((ROWS, ITEMS)) < 0.05 + 0.25 * group]
    )


def rows_of(items):
    return ones_of(items, 0.3)  # Values do not count.


def scores_of(model, rows):
    """Scores of all items."""
    return model.of_rows(rows) @ model.labels.T


def learnt(baskets, **more):
    return ItemFactors(**{"factors": 4, "unobserved": 20.0, **more}).fit(baskets, ITEMS, ITEMS)


def dense(items):
    return dense_of(items, ITEMS)


def naive_loss(model, items):
    """The loss over all pairs, with the best factors of the rows."""
    hit, labels = dense(items), model.labels.astype(np.float64)
    weight, loss = model.unobserved / ITEMS, 0.0
    for own in hit:
        if own.any():
            penalty = model.penalty * (own.sum() + model.unobserved)
            matrix = labels.T @ np.diag(weight + own) @ labels + penalty * np.eye(labels.shape[1])
            x = np.linalg.solve(matrix, labels.T @ own)
            scores = labels @ x
            loss += (own * (1 - scores) ** 2).sum() + weight * (scores**2).sum() + penalty * x @ x
    counts = hit.sum(0) + weight * len(hit)
    return loss + model.penalty * (counts * (labels**2).sum(1)).sum()


def test_scores_are_those_of_the_best_factors_of_a_row(baskets):
    model = learnt(baskets)
    labels, weight = model.labels.astype(np.float64), model.unobserved / ITEMS
    found = scores_of(model, rows_of(baskets))
    for b, own in enumerate(dense(baskets)):
        penalty = model.penalty * (own.sum() + model.unobserved)
        matrix = labels.T @ np.diag(weight + own) @ labels + penalty * np.eye(4)
        expected = labels @ np.linalg.solve(matrix, labels.T @ own)
        np.testing.assert_allclose(found[b], expected, atol=1e-4)


def test_passes_lower_the_loss(baskets):
    losses = [naive_loss(learnt(baskets, passes=passes), baskets) for passes in (1, 3, 20)]
    assert losses[0] > losses[1] > losses[2]
    more = learnt(baskets, passes=3).fit(baskets, ITEMS, ITEMS, more=True)
    assert losses[1] > naive_loss(more, baskets) > losses[2]
    model = learnt(baskets, passes=40)  # At a minimum, a small change of an item raises the loss.
    least = naive_loss(model, baskets)
    for item in (0, 7):
        model.labels[item] *= 1.05
        assert naive_loss(model, baskets) > least
        model.labels[item] /= 1.05


def test_candidates_are_the_best_ones_that_are_not_seen(baskets):
    model = learnt(baskets, proposed=5)
    queries = Queries(rows_of(baskets), baskets, None, "exact", 1, np.zeros(ITEMS))
    ids, more = model.propose(queries)
    every = scores_of(model, rows_of(baskets)) - 1e9 * dense(baskets)
    best = -np.sort(-every, axis=1)[:, :5]
    np.testing.assert_allclose(np.take_along_axis(every, ids, 1), best, atol=1e-6)
    few = np.where(ids % 3 == 0, -1, ids)
    few = -np.sort(-few, axis=1)
    candidates = Candidates(few, row_bounds((few >= 0).sum(1)))
    found = model.score(queries, candidates, more)["item_factors"]
    np.testing.assert_allclose(found, candidates.flat(np.take_along_axis(every, few, 1)), atol=1e-6)


def test_held_out_rows_choose_what_other_items_count(baskets):
    lists = [baskets.indices[slice(*baskets.indptr[b : b + 2])].tolist() for b in range(ROWS)]
    features, labels = (Pattern.from_lists([row[i::2] for row in lists]) for i in (0, 1))
    split = Split(rows_of(features), labels, ITEMS, ITEMS)
    notes: list[str] = []
    model = ItemFactors(factors=4)
    learnt, held = split.take(np.arange(80)), split.take(np.arange(80, ROWS))
    training = Training(learnt, "items", seen=None, held=held, scorers={}, notes=notes)
    model.learn(training)
    assert f"count as {model.unobserved:g} of a row" in notes[0]
    chosen, training.held = model.unobserved, None
    model.learn(training)  # From all rows: the choice stays.
    assert model.unobserved == chosen
    assert len(notes) == 1
    fixed = ItemFactors(factors=4, unobserved=7.0)
    training.held = held
    fixed.learn(training)
    assert fixed.unobserved == 7.0


@pytest.mark.parametrize(
    ("figures", "chosen"), [([5, 9], 1000), ([9, 5, 4], 300), ([5, 4, 6, 3], 100)]
)
def test_smaller_ones_are_tried_only_below_the_best(baskets, monkeypatch, figures, chosen):
    left = list(figures)
    monkeypatch.setattr(Training, "precision", lambda self, best: left.pop(0))
    split = Split(rows_of(baskets), baskets, ITEMS, ITEMS)
    model = ItemFactors(factors=4)
    model.learn(Training(split, "items", seen=None, held=split, scorers={}, notes=[]))
    assert not left
    assert model.unobserved == chosen


def test_rows_and_items_of_which_nothing_is_known_have_no_score():
    nothing = CSR(*Pattern.from_lists([[]]), np.empty(0, np.float32))
    model = ItemFactors(factors=2).fit(Pattern.from_lists([[0, 1], [0, 1]]), 2, 4)
    assert not scores_of(model, nothing).any()
    row = ones_of([[0]])
    assert not scores_of(model, row)[:, 2:].any()
    assert len(model.own) == 2
    assert "own" not in model.state()[1], "they are the first labels, which are stored once"
    empty = ItemFactors(factors=2).fit(Pattern.from_lists([]), 2, 4)
    assert not scores_of(empty, row).any()
