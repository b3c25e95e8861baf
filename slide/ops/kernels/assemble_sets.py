"""From proposed ids to active sets: labels, then proposed ids, then uniform fill."""

import numpy as np

from slide.ops.kernels.compile import parallel, prange, serial
from slide.ops.kernels.random import random_below

# In the scratch of marks: this id is in the set already.
_TAKEN = 255
# Rejection draws a place before the fill goes over to a pass over all ids.
_DRAWS_PER_PLACE = 64


@serial
def _fill(ids, size, target, num_rows, marks, key, stream):
    """Bring ``ids`` from ``size`` to ``target`` with distinct uniform ids that are not marked."""
    counter = np.int64(stream) << 32
    draws = 0
    limit = _DRAWS_PER_PLACE * (target - size)
    while size < target and draws < limit:
        candidate = random_below(key, counter + draws, num_rows)
        draws += 1
        if marks[candidate] != _TAKEN:
            marks[candidate] = _TAKEN
            ids[size] = candidate
            size += 1
    if size == target:
        return
    # Nearly all rows are taken. Selection sampling (Knuth, TAOCP vol. 2, section 3.4.2, algorithm
    # S): each free id is taken with the probability of places by ids that are left.
    free = np.int64(0)
    for candidate in range(num_rows):
        free += marks[candidate] != _TAKEN
    for candidate in range(num_rows):
        if marks[candidate] == _TAKEN:
            continue
        if random_below(key, counter + draws, free) < target - size:
            marks[candidate] = _TAKEN
            ids[size] = candidate
            size += 1
        draws += 1
        free -= 1


@parallel
def assemble_per_sample(labels, proposed, num_rows, key, marks, indptr, ids, num_known):
    """One active set for each sample: its labels, then its proposed ids, then uniform fill.

    Args:
        labels: `slide.sparse.Pattern` of the positive outputs, distinct within a sample.
        proposed: `slide.ops.kernels.votes.RankedIds` of distinct ids.
        num_rows: N.
        key: uint64 key of the fill.
        marks: ``(T, N)`` uint8 scratch, zero at entry and at exit.
        indptr: ``(B + 1,)`` int64, the bounds of the sets asked for; each holds at least the
            sample's labels and at most N.
        ids: ``(nnz,)`` int32, written.
        num_known: ``(B,)`` int64, written: how many of a set's ids are labels or proposed.
    """
    num_samples = len(indptr) - 1
    num_runs = marks.shape[0]
    for run in prange(num_runs):
        mark = marks[run]
        for b in range(run * num_samples // num_runs, (run + 1) * num_samples // num_runs):
            own = ids[indptr[b] : indptr[b + 1]]
            size = 0
            for p in range(labels.indptr[b], labels.indptr[b + 1]):
                own[size] = labels.indices[p]
                mark[own[size]] = _TAKEN
                size += 1
            for i in range(proposed.counts[b]):
                if size == len(own):
                    break
                candidate = proposed.ids[b, i]
                if mark[candidate] != _TAKEN:
                    mark[candidate] = _TAKEN
                    own[size] = candidate
                    size += 1
            num_known[b] = size
            _fill(own, size, len(own), num_rows, mark, key, b)
            for i in range(len(own)):
                mark[own[i]] = 0


@serial
def assemble_shared(labels, proposed, num_rows, key, marks, slots, ids, positions):
    """One active set for a batch: all its labels, then the proposed ids, then uniform fill.

    Args:
        labels: `slide.sparse.Pattern` of the positive outputs.
        proposed: ``(n,)`` int32 distinct ids.
        num_rows: N.
        key: uint64 key of the fill.
        marks: ``(N,)`` uint8 scratch, zero at entry and at exit.
        slots: ``(N,)`` int32 scratch, all -1 at entry and at exit.
        ids: ``(size,)`` int32, written; at least as long as there are distinct labels.
        positions: ``(number of labels,)`` int32, written: where in ``ids`` each label stands.

    Returns:
        How many of the ids are labels or proposed.
    """
    size = 0
    for p in range(len(labels.indices)):
        label = labels.indices[p]
        if marks[label] != _TAKEN:
            marks[label] = _TAKEN
            slots[label] = size
            ids[size] = label
            size += 1
        positions[p] = slots[label]
    for i in range(len(proposed)):
        if size == len(ids):
            break
        if marks[proposed[i]] != _TAKEN:
            marks[proposed[i]] = _TAKEN
            ids[size] = proposed[i]
            size += 1
    num_known = size
    _fill(ids, size, len(ids), num_rows, marks, key, 0)
    for i in range(len(ids)):
        marks[ids[i]] = 0
        slots[ids[i]] = -1
    return num_known


@serial
def count_distinct(ids, marks):
    """How many different ids there are; ``marks`` ``(N,)`` uint8 is zero at entry and exit."""
    distinct = 0
    for i in range(len(ids)):
        if marks[ids[i]] == 0:
            marks[ids[i]] = 1
            distinct += 1
    for i in range(len(ids)):
        marks[ids[i]] = 0
    return distinct


@parallel
def stratified_log_weights(indptr, num_known, num_rows, out):
    """Write 0 for a set's labels and proposed ids, log((N - |S|) / m) for its m uniform ones.

    With these weights sums over a set estimate sums over all N rows without bias, whatever the
    proposed ids S are (stratified sampling).
    """
    for b in prange(len(num_known)):
        begin, end = indptr[b], indptr[b + 1]
        middle = begin + num_known[b]
        for p in range(begin, middle):
            out[p] = 0
        if middle < end:
            log_weight = np.log((num_rows - num_known[b]) / (end - middle))
            for p in range(middle, end):
                out[p] = log_weight
