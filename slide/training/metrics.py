"""Ranking metrics of extreme classification.

Conventions of the Extreme Classification Repository: averages run over all rows, and a row without
labels counts as a miss. ``predicted`` ``(n, k)`` holds the ids of the best outputs, best first; -1
stands for "no more".
"""

import numpy as np

from slide.sparse import Pattern


def hits(predicted: np.ndarray, labels: Pattern) -> np.ndarray:
    """Which predictions are labels of their row.

    Args:
        predicted: ``(n, k)`` integers.
        labels: of n rows.

    Returns:
        ``(n, k)`` bool.

    Raises:
        ValueError: if the numbers of rows differ.
    """
    if len(predicted) != labels.num_rows:
        raise ValueError(
            f"{len(predicted)} predictions do not fit {labels.num_rows} rows of labels"
        )
    width = 1 + max(int(predicted.max(initial=0)), int(labels.indices.max(initial=0)))
    rows = np.repeat(np.arange(labels.num_rows), np.diff(labels.indptr))
    truth = rows * width + labels.indices
    asked = np.arange(len(predicted))[:, None] * width + predicted
    return np.isin(asked, truth) & (predicted >= 0)


def precision_at_k(predicted: np.ndarray, labels: Pattern, k: int) -> float:
    """Share of the first k predictions that are labels, in [0, 1]."""
    return float(hits(predicted, labels)[:, :k].sum(1).mean()) / k


def ndcg_at_k(predicted: np.ndarray, labels: Pattern, k: int) -> float:
    """Discounted gain of the first k predictions over the best one possible, in [0, 1]."""
    discount = 1 / np.log2(np.arange(2, k + 2))
    gain = hits(predicted, labels)[:, :k] @ discount
    counts = np.minimum(np.diff(labels.indptr), k)
    best = np.concatenate([[0.0], np.cumsum(discount)])[counts]
    return float(np.divide(gain, best, out=np.zeros(len(gain)), where=best > 0).mean())


def inverse_propensities(
    train_labels: Pattern, num_labels: int, a: float = 0.55, b: float = 1.5
) -> np.ndarray:
    """How much a hit of each label counts, ``(num_labels,)`` float64 (Jain et al. 2016, section 5).

    Args:
        train_labels: labels of the training rows.
        num_labels: N.
        a, b: constants of the data set; the defaults are the paper's for most sets.
    """
    counts = np.bincount(train_labels.indices, minlength=num_labels)
    c = (np.log(max(train_labels.num_rows, 2)) - 1) * (b + 1) ** a
    return 1 + c * (counts + b) ** -a


def psp_at_k(predicted: np.ndarray, labels: Pattern, k: int, inverse: np.ndarray) -> float:
    """Propensity-scored precision, over the best one possible, in [0, 1] (Jain et al. 2016).

    Args:
        predicted: ``(n, k')`` with k' >= k.
        labels: of n rows.
        k: how many predictions count.
        inverse: from `inverse_propensities`.
    """
    top = predicted[:, :k]
    gain = (hits(top, labels) * inverse[np.maximum(top, 0)]).sum()
    rows = np.repeat(np.arange(labels.num_rows), np.diff(labels.indptr))
    weights = inverse[labels.indices]
    order = np.lexsort((-weights, rows))
    rank = np.arange(len(rows)) - labels.indptr[rows]
    best = weights[order][rank < k].sum()
    return float(gain / best) if best > 0 else 0.0
