"""Numbers of candidates that follow from scores and lists, and the votes of nearest rows."""

import numpy as np

from slide.ops.kernels.compile import parallel, prange, serial
from slide.ops.kernels.largest import add_to_sum, best_first, leave_out, replace_least


@serial
def _put_ranks(values, out):
    """The rank of each value, 0 for the largest; of equal ones the first is the better one."""
    order = np.argsort(-values, kind="mergesort")
    for rank in range(len(order)):
        out[order[rank]] = rank


@parallel
def rank_scores(starts, derived, columns):
    """Numbers of candidates that follow from their scores within a row.

    Args:
        starts: ``(B + 1,)`` int64, where the candidates of each row begin in ``columns``.
        derived: ``(S, 4)`` int64. For each scorer the column of its score, and those for how far a
            candidate is behind the best one, for its rank, and for the score of the best one, 0 if
            that is not finite; -1: none.
        columns: ``(C, F)`` float32 with the scores, output.
    """
    for b in prange(len(starts) - 1):
        out = columns[starts[b] : starts[b + 1]]
        for s in range(len(derived)):
            score, behind, rank, top = derived[s]
            if behind >= 0 or top >= 0:
                best = np.float32(-np.inf)
                for i in range(len(out)):
                    best = max(best, out[i, score])
                best = best if np.isfinite(best) else np.float32(0)
                for i in range(len(out)):
                    if behind >= 0:
                        out[i, behind] = out[i, score] - best
                    if top >= 0:
                        out[i, top] = best
            if rank >= 0:
                _put_ranks(out[:, score], out[:, rank])


@parallel
def look_up_lists(ids, starts, listed, values, found):
    """The values that lists of labels have for candidates; 0 for those that are not in the list.

    Args:
        ids: ``(B, K)`` int64 candidates; those of a row descend, and those below 0 come last.
        starts: ``(B + 1,)`` int64, where the candidates of each row begin in ``found``.
        listed: ``(B, V)`` int32, labels, each once in a row; -1 for none.
        values: two arrays ``(B, V)`` float32.
        found: ``(C, 2)`` float32 output.
    """
    one, other = values
    for b in prange(len(ids)):
        out = found[starts[b] : starts[b + 1]]
        out[:] = 0
        own = ids[b, : len(out)]
        for j in range(listed.shape[1]):
            first, size = 0, len(own)
            if listed[b, j] < 0 or not size:
                continue
            while size > 1:
                half = size // 2
                first += half if own[first + half] >= listed[b, j] else 0
                size -= half
            if own[first] == listed[b, j]:
                out[first, 0], out[first, 1] = one[b, j], other[b, j]


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
