"""Models that answer with some of their labels only."""

import copy

import numpy as np
import pytest
import torch
from helpers import job
from helpers.graphs import PEOPLE, make_graph

from slide import FullSampler, SlideNetwork
from slide.data import Split, divide, holdout, transform
from slide.model import Model, load
from slide.ranking import EnsembleRanker
from slide.sparse import CSR, Pattern

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return job.make_data(tmp_path_factory.mktemp("data"), train_samples=400, test_samples=30)


@pytest.mark.parametrize("steps", [{}, {"min_label_count": 4, "l2_norm": True}])
@pytest.mark.parametrize("known", ["keep", "exclude"])
def test_answers_are_the_others_without_the_labels_left_out(data, steps, known, tmp_path):
    torch.manual_seed(0)
    made = transform(data, **steps)
    train, held = holdout(made.train, 0.5, seed=0)
    network = job.make_network(made)
    # As many candidates as there are labels, so that restricting adds none.
    depths = {"depth": 80, "voted": 80, "associated": 80, "known": known}
    ranker = EnsembleRanker(**depths).fit(network, train, held, every=made.train)
    model = Model(network, ranker, made.steps)
    some = np.arange(80)[5::3]
    small = model.restricted(some[::-1])
    rows = data.train.features if known == "exclude" else data.test.features
    ids, scores = model.predict(rows, k=80)
    few, values = small.predict(rows, k=80)
    for row in range(len(ids)):
        left = np.isin(ids[row], some)
        found = few[row] >= 0
        assert set(few[row][found]) == set(ids[row][left])
        assert found.sum() < 80
    assert (small.num_features, small.num_labels) == (60, 80)
    small.save(tmp_path / "m")
    again = load(tmp_path / "m").predict(rows, k=80)
    np.testing.assert_array_equal(again.labels, few)
    np.testing.assert_array_equal(again.scores, values)
    size = [(model.network.output.weight.shape[0]), small.network.output.weight.shape[0]]
    assert size[1] < size[0]
    np.testing.assert_array_equal(model.predict(rows, k=80).scores, scores)  # It is as it was.


def test_similar_questions_have_the_answers_that_are_left():
    graph = make_graph(np.random.default_rng(0))
    torch.manual_seed(0)
    network = SlideNetwork(graph.num_features, [8], PEOPLE, FullSampler)
    train, held = divide(graph, 0.2, seed=0)
    ranker = EnsembleRanker().fit(network, train, held, every=graph)
    small = Model(network, ranker).restricted(np.arange(3, PEOPLE, 2)).ranker
    whole = ranker.scorers["analogous"].relate(
        graph.features, np.tile(np.arange(PEOPLE), (len(graph), 1))
    )
    left = np.tile(np.arange(len(range(3, PEOPLE, 2))), (len(graph), 1))
    found = small.scorers["analogous"].relate(graph.features, left).reshape(*left.shape, 2)
    np.testing.assert_array_equal(found, whole.reshape(len(graph), PEOPLE, 2)[:, 3::2])
    assert found.any()


@pytest.mark.not_as_python
def test_models_of_items_are_saved_and_restricted(tmp_path):
    """Rows of items from one of two halves, without weights."""
    rng = np.random.default_rng(0)
    sets = [(30 * rng.integers(2) + rng.permutation(30)[:8]).tolist() for _ in range(600)]
    rows = Pattern.from_lists([sorted(row[:5]) for row in sets])
    features = CSR(*rows, np.full(len(rows.indices), 0.4, np.float32))
    labels = Pattern.from_lists([sorted(row[5:]) for row in sets])
    every = Split(features, labels, 60, 60, kind="items")
    torch.manual_seed(0)
    network = SlideNetwork(60, [8], 60, FullSampler)
    ranker = EnsembleRanker().fit(network, *holdout(every, 0.3, 0), every=every)
    assert ranker.scorers["linear"].counts_items
    model, some = Model(network, ranker), np.arange(1, 60, 2)
    model.save(tmp_path / "m")
    expected, found = (each.predict(features) for each in (model, load(tmp_path / "m")))
    np.testing.assert_array_equal(found.scores, expected.scores)
    ids = np.tile(np.arange(60), (600, 1))
    small = model.restricted(some).ranker.scorers["linear"]
    left = small.scores(features, ids[:, :30])
    np.testing.assert_array_equal(left, ranker.scorers["linear"].scores(features, ids)[:, 1::2])


def test_the_network_alone_has_equal_scores(data):
    model = Model(job.make_network(data), label_names=[f"l{n}" for n in range(80)])
    ids, scores = model.predict(data.test.features, k=80)
    few, values = model.restricted(["l3", "l1", "l77"]).predict(data.test.features, k=3)
    for row in range(30):
        left = np.isin(ids[row], ["l3", "l1", "l77"])
        assert few[row].tolist() == ids[row][left].tolist()
        np.testing.assert_allclose(values[row], scores[row][left], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("labels", "message"),
    [([80], "the model has no label 80"), (["a"], "no label 'a'"), ([], "at least one label")],
)
def test_labels_that_cannot_be(data, labels, message):
    with pytest.raises(ValueError, match=message):
        Model(job.make_network(data)).restricted(labels)


def test_a_restricted_model_that_learns_leaves_the_other_one_alone(data):
    model = Model(job.make_network(data))
    rows = data.test.features
    before = model.predict(rows, k=80)
    for _ in range(2):
        small = model.restricted([3, 1])
        small.partial_fit(rows, [[3]] * 30, lr=0.05)
        assert (small.predict(rows, k=1).labels == 3).all()
        np.testing.assert_array_equal(model.predict(rows, k=80).scores, before.scores)
    small = model.restricted([3, 1])
    small.add_features(4)
    assert (small.num_features, model.num_features) == (64, 60)
    np.testing.assert_array_equal(model.predict(rows, k=80).scores, before.scores)


@pytest.mark.parametrize("trained", [False, True])
def test_a_model_that_learns_leaves_a_restricted_one_alone(data, trained):
    torch.manual_seed(0)
    rows, labels = data.test.features, [[3]] * 30
    model = Model(job.make_network(data))
    if trained:  # It has an optimizer then, whose moments must go on.
        model.partial_fit(rows, [[5]] * 30, lr=0.05)
    twin = copy.deepcopy(model)
    small, other = model.restricted([3, 1, 70]), model.restricted([2, 4])
    before = small.predict(rows, k=3), other.predict(rows, k=2)
    output, first = model.network.output, model.predict(rows, k=9)
    for learner in (model, twin):
        for _ in range(2):
            learner.partial_fit(rows, labels, lr=0.05)
    for found, expected in zip(
        (small.predict(rows, k=3), other.predict(rows, k=2)), before, strict=True
    ):
        np.testing.assert_array_equal(found.labels, expected.labels)
        np.testing.assert_array_equal(found.scores, expected.scores)
    found, expected = model.predict(rows, k=9), twin.predict(rows, k=9)
    assert (found.scores != first.scores).any()
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_array_equal(found.scores, expected.scores)
    assert model.network.output is output, "the many outputs need no copy"
    model.restricted([3, 1]).partial_fit(rows, [[1]] * 30, lr=0.05)
    np.testing.assert_array_equal(model.predict(rows, k=9).scores, expected.scores)
    small.partial_fit(rows, [[1]] * 30, lr=0.05)
    model.add_features(2)
    assert (small.num_features, model.num_features) == (60, 62)
