"""Factors of items, against alternating least squares with dense equations."""

import numpy as np
import pytest

from slide import runtime
from slide.data import Split
from slide.ranking.base_scorer import Candidates, Queries, Training
from slide.ranking.scorers.item_factors import ItemFactors
from slide.sparse import CSR, Pattern, row_bounds
from slide.utils.array_checks import Stored

ITEMS, ROWS = 24, 120
EVERY = np.tile(np.arange(ITEMS), (ROWS, 1))


@pytest.fixture
def baskets():
    """Items of one of two groups in each row, and some of the other."""
    rng = np.random.default_rng(0)
    group = np.arange(ITEMS) % 2 == np.arange(ROWS)[:, None] % 2
    return Pattern.from_lists(
        [np.flatnonzero(row).tolist() for row in rng.random((ROWS, ITEMS)) < 0.05 + 0.25 * group]
    )


def rows_of(items):
    return CSR(*items, np.full(len(items.indices), 0.3, np.float32))  # Values do not count.


def learnt(baskets, **more):
    return ItemFactors(**{"factors": 4, "unobserved": 20.0, **more}).fit(baskets, ITEMS, ITEMS)


def dense(items):
    found = np.zeros((items.num_rows, ITEMS))
    found[items.entry_rows(), items.indices] = 1
    return found


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
    found = model.scores(rows_of(baskets), EVERY)
    for b, own in enumerate(dense(baskets)):
        penalty = model.penalty * (own.sum() + model.unobserved)
        matrix = labels.T @ np.diag(weight + own) @ labels + penalty * np.eye(4)
        expected = labels @ np.linalg.solve(matrix, labels.T @ own)
        np.testing.assert_allclose(found[b], expected, atol=1e-4)


def test_passes_lower_the_loss(baskets):
    losses = [naive_loss(learnt(baskets, passes=passes), baskets) for passes in (1, 3, 30)]
    assert losses[0] > losses[1] > losses[2]
    model = learnt(baskets, passes=60)  # At a minimum, a small change of an item raises the loss.
    least = naive_loss(model, baskets)
    for item in (0, 7):
        model.labels[item] *= 1.05
        assert naive_loss(model, baskets) > least
        model.labels[item] /= 1.05


def test_the_items_of_a_group_come_first(baskets):
    model = learnt(baskets)
    best = model.best(model.of_rows(rows_of(baskets)), 3, baskets)
    assert (best % 2 == np.arange(ROWS)[:, None] % 2).mean() > 0.8  # By chance a half.
    assert not np.take_along_axis(dense(baskets), best, 1).any()


def test_candidates_are_the_best_ones_that_are_not_seen(baskets):
    model = learnt(baskets, proposed=5)
    queries = Queries(rows_of(baskets), baskets, None, "exact", 1, ITEMS)
    ids, more = model.propose(queries)
    every = model.scores(rows_of(baskets), EVERY) - 1e9 * dense(baskets)
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


def test_threads_change_nothing(baskets):
    before = runtime.num_threads()
    runtime.set_threads(1)
    alone = learnt(baskets)
    runtime.set_threads(before)
    np.testing.assert_array_equal(alone.labels, learnt(baskets).labels)


def test_it_grows_and_selects_and_is_kept(baskets):
    model = learnt(baskets)
    whole = model.scores(rows_of(baskets), EVERY)
    kept = np.arange(1, ITEMS, 2)
    small = model.selected(kept, ITEMS)
    found = small.scores(rows_of(baskets), np.tile(np.arange(len(kept)), (ROWS, 1)))
    np.testing.assert_allclose(found, whole[:, kept], atol=1e-6)
    large = model.grown(2, 1)
    found = large.scores(rows_of(baskets), np.tile(np.arange(ITEMS + 2), (ROWS, 1)))
    np.testing.assert_allclose(found[:, :ITEMS], whole, atol=1e-6)
    assert not found[:, ITEMS:].any()
    assert len(large.own) == ITEMS + 1
    assert "own" not in model.state()[1]  # Features are labels, which are stored once.
    for kept in (model, large, small):
        sizes, other = (len(kept.labels), len(kept.own)), ItemFactors()
        other.restore(Stored(*kept.state()), *sizes)
        ids = np.tile(np.arange(sizes[0]), (ROWS, 1))
        found = [each.scores(rows_of(baskets), ids) for each in (kept, other)]
        np.testing.assert_array_equal(*found)


def test_rows_and_items_of_which_nothing_is_known_have_no_score():
    nothing = CSR(*Pattern.from_lists([[]]), np.empty(0, np.float32))
    model = ItemFactors(factors=2).fit(Pattern.from_lists([[0, 1], [0, 1]]), 2, 4)
    assert not model.scores(nothing, np.arange(4)[None]).any()
    row = CSR(*Pattern.from_lists([[0]]), np.ones(1, np.float32))
    assert not model.scores(row, np.array([[2, 3]])).any()
    assert len(model.own) == 2
    empty = ItemFactors(factors=2).fit(Pattern.from_lists([]), 2, 4)
    assert not empty.scores(row, np.arange(4)[None]).any()


@pytest.mark.parametrize("name", ["factors", "passes", "proposed", "unobserved", "penalty"])
def test_impossible_settings_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be"):
        ItemFactors(**{name: 0})
