"""A re-ranker as numbers and tensors, and those of earlier versions."""

import copy

import numpy as np
import pytest
import torch
from helpers import job
from helpers.graphs import make_graph

from slide import FullSampler, SlideNetwork
from slide.data import divide, holdout
from slide.model.ranker_state import ranker_settings, ranker_tensors, restored_ranker
from slide.ranking import EnsembleRanker

pytestmark = [pytest.mark.not_as_python, pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Data, a network, and its ranker, whose judge has trees."""
    data = job.make_data(tmp_path_factory.mktemp("data"), train_samples=600, test_samples=50)
    torch.manual_seed(0)
    network = SlideNetwork(60, [8], 80, FullSampler)
    ranker = EnsembleRanker(depth=20, voted=20).fit(network, *holdout(data.train, 0.3, 0))
    assert ranker.judge.trees is not None
    return data, network, ranker


def without_trees(tensors):
    return {name: values for name, values in tensors.items() if not name.startswith("judge.")}


def test_it_ranks_as_before(fitted):
    data, network, ranker = fitted
    other = restored_ranker(ranker_settings(ranker), ranker_tensors(ranker))
    one, two = (each.rank(network, data.test.features, 5) for each in (ranker, other))
    np.testing.assert_array_equal(one.ids, two.ids)
    np.testing.assert_array_equal(one.scores, two.scores)


@pytest.fixture(scope="module")
def of_graph():
    """Training rows of a graph, a network, and its ranker."""
    graph = make_graph(np.random.default_rng(0))
    torch.manual_seed(0)
    network = SlideNetwork(graph.num_features, [8], graph.num_labels, FullSampler)
    train, held = divide(graph, 0.2, seed=0)
    return graph, network, EnsembleRanker().fit(network, train, held, every=graph)


def test_answers_to_similar_questions_are_kept(of_graph):
    graph, network, ranker = of_graph
    assert len(ranker.substitutes.rests)
    other = restored_ranker(ranker_settings(ranker), ranker_tensors(ranker))
    for search in ("exact", "index"):
        one, two = (each.rank(network, graph.features, 5, search) for each in (ranker, other))
        np.testing.assert_array_equal(one.ids, two.ids)
        np.testing.assert_array_equal(one.scores, two.scores)


def test_a_graph_of_an_earlier_version_knows_no_similar_questions(of_graph):
    graph, network, ranker = of_graph
    later = ("substitutes.", "questions.")
    old = {n: each for n, each in ranker_tensors(ranker).items() if not n.startswith(later)}
    other = restored_ranker(ranker_settings(ranker), old)
    assert not len(other.substitutes.rests)
    assert other.rank(network, graph.features, 5).ids.shape == (len(graph), 5)


@pytest.mark.parametrize("items", [False, True])
def test_it_is_kept_whether_values_count(fitted, items):
    _, _, ranker = fitted
    other = copy.copy(ranker)
    other.classifiers = copy.copy(ranker.classifiers)
    other.classifiers.counts_items = items
    settings = ranker_settings(other)
    assert restored_ranker(settings, ranker_tensors(other)).classifiers.counts_items == items
    del settings["counts_items"]
    earlier = restored_ranker(settings, ranker_tensors(other))
    assert not earlier.classifiers.counts_items


def test_the_votes_of_a_judge_without_trees_are_kept(fitted):
    _, _, ranker = fitted
    settings = ranker_settings(ranker) | {"judge_trust": [0.5, 0.25, 0.125]}
    other = restored_ranker(settings, without_trees(ranker_tensors(ranker)))
    assert other.judge.trees is None
    assert list(other.judge.trust) == [0.5, 0.25, 0.125]


def test_an_earlier_model_without_trees_is_refused(fitted):
    _, _, ranker = fitted
    settings, tensors = ranker_settings(ranker), ranker_tensors(ranker)
    del settings["judge_trust"]
    restored_ranker(settings, tensors)  # With trees it had the same answers.
    with pytest.raises(ValueError, match="of an earlier slide, which ranked in another way"):
        restored_ranker(settings, without_trees(tensors))


def test_a_ranker_that_is_not_trained_has_no_state():
    with pytest.raises(RuntimeError, match="not trained: call fit first"):
        ranker_settings(EnsembleRanker())
