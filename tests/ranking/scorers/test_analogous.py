"""Answers to similar questions, against counting in loops."""

from collections import Counter

import numpy as np
import pytest
from helpers.graphs import PEOPLE, RELATIONS, make_graph
from helpers.matrices import ones_of

from slide.ranking import AnalogousQueries
from slide.ranking.scorers import analogous
from slide.sparse import Pattern

FEATURES = PEOPLE + RELATIONS
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def graph():
    return make_graph(np.random.default_rng(0))


def questions_of(split):
    """The answers to each question, by its features."""
    rows = split.features.indices.reshape(-1, 2).tolist()
    bounds = zip(split.labels.indptr[:-1], split.labels.indptr[1:], strict=True)
    answers = [split.labels.indices[a:b].tolist() for a, b in bounds]
    return {tuple(row): own for row, own in zip(rows, answers, strict=True)}


def naive_weights(questions):
    """For each feature the weights of those that stand in for it."""
    places = {}
    for row, answers in questions.items():
        for own, other in (row, row[::-1]):
            for answer in answers:
                places.setdefault((other, answer), []).append(own)
    counts = Counter(own for features in places.values() for own in features)
    shared = [Counter() for _ in range(FEATURES)]
    for features in places.values():
        if len(features) <= 100:
            for own in features:
                shared[own].update(other for other in features if other != own)
    return [{c: n / (counts[c] + 3) for c, n in own.items()} for own in shared]


def naive_answers(questions, weights, row):
    """The sum of shares and the largest weight of each label."""
    sums, best = np.zeros(PEOPLE), np.zeros(PEOPLE)
    for own, rest in (row, row[::-1]):
        asked = [(w, questions.get(tuple(sorted((c, rest))))) for c, w in weights[own].items()]
        asked = [(weight, answers) for weight, answers in asked if answers is not None]
        for weight, answers in asked:
            sums[answers] += weight / sum(each for each, _ in asked)
            best[answers] = np.maximum(best[answers], weight)
    return np.stack([sums, best], axis=1)


def test_weights_and_answers_are_those_of_loops(graph):
    model = AnalogousQueries().fit(graph.features, graph.labels, FEATURES, PEOPLE)
    questions = questions_of(graph)
    weights = naive_weights(questions)
    for own, expected in enumerate(weights):
        begin, end = model.similar.indptr[own : own + 2]
        assert model.similar.indices[begin:end].tolist() == sorted(expected)
        values = [expected[c] for c in sorted(expected)]
        np.testing.assert_allclose(model.similar.values[begin:end], values, rtol=1e-6)
    asked = [(head, PEOPLE + relation) for head in range(9) for relation in range(RELATIONS)]
    rows = ones_of(asked)
    found = model.relate(rows, np.tile(np.arange(PEOPLE), (len(asked), 1)))
    found = found.reshape(len(asked), PEOPLE, 2)
    for row, own in zip(asked, found, strict=True):
        np.testing.assert_allclose(own, naive_answers(questions, weights, row), rtol=1e-5)
    assert (found > 0).any((0, 1)).all()
    kept = np.random.default_rng(2).random((len(asked), PEOPLE)) < 0.5
    some = np.where(kept, np.arange(PEOPLE), -1)
    np.testing.assert_array_equal(model.relate(rows, some), found[kept])


def test_equal_rows_with_equal_answers_count_once(graph):
    rows = np.concatenate([np.arange(len(graph)), np.repeat([0, 7], 60)])
    again = graph.take(rows)
    one, other = (
        AnalogousQueries().fit(each.features, each.labels, FEATURES, PEOPLE).similar
        for each in (graph, again)
    )
    for expected, found in zip(one, other, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_no_more_features_than_asked_for_among_equal_ones(monkeypatch):
    monkeypatch.setattr(analogous, "MOST_SIMILAR", 2)
    rows = [[head, 20 + relation] for head in range(20) for relation in range(2)]
    model = AnalogousQueries().fit(ones_of(rows), Pattern.from_lists([[0]] * 40), 22, 1)
    assert np.diff(model.similar.indptr).max() == 2


def test_places_that_many_features_share_do_not_count():
    """One answer to one relation is that of 101 heads, or of 100."""
    for heads, similar in ((101, 0), (100, 99)):
        rows = [[head, 200] for head in range(heads)]
        features = ones_of(rows)
        model = AnalogousQueries().fit(features, Pattern.from_lists([[0]] * heads), 201, 1)
        assert np.diff(model.similar.indptr).max() == similar


def test_rows_of_one_feature_and_rows_without_any():
    features = ones_of([[0], [1], [], [2]])
    labels = Pattern.from_lists([[3, 4], [3, 5], [6], [0]])
    model = AnalogousQueries().fit(features, labels, 3, 7)
    found = model.relate(features, np.tile(np.arange(7), (4, 1))).reshape(4, 7, 2)
    assert found[0, :, 0].tolist() == [0, 0, 0, 1, 0, 1, 0]
    np.testing.assert_allclose(found[0, 5, 1], 1 / (2 + 3))
    assert not found[2:].any()


def test_a_question_may_have_its_answers_in_several_rows():
    features = ones_of([[0, 5], [1, 5], [1, 5]])
    model = AnalogousQueries().fit(features, Pattern.from_lists([[3], [3], [4]]), 6, 7)
    found = model.relate(features.slice(0, 1), np.arange(7)[None])[:, 0]
    assert found.tolist() == [0, 0, 0, 0.5, 0.5, 0, 0]
    assert not model.relate(ones_of([[0, 4]]), np.arange(7)[None]).any(), "nobody asked so"
