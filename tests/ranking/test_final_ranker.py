"""The final ranker: its probabilities, and its trees against those of scikit-learn."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_limits

from slide.ranking import final_ranker as module
from slide.ranking.final_ranker import FinalRanker

pytestmark = pytest.mark.usefixtures("all_trees")


@pytest.fixture(autouse=True)
def one_openmp_thread():
    """Threads that wait for each other take time for nothing."""
    with threadpool_limits(1, "openmp"):
        yield


@pytest.fixture
def pairs():
    """Column 0 speaks for a label, column 1 against it, and column 2 says nothing."""
    rng = np.random.default_rng(0)
    columns = rng.random((6000, 3), dtype=np.float32)
    chance = 1 / (1 + np.exp(-4 * (columns[:, 0] - columns[:, 1])))
    return columns, rng.random(6000) < chance, chance


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
    columns, right = pairs[0][:3000], pairs[1][:3000]
    monkeypatch.setattr(module, "FEW_HITS", right.sum())
    monkeypatch.setitem(module._ENOUGH, "max_iter", 30)
    ranker = FinalRanker([1, -1, 0]).fit(columns, right)
    settings = module._SETTINGS | module._ENOUGH
    model = HistGradientBoostingClassifier(**settings, monotonic_cst=[1, -1, 0])
    expected = model.fit(columns, right).predict_proba(columns)[:, 1]
    np.testing.assert_allclose(ranker.probabilities(columns), expected, atol=1e-5)


@pytest.mark.compiled_only
def test_few_hits_make_the_mean_of_small_models(monkeypatch):
    rng = np.random.default_rng(1)
    columns = rng.random((8000, 2), dtype=np.float32)
    right = rng.random(8000) < 0.1 * columns[:, 0]
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


def ranked_pairs(rows, *shares, seed=0):
    """Ten candidates a row, hits, bounds; the best of a scorer is right in its share of rows."""
    rng = np.random.default_rng(seed)
    columns = np.zeros((rows, 10, len(shares) + 1), np.float32)
    for row in range(rows):
        for column, share in enumerate(shares):
            place = 0 if rng.random() < share else rng.integers(1, 10)
            order = np.concatenate([[0], 1 + rng.permutation(9)])
            columns[row, :, column] = np.argsort(np.roll(order, place))
    hits = np.tile(np.arange(10) == 0, rows)
    return columns.reshape(-1, len(shares) + 1), hits, np.arange(0, 10 * rows + 1, 10)


def best_are_right(ranker, columns, hits, starts):
    found = ranker.probabilities(columns, starts).reshape(-1, 10)
    return hits.reshape(-1, 10)[np.arange(len(found)), found.argmax(1)].mean()


def test_with_too_few_hits_for_trees_the_better_scorer_decides():
    few = ranked_pairs(40, 0.9, 0.3)
    ranker = FinalRanker([-1, -1, 0]).fit(*few)
    assert ranker.trees is None
    assert min(ranker.linear[1:]) == 0, "no weight is negative"
    later = ranked_pairs(500, 0.9, 0.3, seed=1)
    assert best_are_right(ranker, *later) > 0.85
    # A column that is no rank does not count.
    later[0][:, 2] = np.random.default_rng(0).random(len(later[0]))
    assert best_are_right(ranker, *later) > 0.85


def test_without_any_hit_all_ranks_count_the_same():
    columns, hits, starts = ranked_pairs(300, 0.7, 0.7)
    ranker = FinalRanker([-1, -1, 0]).fit(columns, hits & False, starts)
    best = np.array([[0, 3], [1, 1], [2, 0]])
    found = ranker.probabilities(np.column_stack([best, [0, 0, 0]]).astype(np.float32))
    np.testing.assert_array_equal(np.argsort(-found), [2, 0, 1])
    assert ranker.probabilities(columns, starts).max() < 0.01


def test_too_few_hits_still_give_probabilities():
    columns, hits, starts = ranked_pairs(45, 0.8, 0.5)
    ranker = FinalRanker([-1, -1, 0]).fit(columns, hits, starts)
    probabilities = ranker.probabilities(columns, starts)
    assert probabilities.sum() == pytest.approx(45, rel=0.1)
    best = columns[:, 0] == 0
    assert probabilities[best].mean() == pytest.approx(hits[best].mean(), abs=0.15)
    assert probabilities[~best].mean() < 0.08


def test_answers_that_are_all_right_are_nearly_certain():
    columns, starts = np.zeros((30, 3), np.float32), np.arange(31)
    ranker = FinalRanker([-1, -1, 0]).fit(columns, np.ones(30, bool), starts)
    np.testing.assert_allclose(ranker.probabilities(columns, starts), 30.5 / 31, rtol=1e-4)
    nothing = FinalRanker([-1, 0, 0]).fit(columns[:0], np.ones(0, bool))
    assert 0 < nothing.probabilities(columns)[0] < 1


@pytest.mark.parametrize("nothing", [0.0, -0.3])
def test_of_candidates_that_a_scorer_does_not_know_its_ranks_say_nothing(nothing):
    columns, hits, starts = ranked_pairs(40, 0.6, 0.9)
    columns[:, 2] = nothing
    ranker = FinalRanker([-1, -1, 1], ranked=[(2, nothing), (2, nothing)]).fit(
        columns, hits, starts
    )
    assert len(np.unique(ranker.probabilities(columns, starts).round(12))) == 1


def test_scores_count_by_their_distance_within_a_row():
    """The second scorer has the ranks of chance, but its scores say which one is right."""
    columns, hits, starts = ranked_pairs(60, 0.2, 0.1)
    scores = hits + 0.1 * np.random.default_rng(0).random(len(hits))
    columns[:, 2] = 1000 * np.repeat(np.random.default_rng(1).random(60), 10) + scores
    ranker = FinalRanker([-1, -1, 1], ranked=[(0, -1.0), (2, -1.0)]).fit(columns, hits, starts)
    assert best_are_right(ranker, columns, hits, starts) == 1


def test_heavy_rows_count_more_for_few_hits():
    columns, hits, _ = ranked_pairs(40, 0.9, 0.1)
    other, right, _ = ranked_pairs(5, 0.0, 1.0, seed=1)
    columns, hits = np.concatenate([columns, other]), np.concatenate([hits, right])
    weights, starts = np.repeat([1.0, 100.0], [400, 50]), np.arange(0, 451, 10)
    plain, heavy = (
        FinalRanker([-1, -1, 0]).fit(columns, hits, starts, each) for each in (None, weights)
    )
    assert plain.linear[3] > plain.linear[4]
    assert heavy.linear[3] < heavy.linear[4]


def test_weighted_candidates_are_binned_as_others():
    """Weighted quantiles, which take seconds, are other ones."""
    rng = np.random.default_rng(0)
    columns = rng.normal(size=(2000, 2)).astype(np.float32)
    right, weights = columns[:, 0] + rng.normal(size=2000) > 1, rng.random(2000)
    found = [FinalRanker([1, 0]).fit(columns, right, None, each) for each in (None, weights)]
    bounds = [set(each.trees.thresholds.tolist()) for each in found]
    assert len(bounds[0] & bounds[1]) > 0.5 * len(bounds[1])
    assert found[0].trees.values.tolist() != found[1].trees.values.tolist()


SCORERS = 6


@pytest.mark.compiled_only
def test_of_few_rows_the_linear_model_counts_beside_trees_that_know_little(monkeypatch):
    shares = [0.45, 0.35] * (SCORERS // 2)
    columns, hits, starts = ranked_pairs(200, *shares)
    monkeypatch.setitem(module._FEW, "max_iter", 2)
    ranker = FinalRanker([-1] * SCORERS + [0]).fit(columns, hits, starts)
    chosen = ranker.linear_share
    assert chosen > 0.5
    later, right, starts = ranked_pairs(1000, *shares, seed=1)
    losses, precision = [], []
    for ranker.linear_share in (0.0, chosen):
        p = ranker.probabilities(later, starts)
        losses.append(-np.log(np.where(right, p, 1 - p)).mean())
        precision.append(best_are_right(ranker, later, right, starts))
    assert losses[1] < losses[0] - 0.02
    assert precision[1] > precision[0]


@pytest.mark.compiled_only
def test_trees_that_know_more_than_ranks_count_alone(pairs):
    columns, right, _ = pairs
    ranks = np.random.default_rng(0).integers(0, 9, (6000, 1)).astype(np.float32)
    ranker = FinalRanker([1, -1, 0, -1])
    ranker.fit(np.hstack([columns, ranks]), right, np.arange(0, 6001, 10))
    assert ranker.linear_share <= 0.2


def test_without_enough_hits_in_other_folds_the_linear_model_counts_alone():
    columns, hits, _ = ranked_pairs(200, *[0.5] * SCORERS)
    order = np.argsort(~hits, kind="stable")  # All hits are of the first row.
    starts = np.array([0, 200, *range(300, 2001, 100)])
    ranker = FinalRanker([-1] * SCORERS + [0]).fit(columns[order], hits[order], starts)
    assert ranker.linear_share == 1


def test_many_hits_need_no_folds(monkeypatch):
    monkeypatch.setattr(module, "FEW_HITS", 200)
    ranker = FinalRanker([-1] * SCORERS + [0]).fit(*ranked_pairs(200, *[0.5] * SCORERS))
    assert ranker.linear_share == 0


def candidates(rows, seed):
    """Ten candidates of each row, of which one column knows something, and where rows begin."""
    rng = np.random.default_rng(seed)
    columns = rng.random((10 * rows, 8), dtype=np.float32)
    columns[:, 7] = rng.permuted(np.tile(np.arange(10), (rows, 1)), axis=1).ravel()
    chance = 1 / (1 + np.exp(5 - 8 * columns[:, 0]))
    return columns, rng.random(len(columns)) < chance, np.arange(0, len(columns) + 1, 10)


def error_of_first(ranker, columns, hits, starts):
    """How far the probabilities of the best candidates are from their share of hits."""
    found = ranker.probabilities(columns, starts).reshape(-1, 10)
    first = np.arange(len(found)), found.argmax(1)
    return found[first].mean() - hits.reshape(-1, 10)[first].mean()


TOO_FEW_TREES = {"max_iter": 5}
TOO_MANY_TREES = {"max_iter": 100, "learning_rate": 0.3, "min_samples_leaf": 5}


@pytest.mark.compiled_only
@pytest.mark.parametrize(
    ("few_hits", "settings", "sign"),
    [(0, TOO_FEW_TREES, -1), (10_000, TOO_FEW_TREES, -1), (10_000, TOO_MANY_TREES, 1)],
)
def test_a_correction_mends_trees_that_are_wrongly_sure(monkeypatch, few_hits, settings, sign):
    monkeypatch.setattr(module, "FEW_HITS", few_hits)
    monkeypatch.setattr(module, "_SHARES", np.zeros(1))
    monkeypatch.setattr(module, "_LEAST_ROWS", 400)
    for name in ("_FEW", "_ENOUGH"):
        monkeypatch.setattr(module, name, getattr(module, name) | settings)
    ranker = FinalRanker([0] * 7 + [-1]).fit(*candidates(1000, seed=0))
    later = candidates(5000, seed=1)
    after, corrected = error_of_first(ranker, *later), ranker.probabilities(later[0], later[2])
    assert ranker.correction != module._UNCHANGED
    ranker.correction = module._UNCHANGED
    before = error_of_first(ranker, *later)
    assert before * sign > 0.02
    assert abs(after) < abs(before) / 2
    order = np.argsort(ranker.probabilities(later[0], later[2]), kind="stable")
    np.testing.assert_array_equal(np.argsort(corrected, kind="stable"), order)


@pytest.mark.parametrize("weight", [None, 3.0])
def test_probabilities_that_are_right_are_not_corrected(weight):
    rng = np.random.default_rng(0)
    log_odds, rows = rng.normal(0, 2, 20_000), np.repeat(np.arange(2000), 10)
    hits = rng.random(20_000) < 1 / (1 + np.exp(-log_odds))
    weights = None if weight is None else np.full(20_000, weight)
    assert module._correction(log_odds, hits, rows, weights) == module._UNCHANGED
    first, *factors = module._correction(2 * log_odds - 1, hits, rows, weights)
    known = np.array([-2.0, 0.0, 2.0])
    found = first + module._logarithms(2 * known - 1) @ factors
    np.testing.assert_allclose(found, known, atol=0.25)
    few = rows < 1999
    assert module._correction(9 * log_odds[few], hits[few], rows[few], None) == module._UNCHANGED
