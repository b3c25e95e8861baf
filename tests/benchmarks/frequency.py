"""Which labels a method finds: answers and true labels counted by the frequency of the labels."""

from typing import Any

import numpy as np

from slide.sparse import Pattern
from slide.training.metrics import hits

# First label count of each bin; a bin ends where the next one begins.
STARTS = (0, 1, 2, 5, 10, 50, 500)


def names(starts: tuple[int, ...] = STARTS) -> list[str]:
    """The bins in words: a count, a range, or the least count of the last bin.

    >>> names((0, 1, 2, 5))
    ['0', '1', '2-4', '5+']
    """
    ends = [stop - 1 for stop in starts[1:]]
    closed = [str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=False)]
    return [*closed, f"{starts[-1]}+"]


def sizes(counts: np.ndarray, truth: Pattern) -> list[dict[str, Any]]:
    """What lies in each bin.

    Args:
        counts: ``(N,)`` whole numbers, how many training rows have each label.
        truth: true labels of the judged rows.

    Returns:
        For each bin its name ``frequency``, the number of its ``labels``, and the ``share`` of the
        true labels that are in it, in [0, 1].
    """
    labels = np.bincount(bins(counts), minlength=len(STARTS))
    true = np.bincount(bins(counts)[truth.indices], minlength=len(STARTS))
    return [
        {"frequency": name, "labels": int(n), "share": int(t) / max(len(truth.indices), 1)}
        for name, n, t in zip(names(), labels, true, strict=True)
    ]


def found_by_bin(
    counts: np.ndarray, truth: Pattern, found: np.ndarray
) -> list[dict[str, float | None]]:
    """How much of each bin the answers found.

    Args:
        counts: as in `sizes`.
        truth: true labels of n rows.
        found: ``(n, k)`` ids, different ones in a row; -1: no more.

    Returns:
        For each bin its ``recall``, the share of its true labels that are among the k answers of
        their row (None: it has none), and its ``contribution`` to the precision at k: these add up
        to it.
    """
    of = bins(counts)
    hit = np.bincount(of[found[hits(found, truth)]], minlength=len(STARTS))
    true = np.bincount(of[truth.indices], minlength=len(STARTS))
    return [
        {"recall": int(h) / int(t) if t else None, "contribution": int(h) / max(found.size, 1)}
        for h, t in zip(hit, true, strict=True)
    ]


def bins(counts: np.ndarray) -> np.ndarray:
    """``(N,)`` the number of each label's bin."""
    return np.searchsorted(STARTS, counts, side="right") - 1
