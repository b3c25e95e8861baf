"""Votes of each sample: which ids occur in the most of its buckets."""

from typing import NamedTuple

import numpy as np

from slide.ops.kernels.compile import parallel, prange, serial
from slide.ops.kernels.prefetch import ask_for
from slide.ops.kernels.random import random_below

# In the scratch of a sample's votes.
_MOST_VOTES = 254


class RankedIds(NamedTuple):
    """The best ids of each sample; their order is that of their maker.

    Attributes:
        ids: ``(B, most)`` int32.
        counts: ``(B,)`` int64; the first ``counts[b]`` ids of row b count.
    """

    ids: np.ndarray
    counts: np.ndarray


@serial
def _most_voted(candidates, votes, histogram, out):
    """Copy the ids with the most votes to ``out``, as many as it holds; return how many.

    ``votes`` are those of the candidates. Ties at the threshold are broken by order of arrival.
    ``histogram`` is scratch, as long as the most votes possible plus one.
    """
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


@serial
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

    Args:
        buckets: `slide.ops.kernels.buckets.Buckets`.
        codes: ``(P * L, B)`` int32: of P buckets in each table, the nearest of each table first.
        capacity: bucket capacity.
        key: uint64; decides which table comes first for each sample, hence which ties win.
        votes: ``(T, N)`` uint8 scratch, zero at entry and at exit; T runs of samples go side by
            side.
        candidates: ``(T, P * L * capacity)`` int32 scratch.
        ranked: `RankedIds`, written; at entry ``counts`` holds the most ids that each may take.
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
