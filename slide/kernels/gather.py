"""Copying rows of a ragged array."""

from slide.kernels.compile import parallel, prange

__all__ = ["gather_ragged"]


@parallel
def gather_ragged(indptr, data, rows, out_indptr, out):
    """Copies rows.

    Args:
        indptr: ``(N + 1,)`` int64; row ``r`` is ``data[indptr[r]:indptr[r + 1]]``.
        data: ``(nnz,)`` of any type.
        rows: ``(B,)`` int64 in ``[0, N)``.
        out_indptr: ``(B + 1,)`` int64, the ends of the copied rows.
        out: ``(out_indptr[-1],)`` output of the type of ``data``.
    """
    for i in prange(len(rows)):
        source = indptr[rows[i]]
        target = out_indptr[i]
        for k in range(out_indptr[i + 1] - target):
            out[target + k] = data[source + k]
