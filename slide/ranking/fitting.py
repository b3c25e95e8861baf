"""Trains the linear classifiers of a re-ranker against the candidates of a network."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from tqdm import tqdm

from slide.nn import SlideNetwork
from slide.ranking.linear_ranker import LinearRanker
from slide.search import PrincipalAxesSearch, index_top_k
from slide.sparse import Pattern

if TYPE_CHECKING:
    from slide.data import Split

# Scores that exist at a time, and most rows that they are of.
_MOST_SCORES, _MOST_ROWS = 1 << 26, 256


def fit_ranker(ranker: LinearRanker, network: SlideNetwork, split: "Split", search: str) -> None:
    """Train ``ranker`` on the rows of ``split``, with the candidates of the network as negatives.

    The candidates are labels of several rows. Most labels may have a single row; the classifier of
    such a label learns from that row alone.

    Args:
        ranker: is trained, with about as many candidates of each row as it re-ranks.
        network: trained on the same rows.
        split: training rows.
        search: ``"exact"`` scores all these labels for each row; ``"index"`` only the candidates of
            the output layer's index.

    Example:
        >>> import slide, tempfile
        >>> from slide.data import synthetic
        >>> from slide.ranking import fit_ranker
        >>> with tempfile.TemporaryDirectory() as cache:
        ...     data = synthetic(cache=cache, num_features=60, num_labels=40, train_samples=50,
        ...                      test_samples=5, nonzeros=8, labels_per_row=2)
        ...     network = slide.SlideNetwork(60, [8], 40, slide.FullSampler)
        ...     ranker = slide.LinearRanker()
        ...     fit_ranker(ranker, network, data.train, "exact")
        >>> ranker.weights.num_rows
        40
    """
    several = np.bincount(split.labels.indices, minlength=split.num_labels) > 1
    candidates = network_candidates(network, split, ranker.depth, search, np.flatnonzero(several))
    ranker.fit(split.features, split.labels, candidates, split.num_features, split.num_labels)


@torch.no_grad()
def network_candidates(
    network: SlideNetwork, split: "Split", count: int, search: str, among: np.ndarray | None = None
) -> Pattern:
    """About ``count`` labels of each row that a network scores highest.

    Args:
        network: whose scores count.
        split: the rows.
        count: how many labels of each.
        search: ``"exact"`` (nearly; see `slide.search.PrincipalAxesSearch`; at most twice
            ``count``) or ``"index"`` (at most ``count``).
        among: ascending ids of the labels to choose from; None: all.
    """
    from slide.data import Batches  # Imported here, so that `import slide` stays fast.

    layer = network.output
    if among is None:
        among = np.arange(layer.out_features)
    counts, ids = [np.zeros(1, np.int64)], [np.empty(0, np.int32)]
    known = np.zeros(layer.out_features, bool)
    known[among] = True
    exact = PrincipalAxesSearch(layer.weight, layer.bias, among) if search == "exact" else None
    batch_size = min(max(_MOST_SCORES // max(len(among), 1), 1), _MOST_ROWS)
    batches = Batches(split, batch_size, seed=0, shuffle=False)
    training = network.training
    network.eval()
    try:
        for batch in tqdm(batches.epoch(0), "candidates", len(batches), leave=False, disable=None):
            hidden = network.encode(batch.features)
            if exact is not None:
                rows, found = exact(hidden, count)
            else:
                at = layer.candidates(hidden)
                _, best = index_top_k(hidden, layer.weight, layer.bias, at, count, known)
                rows, places = np.nonzero(best.numpy() >= 0)
                found = best.numpy()[rows, places]
            counts.append(np.bincount(rows, minlength=len(hidden)))
            ids.append(found.astype(np.int32))
    finally:
        network.train(training)
    return Pattern(np.cumsum(np.concatenate(counts)), np.concatenate(ids))
