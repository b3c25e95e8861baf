"""The best unknown labels of rows, however many of theirs are known."""

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr

from slide import FullSampler, SlideNetwork
from slide.ranking.scorers import network as module
from slide.ranking.scorers.network import best_unknown, best_unseen
from slide.sparse import Pattern

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
    monkeypatch.setattr(module, "_MOST_ASKED", most)
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
