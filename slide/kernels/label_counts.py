"""How often labels occur in the rows of each feature."""

import numpy as np

from slide.kernels.compile import parallel, prange, serial
from slide.kernels.ragged import shorten


@serial
def _put(counted, sums, found, f, room):
    """Move the counts of some ids to row ``f`` of ``found``, the largest if they are too many."""
    begin, size = found.starts[f], min(len(counted), room)
    ids = np.sort(counted)
    counts = sums[ids]
    sums[ids] = 0
    columns, values = found.columns[begin : begin + size], found.values[begin : begin + size]
    if size < len(ids):
        shorten(ids, counts, columns, values)
    else:
        columns[:], values[:] = ids, counts
    found.counts[f] = size


@parallel
def count_labels(rows, labels, longest, sums, touched, found):
    """The labels of each feature, with the numbers of rows that have both.

    Args:
        rows: `slide.sparse.Pattern` or `slide.sparse.CSR`: for each of n features its rows. One
            that is repeated counts again.
        labels: `slide.sparse.Pattern` of all rows, in [0, N). A repeated one counts again.
        longest: only this number of labels of a feature is kept, those with the most rows; of equal
            ones the first.
        sums: ``(T, N)`` int32 scratch, zero before and after.
        touched: ``(T, N + 1)`` int32 scratch.
        found: `slide.kernels.ragged.RowRoom` of n features, output.
    """
    threads = len(sums)
    for t in prange(threads):
        total, seen = sums[t], touched[t]
        # Strided, because neighbours often have as many rows.
        for f in range(t, len(rows.indptr) - 1, threads):
            count = 0
            for p in range(rows.indptr[f], rows.indptr[f + 1]):
                row = rows.indices[p]
                for q in range(labels.indptr[row], labels.indptr[row + 1]):
                    n = labels.indices[q]
                    # Without branches, because a processor cannot foretell what is new.
                    seen[count] = n
                    count += total[n] == 0
                    total[n] += 1
            _put(seen[:count], total, found, f, longest)
