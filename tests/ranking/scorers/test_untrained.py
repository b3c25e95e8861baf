"""Scorers that learn nothing: the best unknown labels of the network, the most frequent ones."""

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr

from slide import FullSampler, SlideNetwork
from slide.data import Split, holdout, unseen
from slide.data.unseen import best_unseen
from slide.nn.answers import best_unknown
from slide.ranking import EnsembleRanker
from slide.ranking.base_scorer import Queries
from slide.ranking.scorers.frequency import Frequency
from slide.sparse import CSR, Pattern


def test_the_most_frequent_unseen_labels_are_named():
    frequency, seen = np.array([3, 9, 0, 9, 5]), Pattern.from_lists([[], [3, 4]])
    features = CSR(np.array([0, 0, 0]), np.empty(0, np.int32), np.empty(0, np.float32))
    for known, named in ((None, [[1, 3, 4], [1, 3, 4]]), (seen, [[1, 3, 4], [1, 0, 2]])):
        queries = Queries(features, known, None, "exact", 1, frequency)
        assert Frequency(proposed=3).propose(queries).ids.tolist() == named


@pytest.mark.not_as_python
def test_noise_is_not_better_than_the_most_frequent_label():
    """Label 0 has one row in 20, and each other one hardly any, of which nothing can be learnt."""
    torch.manual_seed(0)
    rng, rows, labels = np.random.default_rng(0), 800, 3000
    features = make_csr(rng, [3] * rows, 2000)
    own = np.where(rng.random(rows) < 0.05, 0, rng.integers(1, labels, rows))
    train, held = holdout(
        Split(features, Pattern(np.arange(rows + 1), own.astype(np.int32)), 2000, labels), 0.2, 0
    )
    network = SlideNetwork(2000, [8], labels, FullSampler)
    found = EnsembleRanker().fit(network, train, held).rank(network, held.features, k=1).ids
    assert (found == 0).mean() > 0.9


FEATURES, LABELS, K = 20, 300, 4
# Some rows know nearly all labels; the last one knows all of them.
KNOWN = (0, 5, 16, 17, 250, 0, 298, LABELS)


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    network = SlideNetwork(FEATURES, [8], LABELS, FullSampler)
    x = make_csr(rng, [5] * len(KNOWN), FEATURES)
    return network, x, Pattern.from_lists([rng.permutation(LABELS)[:n].tolist() for n in KNOWN])


@pytest.mark.parametrize("most", [1 << 22, 300])
def test_they_are_the_best_of_all_unknown_ones(case, monkeypatch, most):
    monkeypatch.setattr(unseen, "_MOST_ASKED", most)
    network, x, known = case
    found = best_unknown(network.output, network.embed(x), known, K)
    every = network.predict(x, LABELS)[1].tolist()
    for b, ids in enumerate(every):
        own = known.indices[known.indptr[b] : known.indptr[b + 1]]
        expected = [n for n in ids if n not in own][:K]
        assert found[b].tolist() == expected + [-1] * (K - len(expected))


def test_what_is_asked_for_a_row_depends_on_no_other_row(case):
    known, asked = case[2], []

    def best(rows, depth):
        asked.append((rows.tolist(), depth))
        return np.zeros((len(rows), depth), np.int64)

    best_unseen(known, K, LABELS, best)
    together = {row: depth for rows, depth in asked for row in rows}
    for row, count in enumerate(KNOWN):
        best_unseen(known.slice(row, row + 1), K, LABELS, best)
        assert asked[-1] == ([0], together[row])
        assert together[row] >= min(K + count, LABELS)
