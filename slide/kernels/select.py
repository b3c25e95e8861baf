"""From bucket look-ups to active sets: votes over tables, then labels, voted ids, uniform fill."""

from typing import NamedTuple

import numpy as np

from slide.kernels.compile import parallel, prange, serial
from slide.kernels.random import random_below

# In the scratch of votes: this id is in the set already.
_TAKEN = 255
_MOST_VOTES = 254
# Rejection draws a place before the fill goes over to walking from a random id.
_DRAWS_PER_PLACE = 64


class Lists(NamedTuple):
    """Ids a sample: of row b of ``ids`` ``(B, budget)`` int32 the first ``counts[b]`` count."""

    ids: np.ndarray
    counts: np.ndarray


@serial
def _most_voted(candidates, num_candidates, votes, histogram, out):
    """Copy the ids with the most votes to ``out``, as many as it holds; return how many.

    Ties at the threshold are broken by order of arrival. ``histogram`` is scratch, as long as the
    most votes possible plus one.
    """
    budget = len(out)
    if budget == 0:
        return 0
    if num_candidates <= budget:
        threshold, ties = 0, 0
    else:
        histogram[:] = 0
        for i in range(num_candidates):
            histogram[votes[candidates[i]]] += 1
        threshold = len(histogram) - 1
        above = 0
        while above + histogram[threshold] <= budget:
            above += histogram[threshold]
            threshold -= 1
        ties = budget - above
    taken = 0
    for i in range(num_candidates):
        v = votes[candidates[i]]
        if v > threshold:
            out[taken] = candidates[i]
            taken += 1
        elif v == threshold and ties > 0:
            out[taken] = candidates[i]
            taken += 1
            ties -= 1
    return taken


@parallel
def vote_per_sample(buckets, codes, capacity, key, votes, candidates, lists):
    """For each sample, the ids found in the most of its L buckets.

    Args:
        buckets: `slide.kernels.buckets.Buckets`.
        codes: ``(L, B)`` int32.
        capacity: bucket capacity.
        key: uint64; decides which table comes first for each sample, hence which ties win.
        votes: ``(T, N)`` uint8 scratch, zero at entry and at exit; T runs of samples go side by
            side.
        candidates: ``(T, L * capacity)`` int32 scratch.
        lists: `Lists` to be written; at entry ``counts`` holds the most ids that each may take.
    """
    num_tables, num_samples = codes.shape
    num_runs = votes.shape[0]
    # Unpacked here: numba loses writes to the fields of a tuple inside a parallel loop.
    out_ids, out_counts = lists.ids, lists.counts
    for run in prange(num_runs):
        count, found = votes[run], candidates[run]
        histogram = np.empty(_MOST_VOTES + 1, np.int64)
        for b in range(run * num_samples // num_runs, (run + 1) * num_samples // num_runs):
            first = random_below(key, b, num_tables)
            num_found = 0
            for i in range(num_tables):
                l = (first + i) % num_tables
                c = codes[l, b]
                start = buckets.starts[l, c]
                for j in range(min(buckets.seen[l, c], capacity)):
                    candidate = buckets.pool[l, start + j]
                    v = count[candidate]
                    if v == 0:
                        found[num_found] = candidate
                        num_found += 1
                    if v < _MOST_VOTES:
                        count[candidate] = v + 1
            out = out_ids[b, : out_counts[b]]
            out_counts[b] = _most_voted(found, num_found, count, histogram, out)
            for i in range(num_found):
                count[found[i]] = 0


@serial
def vote_shared(buckets, codes, capacity, hits, votes, candidates, histogram, out):
    """The ids with the most votes over all samples and tables of a batch.

    A bucket is read once, however many samples fall into it.

    Args:
        codes: ``(L, B)`` int32.
        capacity: bucket capacity.
        hits: ``(C,)`` int32 scratch, zero at entry and exit.
        votes: ``(N,)`` int32 scratch, zero at entry and exit.
        candidates: ``(min(N, L * B * capacity),)`` int32 scratch.
        histogram: ``(L * B + 1,)`` int64 scratch.
        out: ``(budget,)`` int32.

    Returns:
        How many ids were written.
    """
    num_tables, num_samples = codes.shape
    num_found = 0
    for l in range(num_tables):
        for b in range(num_samples):
            hits[codes[l, b]] += 1
        for b in range(num_samples):
            c = codes[l, b]
            weight = hits[c]
            if weight == 0:
                continue
            hits[c] = 0
            start = buckets.starts[l, c]
            for j in range(min(buckets.seen[l, c], capacity)):
                candidate = buckets.pool[l, start + j]
                if votes[candidate] == 0:
                    candidates[num_found] = candidate
                    num_found += 1
                votes[candidate] += weight
    taken = _most_voted(candidates, num_found, votes, histogram, out)
    for i in range(num_found):
        votes[candidates[i]] = 0
    return taken


@serial
def _fill(ids, size, target, num_rows, marks, key, stream):
    """Bring ``ids`` from ``size`` to ``target`` with distinct uniform ids that are not marked."""
    counter = np.int64(stream) << 32
    draws = 0
    limit = _DRAWS_PER_PLACE * (target - size)
    while size < target:
        candidate = random_below(key, counter + draws, num_rows)
        draws += 1
        # Only where nearly all rows are taken: walk on, so that the loop always ends.
        while draws > limit and marks[candidate] == _TAKEN:
            candidate = (candidate + 1) % num_rows
        if marks[candidate] != _TAKEN:
            marks[candidate] = _TAKEN
            ids[size] = candidate
            size += 1


@parallel
def assemble_per_sample(labels, lists, num_rows, key, marks, indptr, ids, num_hard):
    """Active sets of their own: a sample's labels, then its listed ids, then uniform fill.

    Args:
        labels: `slide.sparse.Pattern` of the positive outputs, distinct within a sample.
        lists: `Lists` of distinct ids, best first.
        num_rows: N.
        key: uint64 key of the fill.
        marks: ``(T, N)`` uint8 scratch, zero at entry and at exit.
        indptr: ``(B + 1,)`` int64, the bounds of the sets asked for; each holds at least the
            sample's labels and at most N.
        ids: ``(nnz,)`` int32, written.
        num_hard: ``(B,)`` int64, written: how many of a set's ids are labels or listed.
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
            for i in range(lists.counts[b]):
                if size == len(own):
                    break
                candidate = lists.ids[b, i]
                if mark[candidate] != _TAKEN:
                    mark[candidate] = _TAKEN
                    own[size] = candidate
                    size += 1
            num_hard[b] = size
            _fill(own, size, len(own), num_rows, mark, key, b)
            for i in range(len(own)):
                mark[own[i]] = 0


@serial
def assemble_shared(labels, listed, num_rows, key, marks, slots, ids, positions):
    """One active set for a batch: all its labels, then the listed ids, then uniform fill.

    Args:
        labels: `slide.sparse.Pattern` of the positive outputs.
        listed: ``(n,)`` int32 distinct ids, best first.
        num_rows: N.
        key: uint64 key of the fill.
        marks: ``(N,)`` uint8 scratch, zero at entry and at exit.
        slots: ``(N,)`` int32 scratch, all -1 at entry and at exit.
        ids: ``(size,)`` int32, written; at least as long as there are distinct labels.
        positions: ``(number of labels,)`` int32, written: where in ``ids`` each label stands.

    Returns:
        How many of the ids are labels or listed.
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
    for i in range(len(listed)):
        if size == len(ids):
            break
        if marks[listed[i]] != _TAKEN:
            marks[listed[i]] = _TAKEN
            ids[size] = listed[i]
            size += 1
    num_hard = size
    _fill(ids, size, len(ids), num_rows, marks, key, 0)
    for i in range(len(ids)):
        marks[ids[i]] = 0
        slots[ids[i]] = -1
    return num_hard


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
def stratified_log_weights(indptr, num_hard, num_rows, out):
    """Write 0 for a set's labels and listed ids, log((N - |S|) / m) for its m uniform ones.

    With these weights sums over a set estimate sums over all N rows without bias, whatever the
    listed ids S are (stratified sampling).
    """
    for b in prange(len(num_hard)):
        begin, end = indptr[b], indptr[b + 1]
        middle = begin + num_hard[b]
        for p in range(begin, middle):
            out[p] = 0
        if middle < end:
            log_weight = np.log((num_rows - num_hard[b]) / (end - middle))
            for p in range(middle, end):
                out[p] = log_weight
