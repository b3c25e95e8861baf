"""The ids with the largest scores of each sample's own list."""

import numpy as np

from slide.ops.kernels.compile import parallel, prange
from slide.ops.kernels.prefetch import AHEAD, AHEAD_ENTRIES, ask_for, prefetch_row


@parallel
def best_of_lists(ranked, labels, vectors, rows, bias, out):
    """Of each sample's ids those with the largest ``<vector, row> + bias``, without its labels.

    Args:
        ranked: `slide.ops.kernels.votes.RankedIds` of B samples.
        labels: B rows of ids that do not count.
        vectors: ``(B, D)`` floats.
        rows: ``(N, D)`` floats.
        bias: ``(N,)`` floats, or empty for none.
        out: ``(B, best)`` int32, written: the best first; of equal scores, the first id; -1
            after the last one. A score that is no number does not count.
    """
    num_best, width = out.shape[1], vectors.shape[1]
    has_bias = bias.shape[0] > 0
    for b in prange(len(vectors)):
        vector, ids, best = vectors[b], ranked.ids[b, : ranked.counts[b]], out[b]
        own = labels.indices[labels.indptr[b] : labels.indptr[b + 1]]
        scores = np.empty(num_best, vectors.dtype)
        best[:] = -1
        count = 0
        for j in range(len(ids)):
            if j + AHEAD < len(ids):
                prefetch_row(rows, ids[j + AHEAD])
            if has_bias and j + AHEAD_ENTRIES < len(ids):
                ask_for(bias, ids[j + AHEAD_ENTRIES])
            row = rows[ids[j]]
            total = vector[0] * row[0]
            for d in range(1, width):
                total += vector[d] * row[d]
            if has_bias:
                total += bias[ids[j]]
            if np.isnan(total) or (count == num_best and not total > scores[count - 1]):
                continue
            known = False
            for i in range(len(own)):
                known |= own[i] == ids[j]
            if known:
                continue
            count = min(count + 1, num_best)
            place = count - 1
            while place > 0 and total > scores[place - 1]:
                scores[place], best[place] = scores[place - 1], best[place - 1]
                place -= 1
            scores[place], best[place] = total, ids[j]
