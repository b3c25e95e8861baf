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

# Largest number of scores in a batch, and of its rows.
_MOST_SCORES, _MOST_ROWS = 1 << 26, 256


def fit_ranker(ranker: LinearRanker, network: SlideNetwork, split: "Split", search: str) -> None:
    """Train ``ranker`` on the rows of ``split``, with the candidates of the network as negatives.

    Only labels of at least two rows are candidates. In large data sets most labels may have a
    single row. The classifier of such a label learns only from that row.

    Args:
        ranker: the ranker to train. Each row has about ``ranker.depth`` candidates.
        network: a network that was trained on the same rows.
        split: training rows.
        search: ``"exact"`` scores all these labels for each row; ``"index"`` scores only the
            candidates of the output layer's index.

    Raises:
        ValueError: for ``"index"`` with a sampler that has no index, or features that are not
            finite.

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
    """About ``count`` labels with the highest scores of a network, for each row.

    Args:
        network: the network that scores labels.
        split: R rows.
        count: number of labels to find for each row.
        search: ``"exact"`` finds at most twice ``count`` labels and is nearly exact (see
            `slide.search.PrincipalAxesSearch`); ``"index"`` finds at most ``count``.
        among: ``(n,)`` integers, ascending ids of the labels to choose from; None: all.

    Returns:
        A pattern with R rows of labels, in no particular order.

    Raises:
        ValueError: for ``"index"`` with a sampler that has no index.

    Example:
        >>> import numpy as np, slide
        >>> from slide.data import Split
        >>> from slide.ranking import network_candidates
        >>> features = slide.CSR(np.arange(3), np.array([0, 1], np.int32), np.ones(2, np.float32))
        >>> split = Split(features, slide.Pattern.from_lists([[4], [5]]), 2, 6)
        >>> network = slide.SlideNetwork(2, [3], 6, slide.FullSampler)
        >>> network_candidates(network, split, count=6, search="exact").indptr
        array([ 0,  6, 12])
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
