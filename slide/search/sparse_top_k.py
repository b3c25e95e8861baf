"""The largest products of sparse rows with a sparse matrix, by inverted lists."""

import threading
from weakref import ref

import numpy as np

from slide.ops.base_scorers import count_votes
from slide.ops.largest import top_products
from slide.ops.ragged import shorten_rows
from slide.runtime import num_threads
from slide.sparse import CSR, Pattern, check_pattern, row_bounds
from slide.utils import checks

# Lists that were checked before: bounds, indices, and the number of outputs that they fit.
_checked: dict[int, tuple[ref, ref, int]] = {}
# Scratch arrays of calls before, of each Python thread. Filling them takes longer than a search.
_MOST_KEPT = 4


class _Kept(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}


_kept = _Kept()


def column_lists(matrix: CSR, num_columns: int) -> CSR:
    """The transpose of a matrix: for each column a list of its rows (an inverted list).

    Args:
        matrix: ``(R, D)``.
        num_columns: D.

    Returns:
        ``(D, R)``; the rows in a list ascend.

    Raises:
        ValueError: for columns out of range.

    Example:
        >>> import numpy as np, slide
        >>> from slide.search import column_lists
        >>> ones = np.ones(3, np.float32)
        >>> rows = slide.CSR(np.array([0, 2, 3]), np.array([0, 2, 2], np.int32), ones)
        >>> column_lists(rows, num_columns=3)[:2]
        (array([0, 1, 1, 3]), array([0, 0, 1], dtype=int32))
    """
    import scipy.sparse  # Imported here, so that `import slide` stays fast.

    check_pattern("columns", matrix, None, num_columns)
    shape = (matrix.num_rows, num_columns)
    turned = scipy.sparse.csr_array((matrix.values, matrix.indices, matrix.indptr), shape).tocsc()
    indptr, indices = turned.indptr.astype(np.int64), turned.indices.astype(np.int32)
    return CSR(indptr, indices, turned.data.astype(np.float32, copy=False))


def shortened(lists: CSR, longest: int) -> CSR:
    """Lists whose longer ones keep only ``longest`` entries, of the largest magnitude, in order.

    ValueError for ``longest`` below 1, or bounds that do not fit the entries.
    """
    checks.whole("longest", longest, 1)
    lengths = np.diff(lists.indptr)
    ends = lists.indptr[0], lists.indptr[-1], len(lists.values)
    if lengths.min(initial=0) < 0 or ends != (0, *2 * (len(lists.indices),)):
        raise ValueError("the bounds of the lists do not fit their entries")
    if lengths.max(initial=0) <= longest:
        return lists
    indptr = row_bounds(np.minimum(lengths, longest))
    out = CSR(indptr, *(np.empty(indptr[-1], each.dtype) for each in lists[1:]))
    shorten_rows(lists, out, num_threads())
    return out


def sparse_top_k(
    x: CSR, lists: CSR, num_outputs: int, k: int, left_out: Pattern | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The k largest positive products of each sparse row with the columns of a sparse matrix.

    The time is proportional to the length of the lists of a row's columns; the other lists are not
    read, except in the first call with these lists, which checks them.

    Args:
        x: ``(B, D)``.
        lists: ``(D, N)``: for each column of ``x`` the outputs that have it, and their weights.
        num_outputs: N.
        k: at least 1.
        left_out: B rows of outputs that are not returned; None: none.

    Returns:
        Scores ``(B, k)`` float32 and ids ``(B, k)`` int32, best first. If a row has fewer than k
        positive products, the remaining scores are 0 and the ids are -1.

    Raises:
        ValueError: for ids out of range, or k below 1.

    Example:
        >>> import numpy as np, slide
        >>> from slide.search import sparse_top_k
        >>> lists = slide.CSR(np.array([0, 2, 3]), np.array([0, 1, 1], np.int32),
        ...                   np.array([1, 2, 3], np.float32))
        >>> row = slide.CSR(np.array([0, 2]), np.array([0, 1], np.int32), np.ones(2, np.float32))
        >>> sparse_top_k(row, lists, num_outputs=2, k=2)
        (array([[5., 1.]], dtype=float32), array([[1, 0]], dtype=int32))
    """
    checks.whole("k", k, 1)
    check_pattern("columns", x, None, lists.num_rows)
    _check_once(lists, num_outputs)
    left_out = _checked_left_out(left_out, x.num_rows, num_outputs)
    sums, touched = _borrowed(num_threads(), num_outputs)
    ids, scores = np.full((x.num_rows, k), -1, np.int32), np.zeros((x.num_rows, k), np.float32)
    top_products(x, lists, left_out, sums, touched, ids, scores)
    _kept.arrays[sums.shape] = sums, touched  # The kernel has put 0 everywhere again.
    return scores, ids


def top_votes(
    near: np.ndarray,
    weights: np.ndarray,
    labels: Pattern,
    num_labels: int,
    k: int,
    left_out: Pattern | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The k labels with the most votes of some rows that are near each row.

    Args:
        near: ``(B, C)`` int32 numbers of rows with labels, each at most once; -1 for none.
        weights: ``(B, C)`` float32, how much the labels of each row count, above 0.
        labels: R rows; see `sparse_top_k` for their check, and for the rest.

    Returns:
        Ids ``(B, k)`` int32, most votes first, -1 where no others have votes; and ``(B, k)``
        float32 each: sums of weights, and sums of their fourth powers, in which large ones
        dominate; 0 where there is no id.

    Raises:
        ValueError: for ids out of range, or k below 1.
    """
    checks.whole("k", k, 1)
    _check_once(labels, num_labels)
    if near.shape != weights.shape:
        raise ValueError(f"weights of shape {weights.shape} do not fit rows of shape {near.shape}")
    if near.size and near.max() >= labels.num_rows:
        raise ValueError(f"numbers of rows must be below {labels.num_rows}, not {near.max()}")
    left_out = _checked_left_out(left_out, len(near), num_labels)
    sums, touched = _borrowed(num_threads(), num_labels)
    ids = np.full((len(near), k), -1, np.int32)
    votes, sharp = np.zeros((2, len(near), k), np.float32)
    count_votes(near, weights, labels, left_out, sums, touched, ids, votes, sharp)
    _kept.arrays[sums.shape] = sums, touched
    return ids, votes, sharp


def _checked_left_out(left_out: Pattern | None, rows: int, num_outputs: int) -> Pattern:
    if left_out is None:
        return Pattern(np.zeros(rows + 1, np.int64), np.empty(0, np.int32))
    check_pattern("left_out", left_out, rows, num_outputs)
    return Pattern(left_out.indptr, left_out.indices)


def _check_once(lists: CSR | Pattern, num_outputs: int) -> None:
    """Check lists in the first call with them: it reads all of them, and they can be very long."""
    key = id(lists.indices)
    bounds, indices, outputs = _checked.get(key, (int, int, -1))
    same = bounds() is lists.indptr and indices() is lists.indices and outputs == num_outputs
    if same and len(lists[-1]) == len(lists.indices):  # As many values as numbers, if it has any.
        return
    check_pattern("lists", lists, None, num_outputs)
    gone = ref(lists.indices, lambda _: _checked.pop(key, None))
    _checked[key] = ref(lists.indptr), gone, num_outputs


def _borrowed(threads: int, num_outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Scratch: float32 zeros ``(T, N)``, and int32 ``(T, N + 1)``; nobody else has it meanwhile."""
    found = _kept.arrays.pop((threads, num_outputs), None)
    if found is not None:
        return found
    while len(_kept.arrays) >= _MOST_KEPT:
        del _kept.arrays[next(iter(_kept.arrays))]
    touched = np.empty((threads, num_outputs + 1), np.int32)
    return np.zeros((threads, num_outputs), np.float32), touched
