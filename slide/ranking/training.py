"""Linear classifiers trained against the labels that a network takes for likely."""

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from slide import functional as F
from slide.active_set import ActiveSet
from slide.data import Batches, Split
from slide.nn.network import SlideNetwork
from slide.nn.sampled_linear import SampledLinear
from slide.ranking.linear_ranker import LinearRanker
from slide.runtime import has_bfloat16
from slide.sampling.indexed_sampling import LSHSampler
from slide.sparse import Pattern

# Scores that exist at a time, and most rows that they are of.
_SCORES, _BATCH = 1 << 26, 256
_BLOCK = 1 << 16  # Rows of a weight that are copied at a time.
# A row's bound is read off a sample of its labels, of which about this many are above it.
_SAMPLED = 8
_FEW = 2048  # labels, of which no sample is taken
# Principal axes of the labels' weights, in which most of what tells labels apart lies; wider
# products find nearly the same.
_AXES = 192


def fit_ranker(ranker: LinearRanker, network: SlideNetwork, split: Split, search: str) -> None:
    """Train ``ranker`` on the rows of ``split``, against the labels that the network puts high.

    Labels of a single row, often most of all, are not among them: a classifier that has one row to
    learn from gains nothing from knowing what it is not.

    Args:
        ranker: to be trained; takes about as many labels of each row as it will rank anew.
        network: trained on the same rows.
        split: training rows.
        search: ``"exact"`` scores these labels for each row; ``"lsh"`` those in its hash buckets.
    """
    several = np.bincount(split.labels.indices, minlength=split.num_labels) > 1
    candidates = likely_labels(network, split, ranker.depth, search, np.flatnonzero(several))
    ranker.fit(split.features, split.labels, candidates, split.num_features, split.num_labels)


@torch.no_grad()
def likely_labels(
    network: SlideNetwork, split: Split, count: int, search: str, among: np.ndarray | None = None
) -> Pattern:
    """About ``count`` labels of each row that a network scores highest.

    Products of an exact search are taken in the main axes of the weights, and rounded to bfloat16
    where the processor computes with it; which of them are high is judged by a sample: at most
    twice as many. By LSH there may be much fewer.

    Args:
        network: whose scores count.
        split: the rows.
        count: how many labels of each.
        search: ``"exact"`` or ``"lsh"``.
        among: ascending ids of the labels to choose from; None: all.
    """
    if among is None:
        among = np.arange(network.output.out_features)
    counts, ids = [np.zeros(1, np.int64)], [np.empty(0, np.int32)]
    find = (_LSHSearch if search == "lsh" else _ExactSearch)(network.output, among)
    batch_size = min(max(_SCORES // max(len(among), 1), 1), _BATCH)
    batches = Batches(split, batch_size, seed=0, shuffle=False)
    training = network.training
    network.eval()
    try:
        for batch in tqdm(batches.epoch(0), "candidates", len(batches), leave=False, disable=None):
            hidden = network.encode(batch.features)
            rows, found = find(hidden, count)
            counts.append(np.bincount(rows, minlength=len(hidden)))
            ids.append(found.astype(np.int32))
    finally:
        network.train(training)
    return Pattern(np.cumsum(np.concatenate(counts)), np.concatenate(ids))


class _ExactSearch:
    """Rows and ids of high scores, row by row, of all labels ``among``."""

    def __init__(self, layer: SampledLinear, among: np.ndarray):
        self.among, self.axes = among, None
        weight, places = layer.weight.detach(), torch.from_numpy(among)
        # Not all rows at once, which may be as many as fit into memory.
        if layer.in_features > _AXES:
            self.axes = _main_axes(weight, places)
        rounds = weight.dtype == torch.float32 and has_bfloat16()
        parts = []
        for at in places.split(_BLOCK):
            rows = weight.index_select(0, at)
            rows = rows if self.axes is None else rows @ self.axes
            parts.append(rows.bfloat16() if rounds else rows)
        self.weight = torch.cat(parts)
        self.bias = None if layer.bias is None else layer.bias.detach()[places].to(self.weight)

    def __call__(self, hidden: Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
        num_labels = len(self.among)
        if count >= num_labels:
            rows = np.repeat(np.arange(len(hidden)), num_labels)
            return rows, np.tile(self.among, len(hidden))
        if self.axes is not None:
            hidden = hidden.to(self.axes.dtype) @ self.axes
        scores = hidden.to(self.weight.dtype) @ self.weight.T
        if self.bias is not None:
            scores += self.bias
        stride = max(1, min(count // _SAMPLED, num_labels // _FEW))
        sample = scores[:, ::stride]
        least = sample.topk(min(-(-count // stride), sample.shape[1]), sorted=False).values.amin(1)
        # Of a flat array of truth values numpy skips what is false.
        high = np.flatnonzero((scores >= least[:, None]).numpy())
        rows, places = np.divmod(high, num_labels)
        crowded = np.flatnonzero(np.bincount(rows, minlength=len(hidden)) > 2 * count)
        if len(crowded):  # Where many are equal, as for rows without features.
            kept = ~np.isin(rows, crowded)
            best = scores[torch.from_numpy(crowded)].topk(count).indices.sort().values
            rows = np.concatenate([rows[kept], np.repeat(crowded, count)])
            places = np.concatenate([places[kept], best.numpy().ravel()])
            order = np.argsort(rows, kind="stable")
            rows, places = rows[order], places[order]
        return rows, self.among[places]


def _main_axes(weight: Tensor, places: Tensor) -> Tensor:
    """``(D, _AXES)`` principal axes of the rows ``places`` of a weight, the mean left in."""
    products = torch.zeros(weight.shape[1], weight.shape[1])
    for at in places.split(_BLOCK):
        rows = weight.index_select(0, at).float()
        products += rows.T @ rows
    return torch.linalg.eigh(products).eigenvectors[:, -_AXES:].to(weight.dtype)


class _LSHSearch:
    """The same of the labels in a row's hash buckets."""

    def __init__(self, layer: SampledLinear, among: np.ndarray):
        assert isinstance(layer.sampler, LSHSampler)
        self.layer, self.sampler = layer, layer.sampler
        self.known = np.zeros(layer.out_features, bool)
        self.known[among] = True

    def __call__(self, hidden: Tensor, count: int) -> tuple[np.ndarray, np.ndarray]:
        weight, bias = self.layer.weight.detach(), self.layer.bias
        self.sampler.update(weight, bias, None)
        found = self.sampler.candidates(hidden)
        row = np.repeat(np.arange(len(hidden)), np.diff(found.indptr))
        known = self.known[found.indices]
        # An id is in several buckets; np.unique takes many times as long.
        pairs = np.sort((row * len(weight) + found.indices)[known])
        row, ids = np.divmod(pairs[np.diff(pairs, prepend=-1) > 0], len(weight))
        indptr = np.searchsorted(row, np.arange(len(hidden) + 1))
        scores = F.active_linear(
            hidden, weight, bias, ActiveSet(len(weight), ids.astype(np.int32), indptr)
        )
        order = np.lexsort((-scores.numpy(), row))
        best = order[np.arange(len(order)) - indptr[row] < count]
        return row[best], ids[best]
