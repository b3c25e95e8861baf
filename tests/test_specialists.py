"""The specialists of results/specialists.md, against loops and what they must find."""

import numpy as np
import pytest
from helpers.matrices import make_pattern, ones_of

from slide.data import Split
from slide.sparse import Pattern

ITEMS = 30
pytestmark = [pytest.mark.compiled_only, pytest.mark.usefixtures("one_thread")]


@pytest.fixture
def page(bench):
    pytest.importorskip("matplotlib")
    return bench("specialists")


def split(features, labels, width, outputs, **more):
    return Split(ones_of(features), labels, width, outputs, **more)


def words(rng, count):
    """Two slots of five words each; the label is that of the first slot, but for some rows."""
    slots = rng.integers(5, size=(count, 2)) + np.array([0, 5])
    answers = np.where(rng.random(count) < 0.8, slots[:, 0], rng.integers(6, size=count))
    features, labels = (Pattern.from_lists(np.c_[each].tolist()) for each in (slots, answers))
    return split(features, labels, 10, 25)


def test_trigrams_interpolate_by_the_number_of_new_labels(page):
    train, asked = words(np.random.default_rng(0), 60), words(np.random.default_rng(1), 9)
    found = page.trigrams(train, 2)(asked)
    slots, answers = train.features.indices.reshape(-1, 2), train.labels.indices
    for row, own in zip(found, asked.features.indices.reshape(-1, 2), strict=True):
        expected = np.bincount(answers, minlength=25) / 60
        for known in (slots[:, 1] == own[1], (slots == own).all(1)):
            counts = np.bincount(answers[known], minlength=25)
            new = 2 * (counts > 0).sum()
            expected = (counts + new * expected) / (counts.sum() + new) if new else expected
        np.testing.assert_allclose(row, expected, rtol=1e-6)


def baskets(rng, count):
    """Rows of one of two groups of items: even numbers or odd ones."""
    rows = [2 * rng.permutation(ITEMS // 2)[:8] + rng.integers(2) for _ in range(count)]
    parts = [[np.sort(row[a:b]).tolist() for row in rows] for a, b in ((0, 5), (5, 8))]
    return split(*map(Pattern.from_lists, parts), ITEMS, ITEMS, kind="items")


@pytest.mark.parametrize("name", ["item_knn", "ials"])
def test_items_of_the_same_group_come_first(page, name):
    train, asked = (baskets(np.random.default_rng(seed), n) for seed, n in ((0, 150), (1, 20)))
    found = getattr(page, name)(train, 1.0)(asked)
    group = asked.features.indices[asked.features.indptr[:-1]] % 2
    of_group = np.arange(ITEMS) % 2 == group[:, None]
    own = np.zeros((20, ITEMS), bool)
    own[asked.features.entry_rows(), asked.features.indices] = True
    assert found[of_group & ~own].min() > found[~of_group].max()
    scores = page.figures_of(lambda _: found, asked, Pattern(*asked.features[:2]), "items")
    assert scores.keys() == {"recall_at_20", "ndcg_at_20"}
    assert scores["recall_at_20"] == 1, "ten items of the group are left"


def test_ease_minimises_the_penalised_error(page):
    train = baskets(np.random.default_rng(0), 40)
    x = np.zeros((40, ITEMS))
    for part in (train.features, train.labels):
        x[part.entry_rows(), part.indices] = 1
    weights = page.ease(train, 5.0)(single_items())
    for n in range(ITEMS):  # A regression of an item on all others.
        others = np.delete(np.arange(ITEMS), n)
        gram = x[:, others].T @ x[:, others] + 5 * np.eye(ITEMS - 1)
        expected = np.linalg.solve(gram, x[:, others].T @ x[:, n])
        np.testing.assert_allclose(weights[others, n], expected, atol=1e-3)


def single_items():
    rows = Pattern.from_lists([[n] for n in range(ITEMS)])
    return split(rows, rows, ITEMS, ITEMS, kind="items")


@pytest.mark.parametrize("score", ["TransE", "fastText", "LSTM", "linear SVM"])
def test_models_of_embeddings_learn(page, score):
    train = words(np.random.default_rng(0), 1500)
    fit, settings = {**page.SETS["fb15k"][1], **page.SETS["nextword"][1]}[score]
    more = settings[0] | ({"seconds": 1} if fit in page.BOUNDED else {})
    found = page.figures_of(fit(train, **more), train, None, "graph")
    assert found["hits_at_1"] > 0.4, "1 / 6 by chance"
    assert found["mrr"] > found["hits_at_1"]


def test_settings_are_chosen_on_training_rows(page):
    """Of two constant answers, the frequent label is the better one in training rows alone."""
    train = split(make_pattern(np.random.default_rng(0), [2] * 50, 10), same_label(50, 3), 10, 25)
    test = split(make_pattern(np.random.default_rng(1), [2] * 5, 10), same_label(5, 7), 10, 25)

    def constant(_, label):
        return lambda rows: np.eye(25)[[label] * len(rows)]

    row = page.specialist(train, test, constant, [{"label": 7}, {"label": 3}], "other")
    assert row["settings"] == {"label": 3}
    assert row["p_at_1"] == 0


def same_label(count, label):
    return Pattern.from_lists([[label]] * count)
