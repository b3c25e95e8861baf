"""Ranking metrics of extreme classification.

They follow the conventions of the Extreme Classification Repository: means are over all rows, and
a row without labels counts as a miss. ``predicted`` ``(n, k)`` holds the ids of the best outputs,
best first; -1 means that a row has no more predictions.
"""

import numpy as np

from slide.sparse import Pattern, hits


def precision_at_k(predicted: np.ndarray, labels: Pattern, k: int) -> float:
    """Share of the first k predictions that are labels, in [0, 1].

    Args:
        predicted: ``(n, k')`` integers with k' >= k, best first; -1: no more.
        labels: of n rows.
        k: how many predictions count, in [1, k'].

    Raises:
        ValueError: if the numbers of rows differ, or there are none, or for another k.

    Example:
        >>> import numpy as np
        >>> from slide import Pattern
        >>> from slide.training import precision_at_k
        >>> labels = Pattern.from_lists([[3], [0, 2]])
        >>> precision_at_k(np.array([[3, 1], [1, 2]]), labels, k=2)
        0.5
    """
    return float(_first_hits(predicted, labels, k).sum(1).mean()) / k


def ndcg_at_k(predicted: np.ndarray, labels: Pattern, k: int) -> float:
    """Discounted gain of the first k predictions over the best possible one, in [0, 1].

    A hit at place i, counted from 1, gains 1 / log2(i + 1) (Järvelin and Kekäläinen 2002,
    "Cumulated gain-based evaluation of IR techniques").

    Args:
        predicted: ``(n, k')`` integers with k' >= k, best first; -1: no more.
        labels: of n rows.
        k: how many predictions count, in [1, k'].

    Raises:
        ValueError: if the numbers of rows differ, or there are none, or for another k.

    Example:
        >>> import numpy as np
        >>> from slide import Pattern
        >>> from slide.training import ndcg_at_k
        >>> round(ndcg_at_k(np.array([[1, 3]]), Pattern.from_lists([[3]]), k=2), 3)
        0.631
    """
    found = _first_hits(predicted, labels, k)
    discount = 1 / np.log2(np.arange(2, k + 2))
    gain = found @ discount
    counts = np.minimum(np.diff(labels.indptr), k)
    best = np.concatenate([[0.0], np.cumsum(discount)])[counts]
    return float(np.divide(gain, best, out=np.zeros(len(gain)), where=best > 0).mean())


def calibration_error(
    scores: np.ndarray, predicted: np.ndarray, labels: Pattern, bins: int = 10
) -> float:
    """Mean distance of predicted probabilities from the shares of right predictions, in [0, 1].

    Predictions are put into bins of equal width by their probability, and the distances of the bins
    are weighted by their sizes (expected calibration error: Guo et al. 2017, "On calibration of
    modern neural networks", section 2).

    Args:
        scores: ``(n, k)`` probabilities.
        predicted: ``(n, k)`` integers; -1: no prediction.
        labels: of n rows.
        bins: number of bins.

    Raises:
        ValueError: if the numbers of rows differ.

    Example:
        >>> import numpy as np
        >>> from slide import Pattern
        >>> from slide.training import calibration_error
        >>> labels = Pattern.from_lists([[3], [0, 2]])
        >>> calibration_error(np.array([[0.9, 0.1]] * 2), np.array([[3, 1], [1, 2]]), labels)
        0.4
    """
    known = predicted >= 0
    right, sure = hits(predicted, labels)[known], scores[known].astype(np.float64)
    bin_of = np.minimum((sure * bins).astype(int), bins - 1)
    gaps = np.bincount(bin_of, right) - np.bincount(bin_of, sure)
    return float(np.abs(gaps).sum() / max(len(right), 1))


def inverse_propensities(
    train_labels: Pattern, num_labels: int, a: float = 0.55, b: float = 1.5
) -> np.ndarray:
    """How much a hit of each label counts: rare labels count more.

    A label of n of the R training rows counts 1 + C (n + b)^-a, with C = (ln R - 1) (b + 1)^a (Jain
    et al. 2016, "Extreme multi-label loss functions for recommendation, tagging, ranking and other
    missing label applications", section 5).

    Args:
        train_labels: labels of the training rows.
        num_labels: N.
        a, b: constants of the data set; the defaults are the paper's for most sets.

    Returns:
        ``(N,)`` float64.

    Example:
        >>> from slide import Pattern
        >>> from slide.training import inverse_propensities
        >>> train = Pattern.from_lists([[0], [0], [0], [0, 1]])
        >>> inverse_propensities(train, num_labels=2).round(2)
        array([1.25, 1.39])
    """
    counts = np.bincount(train_labels.indices, minlength=num_labels)
    c = (np.log(max(train_labels.num_rows, 2)) - 1) * (b + 1) ** a
    return 1 + c * (counts + b) ** -a


def psp_at_k(predicted: np.ndarray, labels: Pattern, k: int, inverse: np.ndarray) -> float:
    """Propensity-scored precision, divided by the best possible value, in [0, 1].

    It is defined in Jain et al. 2016, section 5; see `inverse_propensities`.

    Args:
        predicted: ``(n, k')`` integers with k' >= k, best first; -1: no more.
        labels: of n rows.
        k: how many predictions count, in [1, k'].
        inverse: ``(N,)`` from `inverse_propensities`.

    Raises:
        ValueError: if the numbers of rows differ, or there are none, or for another k.

    Example:
        >>> import numpy as np
        >>> from slide import Pattern
        >>> from slide.training import psp_at_k
        >>> inverse = np.array([1.0, 3.0])
        >>> psp_at_k(np.array([[1], [1]]), Pattern.from_lists([[0], [1]]), 1, inverse)
        0.75
    """
    gain = (_first_hits(predicted, labels, k) * inverse[np.maximum(predicted[:, :k], 0)]).sum()
    rows = labels.entry_rows()
    weights = inverse[labels.indices]
    order = np.lexsort((-weights, rows))
    rank = np.arange(len(rows)) - labels.indptr[rows]
    best = weights[order][rank < k].sum()
    return float(gain / best) if best > 0 else 0.0


def _first_hits(predicted: np.ndarray, labels: Pattern, k: int) -> np.ndarray:
    """Which of the first k predictions are labels of their row: ``(n, k)`` bool."""
    most = predicted.shape[1]
    if not isinstance(k, int | np.integer) or not 1 <= k <= most:
        raise ValueError(
            f"k must be a whole number in [1, {most}], the number of predictions, not {k!r}"
        )
    if not len(predicted):
        raise ValueError("there are no rows, so no prediction is right or wrong")
    return hits(predicted[:, :k], labels)
