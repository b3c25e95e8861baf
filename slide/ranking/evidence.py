"""What is known of the candidates of a row: the numbers from which a re-ranker judges them."""

from typing import NamedTuple

import numpy as np
import torch

from slide.active_set import ActiveSet
from slide.data import KnownLabels
from slide.functional import active_linear
from slide.nn import SlideNetwork
from slide.ranking.hits import hits
from slide.ranking.linear_classifiers import LinearClassifiers
from slide.ranking.neighbours import Neighbours, values_of
from slide.sparse import CSR

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
    "log_frequency": 0,
    "features": 0,
    "nearest": 0,
    "mean_similarity": 0,
    "network_best": 0,
}


class Experts(NamedTuple):
    """Who names and scores candidates.

    Attributes:
        network: a trained network.
        classifiers: trained linear classifiers.
        neighbours: the training rows.
        frequency: ``(N,)`` number of training rows of each label.
        known_labels: labels that are no candidates; None: all labels may be.
    """

    network: SlideNetwork
    classifiers: LinearClassifiers
    neighbours: Neighbours
    frequency: np.ndarray
    known_labels: KnownLabels | None


class Evidence(NamedTuple):
    """Candidates of B rows, and what is known of them.

    Attributes:
        ids: ``(B, K)`` int64, each label once; -1: no candidate.
        columns: ``(pairs, C)`` float32, a row for each candidate; the columns are `COLUMNS`.
        network_ids: ``(B, depth)`` int64, the best labels of the network, best first.
    """

    ids: np.ndarray
    columns: np.ndarray
    network_ids: np.ndarray


def gather(experts: Experts, features: CSR, depth: int, voted: int, search: str) -> Evidence:
    """Candidates of the network and of the neighbours, with all evidence.

    Args:
        experts: see `Experts`.
        features: ``(B, D)``.
        depth: number of candidates of the network.
        voted: number of candidates of the neighbours.
        search: how the network finds its best labels; see `slide.SampledLinear.top_k`.
    """
    network, labels = experts.network, len(experts.frequency)
    hidden = network.embed(features)
    named = network.output.top_k(hidden, min(depth, labels), search)[1].numpy()
    votes = experts.neighbours.votes(features, min(voted, labels))
    ids = join(named, votes.ids)
    if experts.known_labels is not None:
        ids[hits(ids, experts.known_labels.of(features))] = -1
    known = ids >= 0
    scores = np.where(known, score_ids(network, hidden, ids), -np.inf)
    linear = experts.classifiers.scores(features, ids)
    share = values_of(ids, votes.ids, votes.shares, 0.0)
    best, row = scores.max(1, keepdims=True), np.diff(features.indptr)[:, None]
    frequency = np.log1p(experts.frequency)[ids]
    # Numbers of a pair of row and label, then numbers of a row.
    of_pair = [scores, scores - best, _ranks(scores), linear]
    of_pair += [linear - linear.max(1, keepdims=True, initial=-1), _ranks(linear), share]
    of_pair += [values_of(ids, votes.ids, votes.sharp, 0.0), _ranks(np.where(known, share, -1))]
    of_row = [row, votes.nearest[:, None], votes.mean[:, None], best]
    columns = np.zeros((int(known.sum()), len(COLUMNS)), np.float32)
    for number, column in enumerate([*of_pair, frequency, *of_row]):
        columns[:, number] = np.broadcast_to(column, ids.shape)[known]
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


@torch.no_grad()
def score_ids(network: SlideNetwork, hidden: torch.Tensor, ids: np.ndarray) -> np.ndarray:
    """The network's scores of the outputs ``ids`` ``(B, K)``; 0 for ids below 0.

    Args:
        network: the network.
        hidden: ``(B, H)``, its last hidden layer.
        ids: each id at most once in a row.
    """
    known, layer = ids >= 0, network.output
    indptr = np.concatenate([[0], np.cumsum(known.sum(1))]).astype(np.int64)
    active = ActiveSet(layer.out_features, ids[known].astype(np.int32), indptr)
    out = np.zeros(ids.shape, np.float32)
    out[known] = active_linear(hidden, layer.weight.detach(), layer.bias, active).float().numpy()
    return out


def _ranks(scores: np.ndarray) -> np.ndarray:
    """The place of each score in its row, 0 for the best one."""
    order = np.argsort(-scores, axis=1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.broadcast_to(np.arange(order.shape[1]), order.shape), 1)
    return ranks
