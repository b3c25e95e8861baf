"""The choice of active sets: ids by votes and by scores, and sets of them.

In torch, uniform ids are those of the kernels, unless a set is above a quarter of all outputs.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from slide.ops.compile import (
    AHEAD,
    AHEAD_ENTRIES,
    ask_for,
    helper,
    parallel,
    prange,
    prefetch_row,
    serial,
)
from slide.ops.products import first_of_equal
from slide.ops.ragged import sorted_order
from slide.ops.random import random_below, torch_random_below, torch_random_keys

# 254 votes at most in a byte of scratch, whose 255 marks an id of the set.
_MOST_VOTES = 254
# 255 in the scratch of marks: this id is in the set already.
_TAKEN = 255
# 64 rejected draws for each id that is wanting, before the fill goes through all ids.
_DRAWS_PER_PLACE = 64
# If a set may hold more than this share of all rows, draws would often hit rows that it holds.
_SHARE = 4


class RankedIds(NamedTuple):
    """The best ids of each sample; their order is that of their maker.

    ids (B, most) int32; counts (B,) int64.
    """

    ids: np.ndarray
    counts: np.ndarray


@helper
def _most_voted(candidates, votes, histogram, out):
    """Copy the ids with the most votes to ``out``, as many as it holds; return how many."""
    budget = len(out)
    if budget == 0:
        return 0
    if len(candidates) <= budget:
        threshold, ties = 0, 0
    else:
        histogram[:] = 0
        for i in range(len(candidates)):
            histogram[votes[i]] += 1
        threshold = len(histogram) - 1
        above = 0
        while above + histogram[threshold] <= budget:
            above += histogram[threshold]
            threshold -= 1
        ties = budget - above
    taken = 0
    for i in range(len(candidates)):
        if votes[i] > threshold:
            out[taken] = candidates[i]
            taken += 1
        elif votes[i] == threshold and ties > 0:
            out[taken] = candidates[i]
            taken += 1
            ties -= 1
    return taken


@helper
def _ask_for_buckets(buckets, codes, capacity, b):
    """Request the buckets of sample b."""
    num_tables, size = buckets.starts.shape[0], buckets.pool.shape[1]
    for i in range(codes.shape[0]):
        l, c = i % num_tables, codes[i, b]
        for j in range(0, min(buckets.seen[l, c], capacity), 64 // 4):
            ask_for(buckets.pool, l * size + buckets.starts[l, c] + j)


@parallel
def vote_per_sample(buckets, codes, capacity, key, votes, candidates, ranked):
    """For each sample, the ids found in the most of its buckets.

    buckets `hashing.Buckets`; codes (P * L, B) int32, the nearest of each table first; capacity;
    key uint64; votes (T, N) uint8 scratch, zero at entry and at exit; candidates (T, P * L *
    capacity) int32 scratch; ranked `RankedIds`, written: at entry `counts` holds the most ids that
    each may take. The key decides which table comes first for each sample, hence which ties win.
    """
    num_tables, num_samples = buckets.starts.shape[0], codes.shape[1]
    num_runs = votes.shape[0]
    # Unpacked here: numba loses writes to the fields of a tuple inside a parallel loop.
    out_ids, out_counts = ranked.ids, ranked.counts
    for run in prange(num_runs):
        count, found = votes[run], candidates[run]
        histogram = np.empty(_MOST_VOTES + 1, np.int64)
        tallies = np.empty(len(found), np.uint8)
        last = (run + 1) * num_samples // num_runs
        for b in range(run * num_samples // num_runs, last):
            if b + 1 < last:
                _ask_for_buckets(buckets, codes, capacity, b + 1)
            first = random_below(key, b, num_tables)
            num_found = 0
            for i in range(codes.shape[0]):
                l = (first + i) % num_tables
                c = codes[i - i % num_tables + l, b]
                start = buckets.starts[l, c]
                length = min(buckets.seen[l, c], capacity)
                for j in range(length):
                    ask_for(count, buckets.pool[l, start + j])
                for j in range(length):
                    candidate = buckets.pool[l, start + j]
                    v = count[candidate]
                    if v == 0:
                        found[num_found] = candidate
                        num_found += 1
                    if v < _MOST_VOTES:
                        count[candidate] = v + 1
            out = out_ids[b, : out_counts[b]]
            for i in range(num_found):
                tallies[i] = count[found[i]]
                count[found[i]] = 0
            out_counts[b] = _most_voted(found[:num_found], tallies, histogram, out)


@parallel
def best_of_lists(ranked, labels, vectors, rows, bias, out):
    """Of each sample's ids those with the largest ``<vector, row> + bias``, without its labels.

    ranked `RankedIds` of B samples; labels: B rows of ids that do not count; vectors (B, D) floats;
    rows (N, D) floats; bias (N,) floats, or empty for none; out (B, best) int32, written: the best
    first, of equal scores the first id, -1 after the last. A score that is NaN does not count.
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
            position = count - 1
            while position > 0 and total > scores[position - 1]:
                scores[position], best[position] = scores[position - 1], best[position - 1]
                position -= 1
            scores[position], best[position] = total, ids[j]


@helper
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
    # S): each free id is taken with the share of free ids that are still needed.
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


@helper
def _stratify(num_known, num_rows, log_weights):
    """Write 0 for a set's labels and proposed ids, log((N - |S|) / m) for its m uniform ones.

    With these weights sums over a set estimate sums over all N rows without bias, whatever the
    proposed ids S are (stratified sampling).
    """
    for i in range(num_known):
        log_weights[i] = 0
    if num_known < len(log_weights):
        log_weight = np.log((num_rows - num_known) / (len(log_weights) - num_known))
        for i in range(num_known, len(log_weights)):
            log_weights[i] = log_weight


@parallel
def assemble_per_sample(
    labels, proposed, num_rows, key, group, marks, indptr, ids, num_known, log_weights
):
    """One active set for each sample: its labels, then its proposed ids, then uniform fill.

    labels `Pattern`, proposed `RankedIds`, distinct in a sample; marks (T, N) uint8 scratch of
    zeros; indptr (B + 1,) int64 bounds of the sets; ids (nnz,) int32, num_known (B,) int64, labels
    and proposed ids of a set, log_weights (nnz,) float32, or empty for none, written.

    Each ``group`` of neighbouring samples goes through one sequence of draws, and each sample
    leaves out the ids that it has: its set has the same distribution as with draws of its own.
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
            _fill(own, num_known[b], len(own), num_rows, mark, key, np.int64(b // group))
            for i in range(len(own)):
                mark[own[i]] = 0
            if len(log_weights) > 0:
                _stratify(num_known[b], num_rows, log_weights[indptr[b] : indptr[b + 1]])


@parallel
def assemble_groups(
    labels,
    order,
    bounds,
    proposed,
    num_rows,
    key,
    marks,
    slots,
    indptr,
    ids,
    positions,
    num_known,
    log_weights,
):
    """One active set for each group of samples: its labels, then proposed ids, then uniform fill.

    labels `Pattern` of B samples; order (B,) int64, the samples, group after group; bounds (S + 1,)
    int64, where each group begins there; proposed (S, M) int32, -1: none; marks (T, N) uint8
    scratch of zeros; slots (T, N) int32 scratch; indptr (S + 1,) int64 bounds of the sets; ids (n,)
    int32, positions of the labels in their sets, num_known (S,) int64, how many ids of a set are
    labels or proposed, log_weights (n,) float32, or empty for none, written.
    """
    num_runs, num_sets = marks.shape[0], len(indptr) - 1
    for run in prange(num_runs):
        mark, slot = marks[run], slots[run]
        for s in range(run * num_sets // num_runs, (run + 1) * num_sets // num_runs):
            own = ids[indptr[s] : indptr[s + 1]]
            size = np.int64(0)
            for i in range(bounds[s], bounds[s + 1]):
                for p in range(labels.indptr[order[i]], labels.indptr[order[i] + 1]):
                    label = labels.indices[p]
                    if mark[label] != _TAKEN:
                        mark[label] = _TAKEN
                        slot[label] = size
                        own[size] = label
                        size += 1
                    positions[p] = slot[label]
            for i in range(proposed.shape[1]):
                candidate = proposed[s, i]
                if candidate >= 0 and size < len(own) and mark[candidate] != _TAKEN:
                    mark[candidate] = _TAKEN
                    own[size] = candidate
                    size += 1
            num_known[s] = size
            _fill(own, num_known[s], len(own), num_rows, mark, key, np.int64(s))
            for i in range(len(own)):
                mark[own[i]] = 0
            if len(log_weights) > 0:
                _stratify(num_known[s], num_rows, log_weights[indptr[s] : indptr[s + 1]])


@parallel
def repeat_sets(set_of, set_indptr, indptr, sets, out):
    """Write the set ``set_of[b]`` of each sample b, whose bounds in ``out`` are ``indptr``."""
    for b in prange(len(set_of)):
        shift = set_indptr[set_of[b]] - indptr[b]
        for p in range(indptr[b], indptr[b + 1]):
            out[p] = sets[p + shift]


@serial
def similar_order(projections, levels):
    """Samples in an order in which similar ones are neighbours: the leaves of a random tree.

    projections (B, levels) float32, of samples on random directions. At each level a run of samples
    is split at the median of a direction (Dasgupta and Freund 2008, "Random projection trees and
    low dimensional manifolds"). Returns ``(B,)`` int64.
    """
    count = len(projections)
    order = np.arange(count)
    for level in range(levels):
        for part in range(1 << level):
            begin, end = part * count >> level, (part + 1) * count >> level
            run = order[begin:end]
            order[begin:end] = run[sorted_order(projections[run, level])]
    return order


def torch_assemble(
    labels: Tensor,
    proposed: Tensor,
    sizes: Tensor,
    width: int,
    num_rows: int,
    key: int,
    group: int,
) -> tuple[Tensor, Tensor]:
    """Sets of distinct ids: labels, then proposed ids, then uniform fill by ``key``.

    labels (B, P), proposed (B, M) int32, distinct within a set; sizes (B,) int64, at most width;
    group: number of samples with the same draws. Returns ids ``(B, width)`` int32, of which the
    first ``sizes[b]`` count, and how many of them are labels or proposed.
    """
    known = torch.cat([labels, proposed], 1)
    streams = torch.arange(len(known), device=known.device) // group
    queue = torch.cat([known, _uniform(streams, width, num_rows, key)], 1)
    kept = first_in_queue(queue) & (queue >= 0)
    front = kept.logical_not().byte().argsort(dim=1, stable=True)[:, :width]
    num_known = kept[:, : known.shape[1]].sum(1).minimum(sizes)
    return queue.gather(1, front), num_known


def first_in_queue(queue: Tensor) -> Tensor:
    """Whether each entry of ``(B, n)`` is the first of its value in its row; bool."""
    values, order = queue.sort(dim=1, stable=True)
    return torch.empty_like(queue, dtype=torch.bool).scatter_(1, order, first_of_equal(values))


def _uniform(streams: Tensor, width: int, num_rows: int, key: int) -> Tensor:
    """Uniform ids ``(B, n)`` int32 of streams ``(B,)``.

    Fewer than ``width`` of them are new once in 10^10 sets.
    """
    starts, device = streams[:, None] << 32, streams.device
    if num_rows <= _SHARE * width:
        keys = torch_random_keys(key, starts + torch.arange(num_rows, device=device))
        return keys.argsort(1).int()
    draws = torch.arange(width + width // 2 + 64, device=device)
    return torch_random_below(key, starts + draws, num_rows).int()


@serial
def count_distinct(labels, order, bounds, marks, out):
    """Write how many different labels each group of samples has; see `assemble_groups`.

    marks (N,) uint8 is zero at entry and exit; out (S,) int64.
    """
    for s in range(len(out)):
        out[s] = 0
        for i in range(bounds[s], bounds[s + 1]):
            for p in range(labels.indptr[order[i]], labels.indptr[order[i] + 1]):
                if marks[labels.indices[p]] == 0:
                    marks[labels.indices[p]] = 1
                    out[s] += 1
        for i in range(bounds[s], bounds[s + 1]):
            for p in range(labels.indptr[order[i]], labels.indptr[order[i] + 1]):
                marks[labels.indices[p]] = 0


def torch_stratified_log_weights(
    num_known: Tensor, sizes: Tensor, width: int, num_rows: int
) -> Tensor:
    """``(B, width)`` float32: 0 for known ids, log((N - |S|) / m) for the m uniform ones."""
    positions = torch.arange(width, device=sizes.device)
    weight = ((num_rows - num_known) / (sizes - num_known)).log().float()
    return torch.where(positions < num_known[:, None], 0, weight[:, None])
