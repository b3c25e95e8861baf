"""Candidates from scores: the best few ids of each sample, without its labels."""

import numpy as np
import torch
from torch import Tensor

from slide.backend import KERNEL_DTYPES, array_view, on_device, on_host, plain
from slide.kernels.best_of_lists import best_of_lists
from slide.kernels.largest import keep_largest
from slide.kernels.votes import RankedIds
from slide.search import index_top_k
from slide.sparse import CSR, Pattern, hits


def dense(queries: Tensor | CSR, proposer: str) -> Tensor:
    """Inputs that are no sparse rows.

    Raises:
        TypeError: for inputs in CSR form; it names the proposer.
    """
    if isinstance(queries, CSR):
        raise TypeError(
            f"{proposer} takes dense inputs only; use PublishedLSHProposer on this layer"
        )
    return queries


def best_of_pool(queries: Tensor, rows: Tensor, bias: Tensor | None, most: int) -> np.ndarray:
    """The places of the largest ``<query, row> + bias``, best first.

    Args:
        queries: ``(B, D)``, of the type of ``rows``.
        rows: ``(P, D)``.
        bias: ``(P,)`` or None.
        most: number of places a query.

    Returns:
        ``(B, min(most, P))`` int64; -1 where there are no more scores that are numbers.
    """
    scores = queries @ rows.T if bias is None else torch.addmm(bias, queries, rows.T)
    best = torch.full((len(queries), min(most, len(rows))), -torch.inf)
    places = torch.full(best.shape, -1)
    if best.numel():
        keep_largest(array_view(scores.float()), 0, array_view(best), array_view(places))
    # Equal scores in the order of the pool. Which of them are kept at the border, the heap decides.
    order = np.lexsort((places.numpy(), -best.numpy()), axis=1)
    return np.take_along_axis(places.numpy(), order, 1)


def plain_best_of_pool(
    scores: Tensor, own: tuple[np.ndarray, np.ndarray], most: int, limits: np.ndarray
) -> Tensor:
    """`best_of_pool` on the device of the scores, without a sample's own labels.

    Args:
        scores: ``(B, P)``.
        own: samples and places of labels in the pool, which do not count.
        most: number of places a query.
        limits: ``(B,)`` the most of each query.

    Returns:
        ``(B, min(most, P))`` int64; -1 after the last place of a query.
    """
    device, scores = scores.device, scores.float().nan_to_num(-torch.inf, torch.inf, -torch.inf)
    samples, places = (on_device(each, device).long() for each in own)
    scores[samples, places] = -torch.inf
    best, found = scores.sort(dim=1, descending=True, stable=True)
    best, found = best[:, :most], found[:, :most]
    counted = torch.arange(best.shape[1], device=device) < on_device(limits, device)[:, None]
    return torch.where(counted & (best > -torch.inf), found, -1)


def without_labels(ids: np.ndarray, labels: Pattern, most: int) -> Pattern:
    """The first ids of each sample that are not among its labels.

    Args:
        ids: ``(B, k)`` integers, distinct in a row but for -1, which is left out.
        labels: of B samples.
        most: number of ids that a sample keeps.
    """
    free = (ids >= 0) & ~hits(ids, labels)
    return Pattern.from_padded(np.where(free & (np.cumsum(free, axis=1) <= most), ids, -1))


def best_of_voted(
    queries: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    voted: RankedIds | Tensor,
    labels: Pattern,
    best: int,
) -> np.ndarray:
    """The ids of each sample with the largest ``<query, row> + bias``, without its labels.

    Args:
        queries: ``(B, D)``.
        weight: ``(N, D)``.
        bias: ``(N,)`` or None.
        voted: distinct ids of each sample; in a tensor ``(B, k)``, -1 stands for none.
        labels: of B samples.
        best: number of ids of a sample.

    Returns:
        ``(B, best)`` int32, best first; -1 after the last id of a sample.
    """
    x = queries.detach().to(weight.dtype)
    out = np.full((len(x), best), -1, np.int32)
    # Kernels know no bfloat16.
    if isinstance(voted, RankedIds) and weight.dtype in KERNEL_DTYPES and not plain(weight):
        added = torch.empty(0, dtype=x.dtype) if bias is None else bias
        factors = array_view(x.contiguous()), array_view(weight), array_view(added)
        best_of_lists(voted, labels, *factors, out)
        return out
    if isinstance(voted, Tensor):
        ids = on_host(voted)
    else:
        ids = np.where(np.arange(voted.ids.shape[1]) < voted.counts[:, None], voted.ids, -1)
    pool, most = Pattern.from_padded(ids), best + most_labels(labels)
    named = index_top_k(x, weight, bias, pool, most)[1]
    return padded(without_labels(on_host(named), labels, best), best)


def padded(found: Pattern, width: int) -> np.ndarray:
    """The ids of each sample, at most ``width``, as ``(B, width)`` int32; -1 after the last one."""
    out = np.full((found.num_rows, width), -1, np.int32)
    out[np.arange(width) < np.diff(found.indptr)[:, None]] = found.indices
    return out


def ranked(best: np.ndarray, places: np.ndarray) -> RankedIds:
    """The first ids of each sample, at most ``places`` ``(B,)``.

    Args:
        best: ``(B, k)`` int32, distinct ids of a sample; -1 after the last one.
        places: of each sample.
    """
    return RankedIds(best, np.minimum((best >= 0).sum(1), places))


def in_turns(best: np.ndarray, places: int) -> np.ndarray:
    """The first id of each sample, then the second ones, and so on: ``(n,)`` int32, distinct.

    Of ids at an equal place, those that more samples have come first.

    Args:
        best: ``(B, k)`` int32, the best first; -1 after the last id of a sample.
        places: largest number of ids.
    """
    by_rank = best.T[best.T >= 0]
    rank = np.nonzero(best.T >= 0)[0]
    ids, arrival, votes = np.unique(by_rank, return_index=True, return_counts=True)
    return ids[np.lexsort((-votes, rank[arrival]))][:places]


def most_labels(labels: Pattern) -> int:
    """The largest number of labels of a sample."""
    return int(np.diff(labels.indptr).max(initial=0))
