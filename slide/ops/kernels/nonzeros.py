"""The entries of a dense matrix that are not zero."""

from slide.ops.kernels.compile import parallel, prange


@parallel
def count_nonzeros(matrix, counts):
    """Write the number of non-zero entries of each row; NaN is not zero.

    Args:
        matrix: ``(B, A)`` floats.
        counts: ``(B,)`` int64 output.
    """
    for b in prange(len(matrix)):
        found = 0
        for j in range(matrix.shape[1]):
            found += matrix[b, j] != 0
        counts[b] = found


@parallel
def take_nonzeros(matrix, indptr, columns, values):
    """Write columns and values of the non-zero entries, row after row.

    Args:
        matrix: ``(B, A)`` floats.
        indptr: ``(B + 1,)`` int64 bounds of the rows, from the counts of `count_nonzeros`.
        columns: ``(nnz,)`` int32 output, ascending in a row.
        values: ``(nnz,)`` output of the type of ``matrix``.
    """
    for b in prange(len(matrix)):
        p = indptr[b]
        for j in range(matrix.shape[1]):
            if matrix[b, j] != 0:
                columns[p] = j
                values[p] = matrix[b, j]
                p += 1
