"""Base scorers of the re-ranker, beside the linear classifiers.

They are the co-occurrence of features and labels, the labels of analogous queries, which differ in
one feature, ridge regressions of each item on the items that are most often with it, and votes of
nearest neighbours. Behind them are ranking features that follow from scores and lists.
"""

from typing import NamedTuple

import numpy as np

from slide.ops.compile import helper, parallel, prange, prefetch_entries
from slide.ops.largest import add_to_sum, best_first, leave_out, replace_least
from slide.ops.ragged import shorten, sorted_order

# Fewer ids than this are sorted by comparing them; of more, that takes most of the time.
_FEW_IDS = 64


@helper
def _sort_ids(ids, limit, spare):
    """Sort ids in ``[0, limit)`` by two digits of a base that is about the root of ``limit``."""
    bits = 1
    while 1 << 2 * bits < limit:
        bits += 1
    starts = np.zeros((2, 1 << bits), np.int32)
    for n in ids:
        starts[0, n & len(starts[0]) - 1] += 1
        starts[1, n >> bits] += 1
    for digit in range(2):
        shift, total = digit * bits, np.int32(0)
        for i in range(len(starts[digit])):
            starts[digit, i], total = total, total + starts[digit, i]
        source, target = (ids, spare) if digit == 0 else (spare, ids)
        for i in range(len(ids)):
            n = source[i]
            at = n >> shift & len(starts[digit]) - 1
            target[starts[digit, at]] = n
            starts[digit, at] += 1


@helper
def _put_counts(ids, sums, spare, found, f, room):
    """Move the counts of some ids to row ``f`` of ``found``, the largest if they are too many."""
    begin, size = found.starts[f], min(len(ids), room)
    if len(ids) < _FEW_IDS:
        ids.sort()
    else:
        _sort_ids(ids, len(sums), spare)
    counts = np.empty(len(ids), np.float32)
    for i in range(len(ids)):
        counts[i], sums[ids[i]] = sums[ids[i]], 0
    columns, values = found.columns[begin : begin + size], found.values[begin : begin + size]
    if size < len(ids):
        shorten(ids, counts, columns, values)
    else:
        for i in range(size):
            columns[i], values[i] = ids[i], counts[i]
    found.counts[f] = size


@parallel
def count_labels(rows, labels, longest, sums, touched, found):
    """The labels of each feature, with the numbers of rows that have both.

    rows `Pattern` of each feature; labels `Pattern` of all rows, in [0, N); repeated ones
    count again; the longest labels with the most rows are kept of a feature; sums (T, N) int32
    scratch, zero before and after; touched (T, N + 1) int32 scratch; found `RowRoom` of n features,
    output.
    """
    threads = len(sums)
    for t in prange(threads):
        total, seen, spare = sums[t], touched[t], np.empty_like(touched[t])
        # Strided, because neighbours often have as many rows.
        for f in range(t, len(rows.indptr) - 1, threads):
            count = 0
            for p in range(rows.indptr[f], rows.indptr[f + 1]):
                row = rows.indices[p]
                for q in range(labels.indptr[row], labels.indptr[row + 1]):
                    n = labels.indices[q]
                    # Without branches, because a processor cannot foretell what is new.
                    seen[count] = n
                    count += total[n] == 0
                    total[n] += 1
            _put_counts(seen[:count], total, spare, found, f, longest)


@helper
def number_candidates(ids, position):
    """Write where each candidate of a row lies among the candidates that are there, from 1 on."""
    last = 0
    for label in ids:
        if label >= 0:
            last += 1
            position[label] = last


@helper
def forget_candidates(ids, position):
    """Write zeros where `number_candidates` has written."""
    for label in ids:
        if label >= 0:
            position[label] = 0


@parallel
def relate_candidates(features, lists, unseen, shares, ids, starts, positions, found):
    """What the features of a row say of each of its candidates.

    features `CSR` (B, D); lists `CSR` (D, N); unseen (D,) float32, above 0; shares (N,) float32,
    above 0; ids (B, K) int64, each number once in a row; starts (B + 1,) int64, where the
    candidates of each row begin in found; positions (T, N) int32 scratch, zero before and after;
    found (pairs, 3) float32 output.
    """
    threads = len(positions)
    for t in prange(threads):
        position = positions[t]
        for b in range(t, len(ids), threads):
            begin, end = features.indptr[b], features.indptr[b + 1]
            nothing = np.float64(0)  # Logarithm of the factor of a label that no feature had.
            for p in range(begin, end):
                nothing += np.log(unseen[features.indices[p]])
            out = found[starts[b] : starts[b + 1]]
            logs = np.empty(len(out), np.float64)  # Of thousands of features the sum is large.
            number_candidates(ids[b], position)
            for label in ids[b]:
                if label >= 0:
                    i = position[label] - 1
                    out[i, 0] = out[i, 1] = 0
                    logs[i] = np.log(shares[label]) + nothing
            for p in range(begin, end):
                f, value = features.indices[p], features.values[p]
                for q in range(lists.indptr[f], lists.indptr[f + 1]):
                    label, share = lists.indices[q], lists.values[q]
                    i = position[label] - 1
                    if i >= 0:
                        out[i, 0] += value * share
                        out[i, 1] = max(out[i, 1], share)
                        logs[i] += np.log1p(share / (unseen[f] * shares[label]))
            out[:, 2] = logs
            forget_candidates(ids[b], position)


class Questions(NamedTuple):
    """Training rows, listed by all of their features but one.

    indptr (G + 1,) int64, where the entries of each group of other features begin; features (nnz,)
    int32, the features that rows have beside a group, ascending in it; rows (nnz,) int32, their
    rows.
    """

    indptr: np.ndarray
    features: np.ndarray
    rows: np.ndarray


@helper
def _first_at_least(sorted_ids, begin, end, wanted):
    """The first position in ``[begin, end)`` with a number of at least ``wanted``, or ``end``."""
    while begin < end:
        middle = (begin + end) // 2
        if sorted_ids[middle] < wanted:
            begin = middle + 1
        else:
            end = middle
    return begin


@helper
def _add_answers(labels, row, weight, position, sums, out):
    """Add the weight of a similar question to the sums of the candidates that are its answers."""
    for p in range(labels.indptr[row], labels.indptr[row + 1]):
        i = position[labels.indices[p]] - 1
        if i >= 0:
            sums[i] += weight
            out[i, 1] = max(out[i, 1], weight)


@helper
def _ask_beside(group, feature, similar, questions, labels, position, sums, out):
    """Ask all questions that have a similar feature beside a group, and add up their weights."""
    others, rows, total = questions.features, questions.rows, np.float32(0)
    begin, end = questions.indptr[group], questions.indptr[group + 1]
    first, last = similar.indptr[feature], similar.indptr[feature + 1]
    if last - first < end - begin:  # The numbers of the shorter list are looked up in the other.
        for i in range(first, last):
            entry = _first_at_least(others, begin, end, similar.indices[i])
            while entry < end and others[entry] == similar.indices[i]:
                _add_answers(labels, rows[entry], similar.values[i], position, sums, out)
                total += similar.values[i]
                entry += 1
    else:
        for entry in range(begin, end):
            i = _first_at_least(similar.indices, first, last, others[entry])
            if i < last and similar.indices[i] == others[entry]:
                _add_answers(labels, rows[entry], similar.values[i], position, sums, out)
                total += similar.values[i]
    return total


@parallel
def ask_similar(features, groups, similar, questions, labels, ids, starts, positions, found):
    """What the answers to similar questions say of each candidate.

    features `CSR` (B, D); groups (nnz,) int64, for each entry the group of the other features of
    its row in questions; similar `CSR` (D, D); questions `Questions`; labels `Pattern` of their
    rows; ids (B, K) int64, each number once in a row; starts (B + 1,) int64, where the candidates
    of each row begin in found; positions (T, N) int32 scratch, zero before and after; found (pairs,
    2) float32 output, zero before.
    """
    threads = len(positions)
    for t in prange(threads):
        position = positions[t]
        for b in range(t, len(ids), threads):
            out = found[starts[b] : starts[b + 1]]
            number_candidates(ids[b], position)
            sums = np.empty(len(out), np.float32)
            for p in range(features.indptr[b], features.indptr[b + 1]):
                if groups[p] < 0:
                    continue
                sums[:] = 0
                feature = features.indices[p]
                where = groups[p], feature, similar
                total = _ask_beside(*where, questions, labels, position, sums, out)
                if total > 0:
                    for i in range(len(out)):
                        out[i, 0] += sums[i] / total
            forget_candidates(ids[b], position)


# Added to the number of rows of an item, so that rare ones do not seem close.
_PRIOR = np.float32(5)
# Passes over weights end with one that changes none by more than a hundred-thousandth of the first
# largest change: sums in float32 are no more exact.
_SETTLED = np.float32(1e-5)
# 256 entries of the next list are requested, 2 KB: all of it where there are many items.
_MOST_REQUESTED = 256


@helper
def _closest(lists, counts, n, num_features, close):
    """Put the items closest to item ``n`` into ``close``, ascending; returns their number."""
    begin, end = lists.indptr[n], lists.indptr[n + 1]
    items, scores, found = np.empty(end - begin, np.int32), np.empty(end - begin, np.float32), 0
    for p in range(begin, end):
        item = lists.indices[p]
        items[found] = item
        scores[found] = lists.values[p] / np.sqrt(counts[item] + _PRIOR)
        found += item != n and item < num_features
    size = min(found, len(close))
    if size < found:
        shorten(items[:found], scores[:found], close, np.empty(size, np.float32))
    else:
        close[:size] = items[:size]
    return size


@helper
def _solve(gram, right, sweeps, weights):
    """Solve ``gram @ weights = right`` by passes over the weights; returns whether they settle."""
    left = right[1 : len(weights) + 1].copy()  # What is left of the right side.
    weights[:] = 0
    first, change = np.float32(0), np.float32(0)
    for sweep in range(sweeps):
        change = np.float32(0)
        for i in range(len(weights)):
            own = gram[i + 1, 1:]
            step = left[i] / own[i]
            weights[i] += step
            change = max(change, abs(step))
            for j in range(len(left)):
                left[j] -= step * own[j]
        if sweep == 0:
            first = change
        elif change <= _SETTLED * first:
            break
    return change <= first  # Not if they are infinite.


@helper
def _dominate(gram, size):
    """Enlarge the diagonal so that passes over the weights settle."""
    for i in range(1, size + 1):
        total = np.float32(1)
        for j in range(1, size + 1):
            total += gram[i, j] if j != i else np.float32(0)
        gram[i, i] = max(gram[i, i], total)


@helper
def _fill_gram(lists, counts, n, items, penalty, position, gram, right):
    """Sums of products of ``items`` with each other and with item ``n``, from position 1 on."""
    size = len(items)
    for i in range(size):
        position[items[i]] = i + 1
        gram[i + 1, : size + 1] = 0
    for p in range(lists.indptr[n], lists.indptr[n + 1]):
        right[position[lists.indices[p]]] = lists.values[p]
    for i in range(size):
        if i + 1 < size:  # Lists are far from each other; of long ones the begin is enough.
            begin = lists.indptr[items[i + 1]]
            end = min(begin + _MOST_REQUESTED, lists.indptr[items[i + 1] + 1])
            prefetch_entries(lists.indices, begin, end)
            prefetch_entries(lists.values, begin, end)
        own = gram[i + 1]
        for p in range(lists.indptr[items[i]], lists.indptr[items[i] + 1]):
            own[position[lists.indices[p]]] = lists.values[p]
    for i in range(1, size + 1):
        for j in range(1, i):  # A shortened list may lack what the other one has.
            gram[i, j] = gram[j, i] = max(gram[i, j], gram[j, i])
        gram[i, i] = counts[items[i - 1]] + penalty
    for i in range(size):
        position[items[i]] = 0


@helper
def _put_weights(items, gram, right, sweeps, found, row):
    """Write the weights of ``items`` into a row of ``found``."""
    begin, end = found.starts[row], found.starts[row] + len(items)
    found.counts[row], found.columns[begin:end] = len(items), items
    if not _solve(gram, right, sweeps, found.values[begin:end]):
        # Of shortened lists the products may be products of no rows: then they have no solution.
        _dominate(gram, len(items))
        _solve(gram, right, sweeps, found.values[begin:end])


@parallel
def regress_items(
    lists, counts, first, num_features, penalty, sweeps, positions, close, gram, found
):
    """Regress items on the items that are most often with them, by squared error and |w|^2.

    lists `CSR` (N, N); counts (N,) int64, the number of rows of each item; first: the first item
    that is regressed; num_features: items from here on have no weights; penalty: factor of |w|^2;
    sweeps: number of passes over the weights of an item; positions (T, N) uint8 scratch, zero
    before and after; close (T, K) int32 scratch, K < 256; gram (T, K + 1, K + 1) float32
    scratch; found
    `RowRoom` of the items from first on, output.
    """
    threads = len(positions)
    for t in prange(threads):
        right = np.empty(close.shape[1] + 1, np.float32)
        # Strided, because neighbours often have as many rows.
        for row in range(t, len(found.starts), threads):
            n = first + row
            size = _closest(lists, counts, n, num_features, close[t])
            items = close[t, :size]
            _fill_gram(lists, counts, n, items, penalty, positions[t], gram[t], right)
            _put_weights(items, gram[t], right, sweeps, found, row)


@parallel
def shrunk_cosines(lists, counts, shrink, cosines, shared):
    """Cosines of items, smaller where few rows have them, and numbers of rows that have both.

    lists `CSR` of N items, the items of the same rows and the number of shared rows; counts (N,)
    int64, the number of rows of each item; shrink float32: number of rows that is added; cosines,
    shared (entries,) float32 output, 0 for an item and itself.
    """
    for n in prange(len(counts)):
        for p in range(lists.indptr[n], lists.indptr[n + 1]):
            item = lists.indices[p]
            length = np.sqrt(np.float32(counts[n])) * np.sqrt(np.float32(counts[item])) + shrink
            shared[p] = np.float32(0) if item == n else lists.values[p]
            cosines[p] = shared[p] / max(length, np.float32(1e-9))


@helper
def _put_ranks(values, out):
    """The rank of each value, 0 for the largest; of equal ones the first is the better one."""
    order = sorted_order(-values)
    for rank in range(len(order)):
        out[order[rank]] = rank


@parallel
def rank_scores(starts, derived, columns):
    """Numbers of candidates that follow from their scores within a row.

    starts (B + 1,) int64, where the candidates of each row begin in columns; derived (S, 4) int64,
    for each scorer the columns of its score, of what it lacks to the best one, of its rank, of the
    best score (0 if not finite), -1: none; columns (C, F) float32 with the scores, output.
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
    """The values of candidates in lists of labels; 0 where a list lacks the candidate.

    ids (B, K) int64 candidates; starts (B + 1,) int64, where the candidates of each row begin in
    found; listed (B, V) int32, labels, each once in a row; values: two arrays (B, V) float32; found
    (C, 2) float32 output.
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
def count_votes(neighbours, weights, labels, left_out, sums, touched, ids, votes, sharp):
    """The labels with the most votes of nearest neighbours, best first.

    neighbours (B, C) int32 numbers of rows; weights (B, C) float32, how much each counts, above 0;
    labels `Pattern` of all rows; left_out `Pattern` of B rows, labels that are not returned; sums
    (T, N) float32 scratch, zero before and after; touched (T, N + 1) int32 scratch; ids (B, k)
    int32 output, -1 before; votes (B, k) float32 output, zero before; sharp (B, k) float32 output,
    zero before.
    """
    threads = len(sums)
    for t in prange(threads):
        total, seen = sums[t], touched[t]
        for b in range(t, len(ids), threads):
            count = np.int64(0)
            for i in range(neighbours.shape[1]):
                row = neighbours[b, i]
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
                    total[ids[b, j]] = j + 1  # The position of a label; float32 holds it.
            for i in range(neighbours.shape[1]):
                row = neighbours[b, i]
                if row < 0:
                    continue
                square = weights[b, i] * weights[b, i]
                for p in range(labels.indptr[row], labels.indptr[row + 1]):
                    position = total[labels.indices[p]]
                    if position > 0:
                        sharp[b, int(position) - 1] += square * square
            for j in range(ids.shape[1]):
                if ids[b, j] >= 0:
                    total[ids[b, j]] = 0
