"""The evidence on candidates, against plain loops."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr, make_pattern, to_dense
from helpers.samplers import lsh_sampler

from slide import SlideNetwork
from slide.ranking import Associations, LinearClassifiers, Neighbours, Substitutes
from slide.ranking.evidence import COLUMNS, Depths, Experts, gather, join
from slide.sparse import Pattern

FEATURES, LABELS, ROWS = 20, 30, 40
DEPTHS = Depths(6, 5, 4)
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def features():
    x = make_csr(np.random.default_rng(1), [5] * ROWS, FEATURES)
    return x._replace(values=np.abs(x.values))


@pytest.fixture
def experts(features):
    torch.manual_seed(0)
    network = SlideNetwork(FEATURES, [8], LABELS, lsh_sampler, dropout=0.5).train()
    labels = make_pattern(np.random.default_rng(2), [3] * ROWS, LABELS)
    sizes = FEATURES, LABELS
    neighbours = Neighbours(4, weighted=True).fit(features, labels, *sizes)
    candidates = neighbours.own_candidates(10)
    classifiers = LinearClassifiers().fit(features, labels, candidates, *sizes)
    frequency = np.bincount(labels.indices, minlength=LABELS)
    associations = Associations().fit(features, labels, *sizes)
    substitutes = Substitutes().fit(features, labels, *sizes)
    return Experts(network, classifiers, neighbours, associations, substitutes, frequency, None)


def every_score(network, features):
    hidden = torch.relu(to_dense(features, FEATURES) @ network.first.weight + network.first.bias)
    return (hidden @ network.output.weight.T + network.output.bias).detach().numpy()


def test_candidates_are_those_of_all_experts(experts, features):
    found = gather(experts, features, DEPTHS, "exact")
    scores = every_score(experts.network, features)
    votes = experts.neighbours.votes(features, 5)
    _, associated_ids = experts.associations.best(features, 4)
    for b in range(ROWS):
        best = np.argsort(-scores[b])[:6]
        np.testing.assert_array_equal(found.network_ids[b], best)
        own = found.ids[b][found.ids[b] >= 0]
        assert sorted(own) == sorted({*best, *votes.ids[b][votes.ids[b] >= 0], *associated_ids[b]})
    assert found.columns.shape == ((found.ids >= 0).sum(), len(COLUMNS))


def test_known_labels_take_no_places_of_candidates(experts, features):
    """Each expert names as many unknown labels as it would name in all."""
    rng = np.random.default_rng(3)
    known = Pattern.from_lists(
        [np.sort(rng.permutation(LABELS)[:12]).tolist() for _ in rng.random(ROWS)]
    )
    blocked = experts._replace(known_labels=SimpleNamespace(of=lambda _: known))
    found = gather(blocked, features, DEPTHS, "exact")
    scores = every_score(experts.network, features)
    votes = experts.neighbours.votes(features, DEPTHS.neighbours, known).ids
    associated = experts.associations.best(features, DEPTHS.associations, known)[1]
    for b in range(ROWS):
        own = known.indices[known.indptr[b] : known.indptr[b + 1]]
        lists = np.argsort(-scores[b]), votes[b], associated[b]
        parts = [
            [label for label in ids if label >= 0 and label not in own][:depth]
            for ids, depth in zip(lists, DEPTHS, strict=True)
        ]
        assert found.network_ids[b].tolist() == parts[0]
        assert set(found.ids[b][found.ids[b] >= 0]) == {label for part in parts for label in part}


def test_each_column_says_what_its_name_says(experts, features):
    found = gather(experts, features, DEPTHS, "exact")
    columns = np.full((*found.ids.shape, len(COLUMNS)), np.nan)
    columns[found.ids >= 0] = found.columns
    network = every_score(experts.network, features)
    linear = experts.classifiers.scores(features, found.ids)
    associated_scores, associated_ids = experts.associations.best(features, LABELS)
    votes = experts.neighbours.votes(features, 5)
    starts = np.concatenate([[0], np.cumsum((found.ids >= 0).sum(1))])
    relations = experts.associations.relate(features, found.ids)
    answers = experts.substitutes.relate(features, found.ids)
    for b in range(ROWS):
        related, answered = (each[starts[b] : starts[b + 1]] for each in (relations, answers))
        own = found.ids[b] >= 0
        ids = found.ids[b][own]
        row = dict(zip(COLUMNS, columns[b][own].T, strict=True))
        share = dict(zip(votes.ids[b].tolist(), votes.shares[b], strict=True))
        sharp = dict(zip(votes.ids[b].tolist(), votes.sharp[b], strict=True))
        scores, lines = network[b, ids], linear[b][own]
        shares = np.array([share.get(int(n), 0) for n in ids])
        together = dict(zip(associated_ids[b].tolist(), associated_scores[b], strict=True))
        association = np.array([together.get(int(n), 0) for n in ids])
        expected = {
            "network": scores,
            "network_behind": scores - network[b].max(),
            "network_rank": np.argsort(np.argsort(-scores)),
            "linear": lines,
            "linear_behind": lines - lines.max(),
            "votes": shares,
            "sharp_votes": [sharp.get(int(n), 0) for n in ids],
            "association": association,
            "association_best": related[:, 1],
            "naive_bayes": related[:, 2],
            "log_frequency": np.log1p(experts.frequency[ids]),
            "features": np.full(len(ids), 5),
            "nearest": np.full(len(ids), votes.nearest[b]),
            "mean_similarity": np.full(len(ids), votes.mean[b]),
            "network_best": np.full(len(ids), network[b].max()),
            "substitutes": answered[:, 0],
            "substitutes_best": answered[:, 1],
        }
        for name, values in expected.items():
            np.testing.assert_allclose(row[name], values, rtol=1e-4, atol=1e-5, err_msg=name)
        ranked = {"linear_rank": lines, "votes_rank": shares, "association_rank": association}
        for name, values in ranked.items():
            places = values[np.argsort(row[name])]
            assert (np.diff(places) <= 1e-6).all(), name
            assert sorted(row[name]) == list(range(len(ids))), name
        assert expected.keys() | ranked.keys() == COLUMNS.keys()


def test_nothing_is_dropped_and_the_mode_stays(experts, features):
    one, other = (gather(experts, features, DEPTHS, "exact").columns for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert experts.network.training


def test_scores_of_ids(experts, features):
    ids = np.array([[3, -1, 29], [-1, -1, -1]])
    part = to_dense(features, FEATURES)[:2]
    hidden = torch.relu(part @ experts.network.first.weight + experts.network.first.bias)
    found = experts.network.output.scores_of(hidden, ids)
    every = every_score(experts.network, features)
    np.testing.assert_allclose(found[0], [every[0, 3], 0, every[0, 29]], rtol=1e-5)
    assert not found[1].any()


def test_join_keeps_each_id_once():
    found = join(np.array([[3, 5, -1], [-1, -1, -1]]), np.array([[5, 0], [2, -1]], np.int32))
    assert [sorted(row[row >= 0]) for row in found] == [[0, 3, 5], [2]]
    assert found.shape == (2, 3)


def test_rows_that_nobody_knows(experts, features):
    empty = make_csr(np.random.default_rng(0), [0, 0], FEATURES)
    found = gather(experts, empty, Depths(3, 5, 4), "exact")
    assert (found.ids >= 0).sum(1).tolist() == [3, 3]
    assert np.isfinite(found.columns).all()
    by_index = gather(experts, features, DEPTHS, "index")
    assert np.isfinite(by_index.columns).all()
