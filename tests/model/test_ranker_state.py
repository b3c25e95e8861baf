"""A re-ranker as numbers and tensors, and those of earlier versions."""

import numpy as np
import pytest
import torch
from helpers import job
from helpers.answers import assert_same
from helpers.graphs import make_graph

from slide import FullSampler, SlideNetwork
from slide.data import divide, holdout
from slide.ranking import EnsembleRanker
from slide.ranking.base_scorer import BaseScorer
from slide.ranking.left_out import LEFT_OUT
from slide.ranking.saved import _ARRAYS, _NUMBERS, ranker_state, restored_ranker
from slide.utils.array_checks import Stored

pytestmark = [pytest.mark.not_as_python, pytest.mark.usefixtures("one_thread")]


def earlier_ranker(**settings):
    """A ranker without the base scorers that earlier versions did not have."""
    ranker = EnsembleRanker(**settings)
    for name in ("frequency", "item_similarity", "label_tree"):
        del ranker.all_scorers[name]
    return ranker


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Data, a network, and its ranker, whose final ranker has trees."""
    data = job.make_data(tmp_path_factory.mktemp("data"), train_samples=600, test_samples=50)
    torch.manual_seed(0)
    network = SlideNetwork(60, [8], 80, FullSampler)
    ranker = earlier_ranker(depth=20, voted=20).fit(network, *holdout(data.train, 0.3, 0))
    assert ranker.final_ranker.trees is not None
    return data, network, ranker


def earlier(settings, tensors):
    """Settings and tensors by the names of the version before."""
    final = {"base": settings["final_ranker"]["base"], "slope": 1.0, "weights": [1.0] * 4}
    numbers = {**settings["scorers"], "final_ranker": final}
    old = {name: settings[name] for name in ("objective", "known", "kind")}
    for name, (new, *_) in _NUMBERS.items():
        scorer, _, key = new.rpartition(".")
        old[name] = numbers[scorer][key] if scorer else settings[key]
    found = {}
    for name, each in tensors.items():
        pairs = (
            (was, now) for was, all_ in _ARRAYS.items() for now in all_ if name.startswith(now)
        )
        was, now = next(pairs, ("", ""))
        found[was + name.removeprefix(now)] = each
    return old, found


def restored(settings, tensors):
    """The ranker of the numbers and tensors, whose numbers of labels and features follow."""
    found = {"neighbours.feature_weights": "feature_weights"}
    named = {found.get(name, name): each for name, each in tensors.items()}
    sizes = len(named["frequency"]), len(named["feature_weights"])
    return restored_ranker(Stored(settings, tensors), *sizes)


def without_trees(tensors):
    return {n: each for n, each in tensors.items() if not n.startswith(("judge.", "final_ranker."))}


@pytest.fixture(scope="module")
def of_graph():
    """Training rows of a graph, a network, and its ranker."""
    graph = make_graph(np.random.default_rng(0))
    torch.manual_seed(0)
    network = SlideNetwork(graph.num_features, [8], graph.num_labels, FullSampler)
    train, held = divide(graph, 0.2, seed=0)
    return graph, network, earlier_ranker().fit(network, train, held, every=graph)


@pytest.mark.parametrize("which", ["fitted", "of_graph"])
def test_it_ranks_as_before(request, which):
    """Also where it was written by the version before."""
    rows, network, ranker = request.getfixturevalue(which)
    features = rows.features if which == "of_graph" else rows.test.features
    settings, tensors = ranker_state(ranker)
    other = restored(settings, tensors)
    assert_same(*(each.rank(network, features, 5) for each in (ranker, other)))
    settings["final_ranker"]["linear_share"] = 0.0  # Trees alone counted.
    ranker = restored(settings, tensors)
    settings, tensors = earlier(settings, tensors)
    assert {"judge_base", "idf", "excludes_known"} < settings.keys()
    assert {"judge.roots", "row_labels.indptr", "associations.unseen"} < tensors.keys()
    other = restored(settings, tensors)
    assert_same(*(each.rank(network, features, 5) for each in (ranker, other)))


def test_equal_labels_are_stored_once(of_graph):
    settings, tensors = ranker_state(of_graph[2])
    assert settings["same"]["seen.labels.indices"] == "analogous.labels.indices"
    assert "seen.labels.indices" not in tensors


def test_an_earlier_final_ranker_without_trees_votes_as_before(fitted):
    data, network, ranker = fitted
    settings, tensors = ranker_state(ranker)
    votes = np.array([0.5, 0.25, 0.125, 1.0])
    settings["final_ranker"] = {"base": -3.0, "slope": 2.0, "weights": votes.tolist()}
    other = restored(settings, without_trees(tensors))
    found = other.ranking_features(network, data.test.features, 5, "exact")
    of_scorers = other.layout.ranked
    ranks = found.columns[:, [i for i, sign in enumerate(other.layout.signs) if sign < 0]]
    knows = np.stack([found.columns[:, i] != np.float32(none) for i, none in of_scorers], 1)
    expected = -3 + 2 * (votes * knows / (1 + ranks.astype(np.float64))).sum(1)
    probabilities = other.final_ranker.probabilities(found.columns)
    np.testing.assert_allclose(np.log(probabilities / (1 - probabilities)), expected, rtol=1e-9)


def test_earlier_regressions_of_ranks_count_beside_trees_as_before(fitted):
    data, network, ranker = fitted
    settings, tensors = ranker_state(ranker)
    weights = np.linspace(-1, 1, 8)
    beside = {"rank_share": 0.3, "rank_weights": [-2.0, *weights.tolist()]}
    base = {"base": settings["final_ranker"]["base"], "slope": 1.0, "weights": [1.0] * 4}
    by_share = {}
    for share in (0.0, 0.3):
        settings["final_ranker"] = base | beside | {"rank_share": share}
        other = restored(settings, tensors)
        found = other.ranking_features(network, data.test.features, 5, "exact").columns
        p = other.final_ranker.probabilities(found)
        by_share[share] = np.log(p / (1 - p))
    ranks = found[:, [i for i, sign in enumerate(other.layout.signs) if sign < 0]].astype(float)
    numbers = np.hstack([1 / (1 + ranks), -np.log1p(ranks)])
    expected = 0.7 * by_share[0.0] + 0.3 * (numbers @ weights - 2)
    np.testing.assert_allclose(by_share[0.3], expected, rtol=1e-7, atol=1e-7)


def test_a_correction_is_kept_and_models_of_before_have_none(fitted):
    settings, tensors = ranker_state(fitted[2])
    settings["final_ranker"]["correction"] = [0.5, 0.75, 1.5]
    assert restored(settings, tensors).final_ranker.correction == [0.5, 0.75, 1.5]
    del settings["final_ranker"]["correction"]
    assert restored(settings, tensors).final_ranker.correction == [0, 1, 1]
    settings["final_ranker"]["correction"] = [0.5, 0.01, 1]
    with pytest.raises(ValueError, match=r"correction whose factors are at least 0\.1"):
        restored(settings, tensors)


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_model_with_a_scorer_that_is_no_more_opens(fitted, monkeypatch, name):
    """Its trees find the features of the scorer, which say the same of all candidates."""
    data, network, _ = fitted

    class Before(BaseScorer):
        features = LEFT_OUT[name][0]

        def score(self, queries, candidates, more):
            return dict.fromkeys([name], candidates.flat(candidates.ids % 7))

    Before.name = name
    ranker = earlier_ranker(depth=20, voted=20)
    Before.counts = ()
    ranker.all_scorers[name] = Before()
    ranker.fit(network, *holdout(data.train, 0.3, 0))
    with pytest.warns(UserWarning, match=f"scorers that slide no longer has: {name}. It answers"):
        other = restored(*ranker_state(ranker))
    for again in (False, True):  # A model that is saved once more.
        if again:
            with pytest.warns(UserWarning, match=name):
                other = restored(*ranker_state(other))
        found = other.ranking_features(network, data.test.features, 5, "exact")
        said = found.columns[:, [found.names.index(each) for each in LEFT_OUT[name][0]]]
        assert (said == np.array(LEFT_OUT[name][1], np.float32)).all()
        answers = other.rank(network, data.test.features, 5)
        assert answers.ids.shape == (50, 5)
        assert np.isfinite(answers.scores).all()
    refit = other.fit(network, *holdout(data.train, 0.3, 0))
    assert name not in refit.scorers
    assert name not in EnsembleRanker(scorers={name: {"proposed": 5}}).all_scorers
