"""Training rows that are held out for choices: how long to train, how to re-rank."""

import numpy as np

from slide.data.dataset import Split, holdout
from slide.sparse import CSR, Pattern

__all__ = [
    "first_unknown",
    "known_labels",
    "lists_all_labels",
    "row_keys",
    "validation_split",
]

# Rows with more non-zeros on average describe one object each, such as a text.
_SHORT = 4
# Held-out rows: the share of all rows, the largest number, and the number for small sets with the
# largest share of these.
_SHARE, _MOST, _ENOUGH, _LARGEST_SHARE = 10, 8192, 1000, 5
_BLOCK = 1 << 16
# SplitMix64 (Steele, Lea, Flood 2014).
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1, _MIX2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S27, _S30, _S31, _S32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)


def row_keys(features: CSR) -> np.ndarray:
    """A number for each row: equal rows have equal keys, other rows almost surely have others.

    A key is the sum, modulo 2^64, of a hash of each column number with its value. The order of the
    entries of a row does not matter, and zeros count as missing. The function has no random parts,
    so keys of two matrices can be compared.

    Args:
        features: R rows.

    Returns:
        ``(R,)`` uint64.

    Example:
        >>> import numpy as np
        >>> from slide.data import row_keys
        >>> from slide.sparse import CSR, Pattern
        >>> pattern = Pattern.from_lists([[4, 7], [7, 4], [4]])
        >>> keys = row_keys(CSR(*pattern, np.ones(5, np.float32)))
        >>> bool(keys[0] == keys[1]), bool(keys[0] == keys[2])
        (True, False)
    """
    keys = np.empty(features.num_rows, np.uint64)
    for start in range(0, len(keys), _BLOCK):
        bounds = features.indptr[start : start + _BLOCK + 1]
        entries = slice(bounds[0], bounds[-1])
        values = np.ascontiguousarray(features.values[entries], np.float32)
        words = features.indices[entries].astype(np.uint64) << _S32
        mixed = _mix(words | values.view(np.uint32).astype(np.uint64))
        mixed[values == 0] = 0
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(mixed)])
        keys[start : start + _BLOCK] = np.diff(sums[bounds - bounds[0]])
    return keys


def lists_all_labels(features: CSR) -> bool:
    """Whether each row lists all known labels of its features, as in a knowledge graph.

    It is assumed if rows are short (4 non-zeros on average at most) and no two rows are equal: a
    row stands for head and relation, and its labels for all known tails. Rows to come may repeat
    the features of a training row, and ask for further labels.

    Args:
        features: the features of the training rows.

    Example:
        >>> import numpy as np
        >>> from slide.data import lists_all_labels
        >>> from slide.sparse import CSR, Pattern
        >>> for rows in [[0, 5], [0, 6], [1, 5]], [[0, 5], [0, 6], [0, 5]]:
        ...     lists_all_labels(CSR(*Pattern.from_lists(rows), np.ones(6, np.float32)))
        True
        False
    """
    rows = features.num_rows
    if not 0 < len(features.indices) <= _SHORT * rows:
        return False
    return len(np.unique(row_keys(features))) == rows


def validation_split(split: Split, seed: int) -> tuple[Split, Split]:
    """Divides training rows into rows to learn from, and rows that are held out for choices.

    A tenth of the rows is held out, but at most 8,192, and at least 1,000 or a fifth of the rows,
    whichever is smaller. Where `lists_all_labels` holds, these are not whole rows but pairs of a
    row and a label, each with the same probability: a held-out row has the features of its row and
    only the held-out labels. A row that loses all its labels is not among the others.

    Args:
        split: at least two rows.
        seed: seed of the random choice, at least 0.

    Returns:
        (the rows to learn from, the held-out rows), copies in memory; rows keep their order.

    Raises:
        ValueError: the split has fewer than two rows.

    Example:
        >>> import tempfile
        >>> from slide.data import synthetic, validation_split
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     data = synthetic(cache=folder, train_samples=100, test_samples=0)
        >>> train, held = validation_split(data.train, seed=0)
        >>> len(train), len(held)
        (80, 20)
    """
    rows = len(split)
    count = max(min(rows // _SHARE, _MOST), min(_ENOUGH, rows // _LARGEST_SHARE), 1)
    if rows > 1 and len(split.labels.indices) > 1 and lists_all_labels(split.features):
        return _divide_pairs(split, count, seed)
    return holdout(split, min(count / max(rows, 2), 0.5), seed)


def known_labels(train: Split, features: CSR) -> Pattern:
    """The labels that training rows list for equal features.

    Args:
        train: training rows. If several of them are equal, one of them counts.
        features: R rows.

    Returns:
        R rows of labels; empty where no training row has these features.

    Example:
        >>> import numpy as np
        >>> from slide.data import Split, known_labels
        >>> from slide.sparse import CSR, Pattern
        >>> rows = CSR(*Pattern.from_lists([[0, 5], [0, 6]]), np.ones(4, np.float32))
        >>> train = Split(rows, Pattern.from_lists([[2], [1, 3]]), 7, 4)
        >>> known_labels(train, CSR(*Pattern.from_lists([[6, 0]]), np.ones(2, np.float32))).indices
        array([1, 3], dtype=int32)
    """
    keys, wanted = row_keys(train.features), row_keys(features)
    if not len(keys):
        return Pattern(np.zeros(len(wanted) + 1, np.int64), np.empty(0, np.int32))
    order = np.argsort(keys, kind="stable")
    near = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    found = np.flatnonzero(keys[near] == wanted)
    labels = train.take(near[found]).labels
    sizes = np.zeros(len(wanted), np.int64)
    sizes[found] = np.diff(labels.indptr)
    return Pattern(_bounds(sizes), labels.indices)


def first_unknown(ids: np.ndarray, known: Pattern, count: int) -> np.ndarray:
    """The first ids of each row that are not known.

    Args:
        ids: ``(R, k)`` integers, label numbers, best first; -1: there are no more.
        known: R rows of labels that are left out.
        count: number of ids of a row that are kept.

    Returns:
        ``(R, count)`` int64; -1 where a row has fewer.

    Example:
        >>> import numpy as np
        >>> from slide.data import first_unknown
        >>> from slide.sparse import Pattern
        >>> first_unknown(np.array([[7, 3, 5], [3, 9, 4]]), Pattern.from_lists([[7], []]), 2)
        array([[3, 5],
               [3, 9]])
    """
    rows, width = ids.shape
    span = np.int64(max(ids.max(initial=0), known.indices.max(initial=0)) + 2)
    taken = np.repeat(np.arange(rows), np.diff(known.indptr)) * span + known.indices
    left = (ids >= 0) & ~np.isin(np.arange(rows)[:, None] * span + ids, taken)
    order = np.argsort(~left, axis=1, kind="stable")[:, :count]
    found = np.full((rows, count), -1, np.int64)
    best = np.where(left, ids, -1)
    found[:, : min(width, count)] = np.take_along_axis(best, order, axis=1)
    return found


def _divide_pairs(split: Split, count: int, seed: int) -> tuple[Split, Split]:
    """Pairs of row and label for learning, and pairs of about ``count`` rows that are held out."""
    sizes = np.diff(split.labels.indptr)
    draws = np.random.default_rng(seed).random(len(split.labels.indices))
    held = draws <= max(_pair_share(sizes, count), draws.min())
    return _keep_pairs(split, ~held, keep_empty=True), _keep_pairs(split, held, keep_empty=False)


def _pair_share(sizes: np.ndarray, count: int) -> float:
    """The probability of a pair by which ``count`` rows of these sizes get one on average."""
    least, most = 0.0, 1.0
    for _ in range(40):
        middle = (least + most) / 2
        rows = (1 - (1 - middle) ** sizes).sum()
        least, most = (middle, most) if rows < count else (least, middle)
    return least


def _keep_pairs(split: Split, kept: np.ndarray, keep_empty: bool) -> Split:
    """The rows with some of their labels; without rows that lost all, and those without any."""
    sizes = np.diff(split.labels.indptr)
    left = np.bincount(np.repeat(np.arange(len(split)), sizes)[kept], minlength=len(split))
    rows = np.flatnonzero((left > 0) | (keep_empty & (sizes == 0)))
    labels = Pattern(_bounds(left[rows]), np.asarray(split.labels.indices[kept]))
    return Split(split.take(rows).features, labels, split.num_features, split.num_labels)


def _bounds(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)])


def _mix(words: np.ndarray) -> np.ndarray:
    """64 bits that look random for each word (uint64)."""
    z = words + _GOLDEN
    z = (z ^ (z >> _S30)) * _MIX1
    z = (z ^ (z >> _S27)) * _MIX2
    return z ^ (z >> _S31)
