"""Votes of each sample: which ids occur in the most of its buckets."""

from typing import NamedTuple

import numpy as np

from slide.kernels.compile import parallel, prange, serial
from slide.kernels.random import random_below

# In the scratch of a sample's votes.
_MOST_VOTES = 254


class RankedIds(NamedTuple):
    """Ids of each sample, best first.

    Attributes:
        ids: ``(B, most)`` int32.
        counts: ``(B,)`` int64; the first ``counts[b]`` ids of row b count.
    """

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
def vote_per_sample(buckets, codes, capacity, key, votes, candidates, ranked):
    """For each sample, the ids found in the most of its L buckets.

    Args:
        buckets: `slide.kernels.buckets.Buckets`.
        codes: ``(L, B)`` int32.
        capacity: bucket capacity.
        key: uint64; decides which table comes first for each sample, hence which ties win.
        votes: ``(T, N)`` uint8 scratch, zero at entry and at exit; T runs of samples go side by
            side.
        candidates: ``(T, L * capacity)`` int32 scratch.
        ranked: `RankedIds`, written; at entry ``counts`` holds the most ids that each may take.
    """
    num_tables, num_samples = codes.shape
    num_runs = votes.shape[0]
    # Unpacked here: numba loses writes to the fields of a tuple inside a parallel loop.
    out_ids, out_counts = ranked.ids, ranked.counts
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
