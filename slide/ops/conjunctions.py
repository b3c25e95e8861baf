"""Sets of features that rows have together, and their shares of labels."""

import numpy as np

from slide.ops.base_scorers import forget_candidates, number_candidates
from slide.ops.compile import parallel, prange


@parallel
def list_sets(rows, hashes, groups, most, starts, keys, kinds):
    """The sets of the features of each row: single ones, then pairs and so on.

    rows: a pattern of B rows; hashes (nnz,) uint64 and groups (nnz,) uint8 of the features, whose
    sums over a set are its key and its kind; most (B,) largest size of a row's sets; starts (B,)
    int64, where the sets of a row begin; keys (S,) uint64, kinds (S,) uint8, written.
    """
    for b in prange(len(most)):
        begin, first = rows.indptr[b], starts[b]
        count = rows.indptr[b + 1] - begin
        keys[first : first + count] = hashes[begin : begin + count]
        kinds[first : first + count] = groups[begin : begin + count]
        low, high = 0, count  # Sets of one size, which become larger by features further on.
        room = 64 if most[b] > 1 else 0
        last = np.empty(max(room, count), np.int64)
        last[:count] = np.arange(count)
        for _ in range(1, most[b]):
            filled = high
            for s in range(low, high):
                for j in range(last[s] + 1, count):
                    keys[first + filled] = keys[first + s] + hashes[begin + j]
                    kinds[first + filled] = kinds[first + s] + groups[begin + j]
                    last[filled] = j
                    filled += 1
            low, high = high, filled


@parallel
def mix_shares(sets, lists, ids, starts, positions, found):
    """The sum over the sets of a row of weight times share of each of its candidates.

    sets `CSR` of B rows of sets; lists `CSR`, the labels of each set; ids (B, K) int64 distinct
    candidates, below 0: none; starts (B + 1,) int64, where the candidates of a row begin in found;
    positions (T, N) int32 scratch of zeros; found (pairs,) float32, written.
    """
    threads = len(positions)
    for t in prange(threads):
        position = positions[t]
        for b in range(t, len(ids), threads):
            out = found[starts[b] : starts[b + 1]]
            out[:] = 0
            number_candidates(ids[b], position)
            for p in range(sets.indptr[b], sets.indptr[b + 1]):
                own = sets.indices[p]
                for q in range(lists.indptr[own], lists.indptr[own + 1]):
                    i = position[lists.indices[q]] - 1
                    if i >= 0:
                        out[i] += sets.values[p] * lists.values[q]
            forget_candidates(ids[b], position)
