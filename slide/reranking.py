"""Linear classifiers trained against the labels that a network takes for likely."""

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from slide import functional as F
from slide.active import ActiveSet
from slide.data import Batches, Split
from slide.indexed_sampling import LSHSampler
from slide.layers import LSHLinear
from slide.linear import LinearRanker
from slide.network import SlideNetwork
from slide.runtime import has_bfloat16
from slide.sparse import Pattern

# Scores that exist at a time, and most rows that they are of.
_SCORES, _BATCH = 1 << 26, 256
# A row's bound is read off a sample of its labels, of which about this many are above it.
_SAMPLED = 8
_FEW = 2048  # labels, of which no sample is taken


def fit_ranker(ranker: LinearRanker, network: SlideNetwork, split: Split, search: str) -> None:
    """Train ``ranker`` on the rows of ``split``, against the labels that the network puts high.

    Args:
        ranker: to be trained; takes about as many labels of each row as it will rank anew.
        network: trained on the same rows.
        split: training rows.
        search: ``"exact"`` scores all labels for each row; ``"lsh"`` those in its hash buckets.
    """
    candidates = likely_labels(network, split, ranker.depth, search)
    ranker.fit(split.features, split.labels, candidates, split.num_features, split.num_labels)


@torch.no_grad()
def likely_labels(network: SlideNetwork, split: Split, count: int, search: str) -> Pattern:
    """About ``count`` labels of each row that a network scores highest.

    Scores of an exact search are rounded to bfloat16 where the processor computes with it, and
    which of them are high is judged by a sample: at most twice as many. By LSH there may be much
    fewer.
    """
    find = _best_by_lsh if search == "lsh" else _best
    counts, ids = [np.zeros(1, np.int64)], [np.empty(0, np.int32)]
    weight = network.output.weight.detach()
    if search == "exact" and weight.dtype == torch.float32 and has_bfloat16():
        weight = weight.bfloat16()
    batch_size = min(max(_SCORES // len(weight), 1), _BATCH)
    batches = Batches(split, batch_size, seed=0, shuffle=False)
    training = network.training
    network.eval()
    try:
        for batch in tqdm(batches.epoch(0), "candidates", len(batches), leave=False, disable=None):
            hidden = network.encode(batch.features)
            rows, found = find(network.output, weight, hidden, count)
            counts.append(np.bincount(rows, minlength=len(hidden)))
            ids.append(found.astype(np.int32))
    finally:
        network.train(training)
    return Pattern(np.cumsum(np.concatenate(counts)), np.concatenate(ids))


def _best(layer: LSHLinear, weight: Tensor, hidden: Tensor, count: int):
    """Rows and ids of high scores, row by row."""
    scores = hidden.to(weight.dtype) @ weight.T
    if layer.bias is not None:
        scores += layer.bias.to(weight.dtype)
    stride = max(1, min(count // _SAMPLED, len(weight) // _FEW))
    sample = scores[:, ::stride]
    least = sample.topk(min(-(-count // stride), sample.shape[1]), sorted=False).values.amin(1)
    high = scores >= least[:, None]
    # Where many are equal, as for rows without features.
    crowded = torch.nonzero(high.sum(1) > 2 * count)[:, 0]
    if len(crowded):
        best = scores[crowded].topk(count).indices
        high[crowded] = False
        high[crowded[:, None], best] = True
    # Of a flat array of truth values numpy skips what is false.
    return np.divmod(np.flatnonzero(high.numpy()), len(weight))


def _best_by_lsh(layer: LSHLinear, weight: Tensor, hidden: Tensor, count: int):
    sampler = layer.sampler
    assert isinstance(sampler, LSHSampler)
    sampler.update(weight, layer.bias, None)
    found = sampler.candidates(hidden)
    row = np.repeat(np.arange(len(hidden)), np.diff(found.indptr))
    # An id is in several buckets; np.unique takes many times as long.
    pairs = np.sort(row * len(weight) + found.indices)
    row, ids = np.divmod(pairs[np.diff(pairs, prepend=-1) > 0], len(weight))
    indptr = np.searchsorted(row, np.arange(len(hidden) + 1))
    scores = F.active_linear(
        hidden, weight, layer.bias, ActiveSet(len(weight), ids.astype(np.int32), indptr)
    )
    order = np.lexsort((-scores.numpy(), row))
    best = order[np.arange(len(order)) - indptr[row] < count]
    return row[best], ids[best]
