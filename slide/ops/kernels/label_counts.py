"""How often labels occur in the rows of a feature, and what the features of a row say of them."""

import numpy as np

from slide.ops.kernels.compile import parallel, prange, serial
from slide.ops.kernels.ragged import shorten


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
            ones evenly many.
        sums: ``(T, N)`` int32 scratch, zero before and after.
        touched: ``(T, N + 1)`` int32 scratch.
        found: `slide.ops.kernels.ragged.RowRoom` of n features, output.
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


@parallel
def relate_candidates(features, lists, unseen, shares, ids, starts, places, found):
    """What the features of a row say of each of its candidates.

    Args:
        features: `slide.sparse.CSR` ``(B, D)``.
        lists: `slide.sparse.CSR` ``(D, N)``: labels of each feature with their smoothed shares of
            its rows, above 0.
        unseen: ``(D,)`` float32, above 0: the part of the smoothed rows of each feature that has
            labels as all rows do.
        shares: ``(N,)`` float32, above 0: the share of all rows that have each label.
        ids: ``(B, K)`` int64, each number once in a row. Numbers below 0, anywhere, are none.
        starts: ``(B + 1,)`` int64, where the candidates of each row begin in ``found``.
        places: ``(T, N)`` int32 scratch, zero before and after.
        found: ``(pairs, 3)`` float32 output: the sum of value times share, the largest share, and
            the logarithm of the probability if the features were independent.
    """
    threads = len(places)
    for t in prange(threads):
        place = places[t]
        for b in range(t, len(ids), threads):
            begin, end = features.indptr[b], features.indptr[b + 1]
            nothing = np.float64(0)  # Logarithm of the factor of a label that no feature had.
            for p in range(begin, end):
                nothing += np.log(unseen[features.indices[p]])
            out, last = found[starts[b] : starts[b + 1]], 0
            logs = np.empty(len(out), np.float64)  # Of thousands of features the sum is large.
            for j in range(ids.shape[1]):
                if ids[b, j] >= 0:
                    out[last, 0] = out[last, 1] = 0
                    logs[last] = np.log(shares[ids[b, j]]) + nothing
                    last += 1
                    place[ids[b, j]] = last
            for p in range(begin, end):
                f, value = features.indices[p], features.values[p]
                for q in range(lists.indptr[f], lists.indptr[f + 1]):
                    label, share = lists.indices[q], lists.values[q]
                    i = place[label] - 1
                    if i >= 0:
                        out[i, 0] += value * share
                        out[i, 1] = max(out[i, 1], share)
                        logs[i] += np.log1p(share / (unseen[f] * shares[label]))
            out[:, 2] = logs
            for j in range(ids.shape[1]):
                if ids[b, j] >= 0:
                    place[ids[b, j]] = 0
