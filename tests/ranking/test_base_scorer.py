"""Candidates and ranking features of all base scorers, against plain loops."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr, make_pattern, to_dense
from helpers.samplers import lsh_sampler

from slide import SlideNetwork
from slide.ranking import AnalogousQueries, Cooccurrence, LinearClassifiers, Neighbours
from slide.ranking.base_scorer import (
    FIRST_FEATURES,
    BaseScorer,
    Layout,
    Queries,
    ranking_features,
)
from slide.ranking.scorers.network import Network

FEATURES, LABELS, ROWS = 20, 30, 40
NETWORK, VOTED, ASSOCIATED = 6, 5, 4
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def features():
    x = make_csr(np.random.default_rng(1), [5] * ROWS, FEATURES)
    return x._replace(values=np.abs(x.values))


@dataclass
class Scorers:
    network: SlideNetwork
    named: dict
    frequency: np.ndarray

    def __getattr__(self, name):
        return self.named[name]


@pytest.fixture
def scorers(features):
    torch.manual_seed(0)
    network = SlideNetwork(FEATURES, [8], LABELS, lsh_sampler, dropout=0.5).train()
    labels = make_pattern(np.random.default_rng(2), [3] * ROWS, LABELS)
    sizes = FEATURES, LABELS
    neighbours = Neighbours(4, weighted=True, proposed=VOTED).fit(features, labels, *sizes)
    candidates = neighbours.own_candidates(10)
    named = {
        "analogous": AnalogousQueries().fit(features, labels, *sizes),
        "cooccurrence": Cooccurrence(proposed=ASSOCIATED).fit(features, labels, *sizes),
        "linear": LinearClassifiers().fit(features, labels, candidates, *sizes),
        "neighbours": neighbours,
        "network": Network(NETWORK),
    }
    return Scorers(network, named, np.bincount(labels.indices, minlength=LABELS))


def gather(scorers, features, search="exact", seen=None):
    queries = Queries(features, seen, scorers.network, search, 1, scorers.frequency)
    return ranking_features(scorers.named, Layout(scorers.named.values()), queries)


def every_score(network, features):
    hidden = torch.relu(to_dense(features, FEATURES) @ network.first.weight + network.first.bias)
    return (hidden @ network.output.weight.T + network.output.bias).detach().numpy()


@pytest.mark.parametrize("seen", [0, 12])
def test_candidates_are_those_of_all_scorers(scorers, features, seen):
    """Each base scorer names as many unseen labels as it would name in all."""
    known = make_pattern(np.random.default_rng(3), [seen] * ROWS, LABELS)
    found = gather(scorers, features, seen=known if seen else None)
    scores = every_score(scorers.network, features)
    votes = scorers.neighbours.votes(features, VOTED, known).ids
    associated = scorers.cooccurrence.best(features, ASSOCIATED, known)[1]
    for b in range(ROWS):
        own = known.indices[known.indptr[b] : known.indptr[b + 1]]
        lists = np.argsort(-scores[b]), votes[b], associated[b]
        parts = [
            [label for label in ids if label >= 0 and label not in own][:depth]
            for ids, depth in zip(lists, (NETWORK, VOTED, ASSOCIATED), strict=True)
        ]
        assert found.network_ids[b].tolist() == parts[0]
        named = sorted(found.ids[b][found.ids[b] >= 0])
        assert named == sorted({label for part in parts for label in part})
    assert found.columns.shape == ((found.ids >= 0).sum(), len(FIRST_FEATURES))


def test_each_column_says_what_its_name_says(scorers, features):
    found = gather(scorers, features)
    columns = np.full((*found.ids.shape, len(FIRST_FEATURES)), np.nan)
    columns[found.ids >= 0] = found.columns
    network = every_score(scorers.network, features)
    linear = scorers.linear.scores(features, found.ids)
    associated_scores, associated_ids = scorers.cooccurrence.best(features, LABELS)
    votes = scorers.neighbours.votes(features, 5)
    starts = np.concatenate([[0], np.cumsum((found.ids >= 0).sum(1))])
    relations = scorers.cooccurrence.relate(features, found.ids)
    answers = scorers.analogous.relate(features, found.ids)
    for b in range(ROWS):
        related, answered = (each[starts[b] : starts[b + 1]] for each in (relations, answers))
        own = found.ids[b] >= 0
        ids = found.ids[b][own]
        row = dict(zip(found.names, columns[b][own].T, strict=True))
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
            "neighbours": shares,
            "neighbours_sharp": [sharp.get(int(n), 0) for n in ids],
            "cooccurrence": association,
            "cooccurrence_best": related[:, 1],
            "naive_bayes": related[:, 2],
            "log_frequency": np.log1p(scorers.frequency[ids]),
            "features": np.full(len(ids), 5),
            "nearest": np.full(len(ids), votes.nearest[b]),
            "mean_similarity": np.full(len(ids), votes.mean[b]),
            "network_best": np.full(len(ids), network[b].max()),
            "analogous": answered[:, 0],
            "analogous_best": answered[:, 1],
        }
        for name, values in expected.items():
            np.testing.assert_allclose(row[name], values, rtol=1e-4, atol=1e-5, err_msg=name)
        ranked = {"linear_rank": lines, "neighbours_rank": shares, "cooccurrence_rank": association}
        for name, values in ranked.items():
            places = values[np.argsort(row[name])]
            assert (np.diff(places) <= 1e-6).all(), name
            assert sorted(row[name]) == list(range(len(ids))), name
        assert expected.keys() | ranked.keys() == set(FIRST_FEATURES)


def test_rows_that_no_scorer_knows(scorers, features):
    empty = make_csr(np.random.default_rng(0), [0, 0], FEATURES)
    found = gather(scorers, empty)
    assert (found.ids >= 0).sum(1).tolist() == [NETWORK] * 2
    assert np.isfinite(found.columns).all()
    by_index = gather(scorers, features, "index")
    assert np.isfinite(by_index.columns).all()


def test_a_scorer_must_score():
    class Silent(BaseScorer):
        features = {"silent": "for"}  # noqa: RUF012

    assert Silent().propose(None).ids is None
    with pytest.raises(NotImplementedError, match="Silent must define score"):
        Silent().score(None, None, None)
