"""The entries of a dense matrix that are not zero, by row and by column."""

from slide.kernels.compile import parallel, prange, serial


@parallel
def count_nonzeros(matrix, counts):
    """Write how many entries of each row are not zero, as NaN is not.

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
    """Write where they are and what.

    Args:
        matrix: ``(B, A)`` floats.
        indptr: ``(B + 1,)`` int64, bounds of the rows, of their counts.
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


@serial
def group_by_column(indptr, columns, starts, entries, rows):
    """Group the entries of a CSR pattern by column, a counting sort.

    Args:
        indptr, columns: the pattern, ``(B + 1,)`` int64 and ``(nnz,)`` int32.
        starts: ``(A + 1,)`` int64 output, zero before; bounds of the groups.
        entries: ``(nnz,)`` int64 output; places in the pattern, group by group, ascending in one.
        rows: ``(nnz,)`` int32 output; the row of each of those places.
    """
    for p in range(len(columns)):
        starts[columns[p] + 1] += 1
    for c in range(len(starts) - 1):
        starts[c + 1] += starts[c]
    # `starts` serves as the write cursor, and is shifted back afterwards.
    for b in range(len(indptr) - 1):
        for p in range(indptr[b], indptr[b + 1]):
            q = starts[columns[p]]
            entries[q] = p
            rows[q] = b
            starts[columns[p]] = q + 1
    for c in range(len(starts) - 1, 0, -1):
        starts[c] = starts[c - 1]
    starts[0] = 0
