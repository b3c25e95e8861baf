"""Votes of a batch: which ids occur in the most buckets, added up over its samples."""

from typing import NamedTuple

import numpy as np

from slide.kernels.compile import parallel, prange, serial
from slide.kernels.prefetch import ask_for
from slide.kernels.random import random_below

# Votes are counted by so many spans of ids.
PARTS = 64


class SharedScratch(NamedTuple):
    """Scratch of `vote_shared` for L tables of C buckets and T runs side by side.

    Each of B samples looks at P buckets of each table.

    Attributes:
        hits: ``(L, C)`` int32, zero at entry and at exit.
        votes: ``(T, span)`` int32, zero at entry and at exit; span is the power of two of which
            `PARTS` cover all N ids.
        buckets, weights: ``(L, P * B)`` int32: distinct buckets, and how many samples are in each.
        cursors: ``(L, PARTS)`` int64.
        ids, ballots: int32, room for the ids of ``min(P * B, C)`` buckets of each table.
        histogram: ``(T, L * P * B + 1)`` int64: so many votes can an id have.
    """

    hits: np.ndarray
    votes: np.ndarray
    buckets: np.ndarray
    weights: np.ndarray
    cursors: np.ndarray
    ids: np.ndarray
    ballots: np.ndarray
    histogram: np.ndarray


@serial
def _log2(power):
    shift = 0
    while (1 << shift) < power:
        shift += 1
    return shift


@parallel
def _collect(buckets, codes, capacity, scratch):
    """Copy the buckets that a batch falls into, each id with its weight, grouped by span of ids.

    Within a span they stand table by table. Returns the spans' bounds ``(PARTS + 1,)``.
    """
    num_tables, num_samples = buckets.starts.shape[0], codes.shape[1]
    probes = codes.shape[0] // num_tables
    shift = _log2(scratch.votes.shape[1])
    cursors, all_ids, all_ballots = scratch.cursors, scratch.ids, scratch.ballots
    num_distinct = np.zeros(num_tables, np.int64)
    for l in prange(num_tables):
        hits, chosen, weights = scratch.hits[l], scratch.buckets[l], scratch.weights[l]
        counts = cursors[l]
        counts[:] = 0
        for i in range(probes * num_samples):
            hits[codes[l + i // num_samples * num_tables, i % num_samples]] += 1
        distinct = 0
        for i in range(probes * num_samples):
            c = codes[l + i // num_samples * num_tables, i % num_samples]
            if hits[c] == 0:
                continue
            chosen[distinct], weights[distinct] = c, hits[c]
            hits[c] = 0
            distinct += 1
            start = buckets.starts[l, c]
            for j in range(0, min(buckets.seen[l, c], capacity), 64 // 4):
                ask_for(buckets.pool, l * buckets.pool.shape[1] + start + j)
        for i in range(distinct):
            c = chosen[i]
            start = buckets.starts[l, c]
            for j in range(min(buckets.seen[l, c], capacity)):
                counts[buckets.pool[l, start + j] >> shift] += 1
        num_distinct[l] = distinct
    bounds = np.empty(PARTS + 1, np.int64)
    end = np.int64(0)
    for part in range(PARTS):
        bounds[part] = end
        for l in range(num_tables):
            count = cursors[l, part]
            cursors[l, part] = end
            end += count
    bounds[PARTS] = end
    for l in prange(num_tables):
        places = cursors[l]
        for i in range(num_distinct[l]):
            c = scratch.buckets[l, i]
            start = buckets.starts[l, c]
            for j in range(min(buckets.seen[l, c], capacity)):
                candidate = buckets.pool[l, start + j]
                part = candidate >> shift
                all_ids[places[part]] = candidate
                all_ballots[places[part]] = scratch.weights[l, i]
                places[part] += 1
    return bounds


@parallel
def _count(bounds, scratch):
    """Add up the ballots of each id, in place; return how many ids each span has.

    Spans are small enough for their votes to stay in cache, however many ids there are.
    """
    all_votes, all_histograms = scratch.votes, scratch.histogram
    num_runs, span = all_votes.shape
    found = np.zeros(PARTS, np.int64)
    for run in prange(num_runs):
        votes, histogram = all_votes[run], all_histograms[run]
        histogram[:] = 0
        for part in range(run * PARTS // num_runs, (run + 1) * PARTS // num_runs):
            ids = scratch.ids[bounds[part] : bounds[part + 1]]
            ballots = scratch.ballots[bounds[part] : bounds[part + 1]]
            first = part * span
            distinct = 0
            for i in range(len(ids)):
                place = ids[i] - first
                if votes[place] == 0:
                    ids[distinct] = ids[i]
                    distinct += 1
                votes[place] += ballots[i]
            for i in range(distinct):
                v = votes[ids[i] - first]
                votes[ids[i] - first] = 0
                ballots[i] = v
                histogram[v] += 1
            found[part] = distinct
    return found


@serial
def _threshold(histogram, budget):
    """The number of votes above which all ids fit, the places left for ties, and their number."""
    total = np.int64(0)
    for run in range(1, len(histogram)):
        for v in range(histogram.shape[1]):
            histogram[0, v] += histogram[run, v]
    threshold = histogram.shape[1] - 1
    while threshold > 0 and total + histogram[0, threshold] <= budget:
        total += histogram[0, threshold]
        threshold -= 1
    return threshold, budget - total, histogram[0, threshold]


@parallel
def _elect(bounds, found, threshold, scratch):
    """Separate the ids above the threshold from the ties, span by span.

    In each span, ids with more votes than the threshold move to the front of its ids, and ids with
    as many votes as the threshold to the front of its ballots. Returns how many there are of both,
    ``(2, PARTS)``.
    """
    all_ids, all_ballots = scratch.ids, scratch.ballots
    counts = np.zeros((2, PARTS), np.int64)
    for part in prange(PARTS):
        ids = all_ids[bounds[part] : bounds[part] + found[part]]
        ballots = all_ballots[bounds[part] : bounds[part] + found[part]]
        above = ties = 0
        for i in range(len(ids)):
            candidate, v = ids[i], ballots[i]
            if v > threshold:
                ids[above] = candidate
                above += 1
            elif v == threshold:
                ballots[ties] = candidate
                ties += 1
        counts[0, part], counts[1, part] = above, ties
    return counts


@serial
def _gather(bounds, counts, places, ties, key, scratch, out):
    """Write the elected ids, and of the ties as many as there are places; return how many."""
    taken = 0
    for part in range(PARTS):
        for i in range(bounds[part], bounds[part] + counts[0, part]):
            out[taken] = scratch.ids[i]
            taken += 1
        for i in range(bounds[part], bounds[part] + counts[1, part]):
            candidate = scratch.ballots[i]
            # Any `places` of the ties with equal probability (Knuth, algorithm S).
            if random_below(key, candidate, ties) < places:
                out[taken] = candidate
                taken += 1
                places -= 1
            ties -= 1
    return taken


def vote_shared(buckets, codes, capacity, key, scratch, out):
    """The ids with the most votes over all samples and tables of a batch.

    A bucket is read once, however many samples fall into it. Ties at the threshold are drawn.

    Args:
        buckets: `slide.kernels.buckets.Buckets`.
        codes: ``(P * L, B)`` int32: of P buckets in each table.
        capacity: bucket capacity.
        key: uint64 key of the draws.
        scratch: `SharedScratch`.
        out: ``(budget,)`` int32.

    Returns:
        How many ids were written.
    """
    bounds = _collect(buckets, codes, capacity, scratch)
    found = _count(bounds, scratch)
    threshold, places, ties = _threshold(scratch.histogram, len(out))
    counts = _elect(bounds, found, threshold, scratch)
    return _gather(bounds, counts, places, ties, key, scratch, out)
