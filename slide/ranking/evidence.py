"""What is known of the candidates of a row: the numbers from which a re-ranker judges them."""

from typing import NamedTuple

import numpy as np
import torch

from slide.backend import on_host
from slide.data import SeenItems, SeenLabels
from slide.kernels.evidence import fill_evidence
from slide.nn import SlideNetwork
from slide.nn.predicting import check_finite
from slide.ranking.associations import Associations
from slide.ranking.linear_classifiers import LinearClassifiers
from slide.ranking.neighbours import Neighbours
from slide.ranking.substitutes import Substitutes
from slide.ranking.unknown_labels import best_unknown
from slide.sparse import CSR, row_bounds

# Each column of the evidence, and whether a larger number can only speak for a label (1), only
# against it (-1), or both (0).
COLUMNS = {
    "network": 1,
    "network_behind": 1,
    "network_rank": -1,
    "linear": 1,
    "linear_behind": 1,
    "linear_rank": -1,
    "votes": 1,
    "sharp_votes": 1,
    "votes_rank": -1,
    "association": 1,
    "association_best": 1,
    "naive_bayes": 1,
    "association_rank": -1,
    "log_frequency": 0,
    "features": 0,
    "nearest": 0,
    "mean_similarity": 0,
    "network_best": 0,
    "substitutes": 1,
    "substitutes_best": 1,
}


# For each rank, the name of the numbers that it ranks.
RANKED = [name.removesuffix("_rank") for name in COLUMNS if name.endswith("_rank")]


class Experts(NamedTuple):
    """Who names and scores candidates.

    Attributes:
        network: a trained network.
        classifiers: trained linear classifiers.
        neighbours: the training rows.
        associations: features and labels that go together.
        substitutes: the answers to similar questions.
        frequency: ``(N,)`` number of training rows of each label.
        known_labels: labels that are no candidates; None: all labels may be.
    """

    network: SlideNetwork
    classifiers: LinearClassifiers
    neighbours: Neighbours
    associations: Associations
    substitutes: Substitutes
    frequency: np.ndarray
    known_labels: SeenLabels | SeenItems | None


class Depths(NamedTuple):
    """How many candidates each expert names.

    Attributes:
        network: number of the network's best labels.
        neighbours: number of labels with the most votes.
        associations: number of labels that go best with the features.
    """

    network: int
    neighbours: int
    associations: int


class Evidence(NamedTuple):
    """Candidates of B rows, and what is known of them.

    Attributes:
        ids: ``(B, K)`` int64, each label once; -1: no candidate.
        columns: ``(pairs, C)`` float32, a row for each candidate; the columns are `COLUMNS`.
        network_ids: ``(B, depth)`` int64, the best labels of the network that are not known, best
            first; -1: there are no more.
    """

    ids: np.ndarray
    columns: np.ndarray
    network_ids: np.ndarray


def gather(experts: Experts, features: CSR, depths: Depths, search: str) -> Evidence:
    """Candidates of the network, of the neighbours and of the features, with all evidence.

    Args:
        experts: see `Experts`.
        features: ``(B, D)``.
        depths: number of candidates of each expert.
        search: how the network finds its best labels; see `slide.SampledLinear.top_k`.

    Raises:
        ValueError: for a row whose scores are not finite.
    """
    network, labels = experts.network, len(experts.frequency)
    depths = Depths(*(min(depth, labels) for depth in depths))
    known = None if experts.known_labels is None else experts.known_labels.of(features)
    hidden = network.embed(features)
    check_finite(hidden)
    if known is None:
        named = on_host(network.output.top_k(hidden, depths.network, search)[1])
    else:
        named = best_unknown(network.output, hidden, known, depths.network, search)
    votes = experts.neighbours.votes(features, depths.neighbours, known)
    _, associated = experts.associations.best(features, depths.associations, known)
    ids = join(named, votes.ids, associated)
    starts = row_bounds((ids >= 0).sum(1))
    scores = network.output.scores_of(hidden, ids)
    check_finite(torch.from_numpy(scores))
    columns = np.empty((starts[-1], len(COLUMNS)), np.float32)
    of_row = np.empty((len(ids), 3), np.float32)
    of_row[:, 0], of_row[:, 1], of_row[:, 2] = np.diff(features.indptr), votes.nearest, votes.mean
    fill_evidence(
        *(
            ids,
            starts,
            scores,
            experts.classifiers.scores(features, ids),
        ),
        (votes.ids, votes.shares, votes.sharp),
        experts.associations.relate(features, ids),
        experts.substitutes.relate(features, ids),
        *(experts.frequency, of_row, columns),
    )
    return Evidence(ids, columns, named)


def join(*lists: np.ndarray) -> np.ndarray:
    """The ids of several lists, each id once in a row.

    Args:
        lists: ``(B, k)`` integers each, -1 for none.

    Returns:
        ``(B, K)`` int64, the rows filled up with -1.
    """
    ids = np.sort(np.concatenate(lists, 1).astype(np.int64), axis=1)
    ids[:, 1:][ids[:, 1:] == ids[:, :-1]] = -1
    ids = -np.sort(-ids, axis=1)
    return ids[:, : int((ids >= 0).sum(1).max(initial=1))]
