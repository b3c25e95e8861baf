"""Which answers are right."""

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
    # In order but for labels within a row, and with an end, so that each search finds a number.
    truth = np.append(np.sort(rows * width + labels.indices), -1)
    asked = np.arange(len(predicted))[:, None] * width + predicted
    return (truth[np.searchsorted(truth[:-1], asked)] == asked) & (predicted >= 0)


def check_ids(ids: np.ndarray, num_rows: int, num_labels: int) -> None:
    """Raise ValueError unless ``ids`` are ``(num_rows, K)`` labels; below 0 they are none."""
    if ids.ndim != 2 or len(ids) != num_rows:
        raise ValueError(f"ids of shape {ids.shape} do not fit {num_rows} rows")
    if ids.size and ids.max() >= num_labels:
        raise ValueError(f"ids must be below {num_labels}, not {ids.max()}")
