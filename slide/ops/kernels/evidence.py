"""What is known of the candidates of rows, and the votes of near rows."""

import numpy as np

from slide.ops.kernels.compile import parallel, prange, serial
from slide.ops.kernels.largest import add_to_sum, best_first, leave_out, replace_least


@serial
def _put_ranks(values, out):
    """The place of each value, 0 for the largest; of equal ones the first is the better one."""
    order = np.argsort(-values, kind="mergesort")
    for place in range(len(order)):
        out[order[place]] = place


@serial
def _put_known(own, known, values, out):
    """The values of ``own`` ids, which descend, in a list of ids; 0 for ids that are not in it."""
    out[:] = 0
    for j in range(len(known)):
        first, size = 0, len(own)
        if known[j] < 0 or not size:
            continue
        while size > 1:
            half = size // 2
            first += half if own[first + half] >= known[j] else 0
            size -= half
        if own[first] == known[j]:
            out[first] = values[j]


@parallel
def fill_evidence(
    ids, starts, network, linear, votes, related, answered, frequency, of_row, columns
):
    """The columns of `slide.ranking.evidence.COLUMNS` for all candidates.

    Args:
        ids: ``(B, K)`` int64; the numbers of a row descend. Numbers below 0, anywhere, are none.
        starts: ``(B + 1,)`` int64, where the candidates of each row begin in ``columns``.
        network, linear: ``(B, K)`` float32, scores of the candidates.
        votes: ids ``(B, V)`` int32, shares and sharp shares ``(B, V)`` float32.
        related: ``(pairs, 3)`` float32, see `slide.ops.kernels.base_scorers.relate_candidates`.
        answered: ``(pairs, 2)`` float32, see `slide.ops.kernels.base_scorers.ask_similar`.
        frequency: ``(N,)`` int64.
        of_row: ``(B, 3)`` float32, the columns from the 15th on, which are those of a row.
        columns: ``(pairs, 20)`` float32 output.
    """
    voted, shares, sharp = votes
    for b in prange(len(ids)):
        out = columns[starts[b] : starts[b + 1]]
        own = np.empty(len(out), np.int64)
        count, best, most = 0, np.float32(-np.inf), np.float32(-np.inf)
        for j in range(ids.shape[1]):
            if ids[b, j] < 0:
                continue
            own[count], out[count, 0], out[count, 3] = ids[b, j], network[b, j], linear[b, j]
            best, most = max(best, network[b, j]), max(most, linear[b, j])
            count += 1
        best = best if np.isfinite(best) else np.float32(0)
        most = most if np.isfinite(most) else np.float32(0)
        _put_known(own, voted[b], shares[b], out[:, 6])
        _put_known(own, voted[b], sharp[b], out[:, 7])
        out[:, 9:12] = related[starts[b] : starts[b + 1]]
        out[:, 18:20] = answered[starts[b] : starts[b + 1]]
        for i in range(count):
            out[i, 1], out[i, 4] = out[i, 0] - best, out[i, 3] - most
            out[i, 13] = np.log1p(frequency[own[i]])
            out[i, 14:17] = of_row[b]
            out[i, 17] = best
        _put_ranks(out[:, 0], out[:, 2])
        _put_ranks(out[:, 3], out[:, 5])
        _put_ranks(out[:, 6], out[:, 8])
        _put_ranks(out[:, 9], out[:, 12])


@parallel
def count_votes(near, weights, labels, left_out, sums, touched, ids, votes, sharp):
    """The labels with the most votes of near rows, best first.

    Args:
        near: ``(B, C)`` int32 numbers of rows; those below 0 are none.
        weights: ``(B, C)`` float32, how much each counts, above 0.
        labels: `slide.sparse.Pattern` of all rows.
        left_out: `slide.sparse.Pattern` of B rows, labels that are not returned.
        sums: ``(T, N)`` float32 scratch, zero before and after.
        touched: ``(T, N + 1)`` int32 scratch.
        ids: ``(B, k)`` int32 output, -1 before; -1 where no other label has votes.
        votes: ``(B, k)`` float32 output, zero before: sums of weights.
        sharp: ``(B, k)`` float32 output, zero before: sums of their fourth powers.
    """
    threads = len(sums)
    for t in prange(threads):
        total, seen = sums[t], touched[t]
        for b in range(t, len(ids), threads):
            count = 0
            for i in range(near.shape[1]):
                row = near[b, i]
                if row < 0:
                    continue
                for p in range(labels.indptr[row], labels.indptr[row + 1]):
                    count = add_to_sum(total, seen, count, labels.indices[p], weights[b, i])
            leave_out(total, left_out.indices[left_out.indptr[b] : left_out.indptr[b + 1]])
            for i in range(count):
                n = seen[i]
                if total[n] > votes[b, 0]:
                    replace_least(votes[b], ids[b], total[n], n)
                total[n] = 0
            best_first(votes[b], ids[b])
            for j in range(ids.shape[1]):
                if ids[b, j] >= 0:
                    total[ids[b, j]] = j + 1  # The place of a label; float32 holds it.
            for i in range(near.shape[1]):
                row = near[b, i]
                if row < 0:
                    continue
                square = weights[b, i] * weights[b, i]
                for p in range(labels.indptr[row], labels.indptr[row + 1]):
                    place = total[labels.indices[p]]
                    if place > 0:
                        sharp[b, int(place) - 1] += square * square
            for j in range(ids.shape[1]):
                if ids[b, j] >= 0:
                    total[ids[b, j]] = 0
