"""The final ranker: its probabilities, and its trees against those of scikit-learn."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from slide.ranking import final_ranker as module
from slide.ranking.final_ranker import FinalRanker

pytestmark = pytest.mark.usefixtures("all_trees")


@pytest.fixture
def pairs():
    """Column 0 speaks for a label, column 1 against it, and column 2 says nothing."""
    rng = np.random.default_rng(0)
    columns = rng.random((6000, 3), dtype=np.float32)
    chance = 1 / (1 + np.exp(-4 * (columns[:, 0] - columns[:, 1])))
    return columns, rng.random(6000) < chance, chance


def test_its_scores_are_probabilities(pairs):
    columns, right, _ = pairs
    ranker = FinalRanker([1, -1, 0]).fit(columns[:4000], right[:4000])
    found = ranker.probabilities(columns[4000:])
    assert found.min() > 0
    assert found.max() < 1
    for low in np.arange(0.1, 0.9, 0.2):
        inside = (found >= low) & (found < low + 0.2)
        assert inside.sum() > 100
        assert found[inside].mean() == pytest.approx(right[4000:][inside].mean(), abs=0.08)


@pytest.mark.compiled_only
@pytest.mark.parametrize("few_hits", [0, 10_000])
def test_scores_stay_probabilities_if_few_wrong_candidates_are_drawn(monkeypatch, few_hits):
    monkeypatch.setattr(module, "FEW_HITS", few_hits)
    # Not the seed of the ranker, whose draws would then depend on the columns.
    rng = np.random.default_rng(1)
    columns = rng.random((60_000, 2), dtype=np.float32)
    right = rng.random(60_000) < 0.06 * columns[:, 0] ** 2
    learnt = []
    fit = HistGradientBoostingClassifier.fit

    def noted(self, x, y, weights):
        learnt.append(y)
        return fit(self, x, y)

    monkeypatch.setattr(HistGradientBoostingClassifier, "fit", noted)
    ranker = FinalRanker([1, 0]).fit(columns[:40_000], right[:40_000])
    assert learnt[0].sum() == right[:40_000].sum(), "all true labels"
    assert (~learnt[0]).sum() == pytest.approx(module._WRONG * learnt[0].sum(), rel=0.1)
    found, later = ranker.probabilities(columns[40_000:]), right[40_000:]
    assert found.mean() == pytest.approx(later.mean(), abs=0.003)
    high = columns[40_000:, 0] > 0.7
    assert found[high].mean() == pytest.approx(later[high].mean(), abs=0.012)


def test_its_trees_are_those_of_scikit_learn(pairs, monkeypatch):
    columns, right, _ = pairs
    monkeypatch.setattr(module, "FEW_HITS", right.sum())
    ranker = FinalRanker([1, -1, 0]).fit(columns, right)
    settings = module._SETTINGS | module._ENOUGH
    model = HistGradientBoostingClassifier(**settings, monotonic_cst=[1, -1, 0])
    expected = model.fit(columns, right).predict_proba(columns)[:, 1]
    np.testing.assert_allclose(ranker.probabilities(columns), expected, atol=1e-5)


def test_one_small_model_learns_from_few_candidates(pairs):
    columns, right, _ = pairs
    ranker = FinalRanker([1, -1, 0]).fit(columns, right)
    assert right.sum() < module.FEW_HITS
    assert len(ranker.trees.roots) == module._FEW["max_iter"]


@pytest.mark.compiled_only
def test_few_hits_make_the_mean_of_small_models(monkeypatch):
    rng = np.random.default_rng(1)
    columns = rng.random((20_000, 2), dtype=np.float32)
    right = rng.random(20_000) < 0.1 * columns[:, 0]
    models, fit = [], HistGradientBoostingClassifier.fit

    def noted(self, *rows):
        models.append(fit(self, *rows))
        return models[-1]

    monkeypatch.setattr(HistGradientBoostingClassifier, "fit", noted)
    ranker = FinalRanker([1, 0]).fit(columns, right)
    share = module._WRONG * right.sum() / (~right).sum()
    raw = np.stack([model.decision_function(columns) for model in models])
    assert len(models) == module._MODELS_OF_FEW
    assert np.abs(raw[0] - raw[1]).max() > 0.01, "all models have learnt from the same draw"
    expected = 1 / (1 + np.exp(-raw.mean(0) - np.log(share)))
    np.testing.assert_allclose(ranker.probabilities(columns), expected, atol=1e-5)


def test_more_features_never_speaks_against_a_label(pairs):
    columns, right, _ = pairs
    ranker = FinalRanker([1, -1, 0]).fit(columns, right)
    line = np.full((50, 3), 0.5, np.float32)
    line[:, 0] = np.linspace(0, 1, 50)
    assert (np.diff(ranker.probabilities(line)) >= 0).all()
    line[:, :2] = line[:, 1::-1]
    assert (np.diff(ranker.probabilities(line)) <= 0).all()


def ranked_pairs(rows, right_of_first, right_of_second, seed=0):
    """Ten candidates of each row, ranked by two scorers, and which of them are right.

    ``right_of_first`` is the share of rows in which the best one of the first scorer is right.
    """
    rng = np.random.default_rng(seed)
    columns, hits = np.zeros((rows, 10, 3), np.float32), np.zeros((rows, 10), bool)
    for row in range(rows):
        hits[row, 0] = True
        for column, share in enumerate((right_of_first, right_of_second)):
            place = 0 if rng.random() < share else rng.integers(1, 10)
            order = np.concatenate([[0], 1 + rng.permutation(9)])
            ranks = np.argsort(np.roll(order, place))
            columns[row, :, column] = ranks
    return columns.reshape(-1, 3), hits.ravel()


def best_are_right(ranker, columns, hits):
    found = ranker.probabilities(columns).reshape(-1, 10)
    return hits.reshape(-1, 10)[np.arange(len(found)), found.argmax(1)].mean()


def test_too_few_hits_make_a_vote_of_the_ranks():
    few = ranked_pairs(40, 0.9, 0.3)
    ranker = FinalRanker([-1, -1, 0]).fit(*few)
    assert ranker.trees is None
    assert (
        ranker.weights[0] > 3 > ranker.weights[1] > 0
    )  # Of ten candidates 0.3 is more than chance.
    columns, hits = ranked_pairs(500, 0.9, 0.3, seed=1)
    assert best_are_right(ranker, columns, hits) > 0.85
    turned = FinalRanker([-1, -1, 0]).fit(few[0][:, [1, 0, 2]], few[1])
    assert best_are_right(turned, columns[:, [1, 0, 2]], hits) > 0.85
    # A column that is no rank does not count.
    columns[:, 2] = np.random.default_rng(0).random(len(columns))
    assert best_are_right(ranker, columns, hits) > 0.85


def test_chance_has_no_vote():
    """Of ten candidates the best one of an scorer is right in a tenth of the rows by chance."""
    columns, hits = ranked_pairs(45, 0.45, 0.1)
    trust = FinalRanker([-1, -1, 0]).fit(columns, hits).weights
    assert trust[0] > 1.5
    assert trust[1] < 0.6


def test_without_any_hit_all_ranks_count_the_same():
    columns, hits = ranked_pairs(300, 0.7, 0.7)
    ranker = FinalRanker([-1, -1, 0]).fit(columns, hits & False)
    assert ranker.weights == [1, 1]
    best = np.array([[0, 3], [1, 1], [2, 0]])
    found = ranker.probabilities(np.column_stack([best, [0, 0, 0]]).astype(np.float32))
    np.testing.assert_array_equal(np.argsort(-found), [2, 0, 1])
    assert ranker.probabilities(columns).max() < 0.01


def test_too_few_hits_still_give_probabilities():
    columns, hits = ranked_pairs(45, 0.8, 0.5)
    probabilities = FinalRanker([-1, -1, 0]).fit(columns, hits).probabilities(columns)
    assert probabilities.sum() == pytest.approx(45, rel=0.1)
    best = columns[:, 0] == 0
    assert probabilities[best].mean() == pytest.approx(hits[best].mean(), abs=0.15)
    assert probabilities[~best].mean() < 0.08


def test_answers_that_are_all_right_are_nearly_certain():
    columns = np.zeros((30, 3), np.float32)
    found = FinalRanker([-1, -1, 0]).fit(columns, np.ones(30, bool)).probabilities(columns)
    np.testing.assert_allclose(found, 30.5 / 31)
    assert (
        0 < FinalRanker([-1, 0, 0]).fit(columns[:0], np.ones(0, bool)).probabilities(columns)[0] < 1
    )


@pytest.mark.parametrize("nothing", [0.0, -0.3])
def test_an_scorer_that_knows_nothing_of_a_candidate_has_no_vote(nothing):
    """Its rank is that of the candidates' numbers."""
    columns, hits = ranked_pairs(40, 0.6, 0.9)
    blind = columns.copy()
    blind[:, 2] = nothing
    ranker = FinalRanker([-1, -1, 1], ranked=[(2, nothing), (0, -1.0)]).fit(blind, hits)
    assert ranker.weights[0] == 0 < ranker.weights[1]
    both = FinalRanker([-1, -1, 1], ranked=[(2, nothing), (2, nothing)]).fit(blind, hits)
    assert both.weights == [1, 1], "nobody knows anything"
    assert len(np.unique(both.probabilities(blind))) == 1


def test_heavy_rows_count_more_for_few_hits():
    columns, hits = ranked_pairs(40, 0.9, 0.1)
    other, right = ranked_pairs(5, 0.0, 1.0, seed=1)
    columns, hits = np.concatenate([columns, other]), np.concatenate([hits, right])
    weights = np.repeat([1.0, 100.0], [400, 50])
    plain, heavy = (FinalRanker([-1, -1, 0]).fit(columns, hits, each) for each in (None, weights))
    assert plain.weights[0] > plain.weights[1]
    assert heavy.weights[0] < heavy.weights[1]


SCORERS = 6


def scored_rows(rows, seed):
    """Ten candidates of each row, ranked by six scorers, and the numbers of their rows."""
    parts = [ranked_pairs(rows, 0.45, 0.35, 10 * seed + n) for n in range(SCORERS // 2)]
    columns = np.hstack([columns[:, :2] for columns, _ in parts])
    return columns, parts[0][1], np.repeat(np.arange(rows), 10)


@pytest.mark.compiled_only
def test_of_few_rows_the_ranks_count_beside_trees_that_know_little(monkeypatch):
    columns, hits, rows = scored_rows(200, 0)
    monkeypatch.setitem(module._FEW, "max_iter", 2)
    alone = FinalRanker([-1] * SCORERS).fit(columns, hits)
    ranker = FinalRanker([-1] * SCORERS).fit(columns, hits, rows=rows)
    assert alone.rank_share == 0
    assert ranker.rank_share > 0.5
    later, right, _ = scored_rows(1000, 1)
    losses = [
        -np.log(np.where(right, p, 1 - p)).mean()
        for p in (each.probabilities(later) for each in (alone, ranker))
    ]
    assert losses[1] < losses[0] - 0.02
    assert best_are_right(ranker, later, right) > best_are_right(alone, later, right)


def one_good_scorer(rows, seed):
    """Ten candidates of each row; one of six scorers knows something."""
    parts = [ranked_pairs(rows, 0.6 if n == 0 else 0.1, 0.1, 10 * seed + n) for n in range(3)]
    columns = np.hstack([columns[:, :2] for columns, _ in parts])
    return columns, parts[0][1], np.repeat(np.arange(rows), 10)


@pytest.mark.compiled_only
def test_of_few_rows_it_is_as_good_as_its_best_scorer():
    later, right, _ = one_good_scorer(2000, 9)
    alone = right.reshape(-1, 10)[later[:, 0].reshape(-1, 10) == 0].mean()
    found = []
    for seed in range(3):
        columns, hits, rows = one_good_scorer(55, seed)
        ranker = FinalRanker([-1] * SCORERS).fit(columns, hits, rows=rows)
        assert ranker.rank_share > 0.5
        found.append(best_are_right(ranker, later, right))
    assert np.mean(found) > alone - 0.01


@pytest.mark.compiled_only
def test_trees_that_know_more_than_ranks_count_alone(pairs):
    columns, right, _ = pairs
    ranks = np.random.default_rng(0).integers(0, 9, (6000, 1)).astype(np.float32)
    ranker = FinalRanker([1, -1, 0, -1])
    ranker.fit(np.hstack([columns, ranks]), right, rows=np.arange(6000) // 10)
    assert ranker.rank_share <= 0.2


def test_folds_without_enough_hits_leave_the_trees_alone():
    columns, hits, _ = scored_rows(200, 0)
    rows = np.where(hits, 0, 1 + np.arange(len(hits)) % 9)  # All hits are of one row.
    assert FinalRanker([-1] * SCORERS).fit(columns, hits, rows=rows).rank_share == 0


def test_many_hits_need_no_folds(monkeypatch):
    columns, hits, rows = scored_rows(200, 0)
    monkeypatch.setattr(module, "FEW_HITS", 200)
    assert FinalRanker([-1] * SCORERS).fit(columns, hits, rows=rows).rank_share == 0
