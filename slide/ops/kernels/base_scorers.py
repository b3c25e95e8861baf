"""Base scorers of the re-ranker, beside the linear classifiers.

They are the co-occurrence of features and labels, the labels of analogous queries, which differ in
one feature, and ridge regressions of each item on the items that are most often with it.
"""

from typing import NamedTuple

import numpy as np

from slide.ops.kernels.compile import parallel, prange, serial
from slide.ops.kernels.largest import replace_least
from slide.ops.kernels.ragged import shorten


@serial
def _put_counts(counted, sums, found, f, room):
    """Move the counts of some ids to row ``f`` of ``found``, the largest if they are too many."""
    begin, size = found.starts[f], min(len(counted), room)
    ids = np.sort(counted)
    counts = sums[ids]
    sums[ids] = 0
    columns, values = found.columns[begin : begin + size], found.values[begin : begin + size]
    if size < len(ids):
        shorten(ids, counts, columns, values)
    else:
        columns[:], values[:] = ids, counts
    found.counts[f] = size


@parallel
def count_labels(rows, labels, longest, sums, touched, found):
    """The labels of each feature, with the numbers of rows that have both.

    Args:
        rows: `slide.sparse.Pattern` or `slide.sparse.CSR`: for each of n features its rows. One
            that is repeated counts again.
        labels: `slide.sparse.Pattern` of all rows, in [0, N). A repeated one counts again.
        longest: only this number of labels of a feature is kept, those with the most rows; of equal
            ones evenly many.
        sums: ``(T, N)`` int32 scratch, zero before and after.
        touched: ``(T, N + 1)`` int32 scratch.
        found: `slide.ops.kernels.ragged.RowRoom` of n features, output.
    """
    threads = len(sums)
    for t in prange(threads):
        total, seen = sums[t], touched[t]
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
            _put_counts(seen[:count], total, found, f, longest)


@parallel
def relate_candidates(features, lists, unseen, shares, ids, starts, places, found):
    """What the features of a row say of each of its candidates.

    Args:
        features: `slide.sparse.CSR` ``(B, D)``.
        lists: `slide.sparse.CSR` ``(D, N)``: labels of each feature with their smoothed shares of
            its rows, above 0.
        unseen: ``(D,)`` float32, above 0: the part of the smoothed rows of each feature that has
            labels as all rows do.
        shares: ``(N,)`` float32, above 0: the share of all rows that have each label.
        ids: ``(B, K)`` int64, each number once in a row. Numbers below 0, anywhere, are none.
        starts: ``(B + 1,)`` int64, where the candidates of each row begin in ``found``.
        places: ``(T, N)`` int32 scratch, zero before and after.
        found: ``(pairs, 3)`` float32 output: the sum of value times share, the largest share, and
            the logarithm of the probability if the features were independent.
    """
    threads = len(places)
    for t in prange(threads):
        place = places[t]
        for b in range(t, len(ids), threads):
            begin, end = features.indptr[b], features.indptr[b + 1]
            nothing = np.float64(0)  # Logarithm of the factor of a label that no feature had.
            for p in range(begin, end):
                nothing += np.log(unseen[features.indices[p]])
            out, last = found[starts[b] : starts[b + 1]], 0
            logs = np.empty(len(out), np.float64)  # Of thousands of features the sum is large.
            for j in range(ids.shape[1]):
                if ids[b, j] >= 0:
                    out[last, 0] = out[last, 1] = 0
                    logs[last] = np.log(shares[ids[b, j]]) + nothing
                    last += 1
                    place[ids[b, j]] = last
            for p in range(begin, end):
                f, value = features.indices[p], features.values[p]
                for q in range(lists.indptr[f], lists.indptr[f + 1]):
                    label, share = lists.indices[q], lists.values[q]
                    i = place[label] - 1
                    if i >= 0:
                        out[i, 0] += value * share
                        out[i, 1] = max(out[i, 1], share)
                        logs[i] += np.log1p(share / (unseen[f] * shares[label]))
            out[:, 2] = logs
            for j in range(ids.shape[1]):
                if ids[b, j] >= 0:
                    place[ids[b, j]] = 0


class Questions(NamedTuple):
    """Training rows, listed by all of their features but one.

    Attributes:
        indptr: ``(G + 1,)`` int64, where the entries of each group of other features begin.
        features: ``(nnz,)`` int32, the features that rows have beside a group, ascending in it.
        rows: ``(nnz,)`` int32, their rows.
    """

    indptr: np.ndarray
    features: np.ndarray
    rows: np.ndarray


@serial
def _first_at_least(sorted_ids, begin, end, wanted):
    """The first place in ``[begin, end)`` with a number of at least ``wanted``, or ``end``."""
    while begin < end:
        middle = (begin + end) // 2
        if sorted_ids[middle] < wanted:
            begin = middle + 1
        else:
            end = middle
    return begin


@serial
def _add_answers(labels, row, weight, place, sums, out):
    """Add the weight of a similar question to the sums of the candidates that are its answers."""
    for p in range(labels.indptr[row], labels.indptr[row + 1]):
        i = place[labels.indices[p]] - 1
        if i >= 0:
            sums[i] += weight
            out[i, 1] = max(out[i, 1], weight)


@serial
def _ask_beside(group, feature, similar, questions, labels, place, sums, out):
    """Ask all questions that have a similar feature beside a group, and add up their weights."""
    others, rows, total = questions.features, questions.rows, np.float32(0)
    begin, end = questions.indptr[group], questions.indptr[group + 1]
    first, last = similar.indptr[feature], similar.indptr[feature + 1]
    if last - first < end - begin:  # The numbers of the shorter list are looked up in the other.
        for i in range(first, last):
            entry = _first_at_least(others, begin, end, similar.indices[i])
            while entry < end and others[entry] == similar.indices[i]:
                _add_answers(labels, rows[entry], similar.values[i], place, sums, out)
                total += similar.values[i]
                entry += 1
    else:
        for entry in range(begin, end):
            i = _first_at_least(similar.indices, first, last, others[entry])
            if i < last and similar.indices[i] == others[entry]:
                _add_answers(labels, rows[entry], similar.values[i], place, sums, out)
                total += similar.values[i]
    return total


@parallel
def ask_similar(features, groups, similar, questions, labels, ids, starts, places, found):
    """What the answers to similar questions say of each candidate.

    Args:
        features: `slide.sparse.CSR` ``(B, D)``.
        groups: ``(nnz,)`` int64, for each entry the group of the other features of its row in
            ``questions``; below 0: no row has them.
        similar: `slide.sparse.CSR` ``(D, D)``: the features, ascending, that stand in for each one,
            with weights above 0.
        questions: `Questions`.
        labels: `slide.sparse.Pattern` of their rows.
        ids: ``(B, K)`` int64, each number once in a row. Numbers below 0, anywhere, are none.
        starts: ``(B + 1,)`` int64, where the candidates of each row begin in ``found``.
        places: ``(T, N)`` int32 scratch, zero before and after.
        found: ``(pairs, 2)`` float32 output, zero before: the sum over the entries of a row of the
            share of the weight that a candidate has, and the largest weight.
    """
    threads = len(places)
    for t in prange(threads):
        place = places[t]
        for b in range(t, len(ids), threads):
            out, last = found[starts[b] : starts[b + 1]], 0
            for j in range(ids.shape[1]):
                if ids[b, j] >= 0:
                    last += 1
                    place[ids[b, j]] = last
            sums = np.empty(len(out), np.float32)
            for p in range(features.indptr[b], features.indptr[b + 1]):
                if groups[p] < 0:
                    continue
                sums[:] = 0
                feature = features.indices[p]
                where = groups[p], feature, similar
                total = _ask_beside(*where, questions, labels, place, sums, out)
                if total > 0:
                    for i in range(len(out)):
                        out[i, 0] += sums[i] / total
            for j in range(ids.shape[1]):
                if ids[b, j] >= 0:
                    place[ids[b, j]] = 0


# Added to the number of rows of an item, so that rare ones do not seem close.
_PRIOR = np.float32(5)


@serial
def _closest(lists, counts, n, num_features, close):
    """Put the items closest to item ``n`` into ``close``, ascending; returns their number."""
    scores, found = np.zeros(len(close), np.float32), 0
    close[:] = -1
    for p in range(lists.indptr[n], lists.indptr[n + 1]):
        item = lists.indices[p]
        if item != n and item < num_features:
            score = lists.values[p] / np.sqrt(counts[item] + _PRIOR)
            if score > scores[0]:
                replace_least(scores, close, score, item)
    close[:] = np.sort(close)
    for i in range(len(close)):
        if close[i] >= 0:
            close[found] = close[i]
            found += 1
    return found


@serial
def _solve(gram, right, sweeps, weights):
    """Solve ``gram @ weights = right`` by passes over the weights; returns whether they settle.

    Places of ``gram`` and ``right`` begin with 1. ``gram`` may be larger: a part of it would have
    no fixed strides, and no vector code.
    """
    weights[:] = 0
    first, change = np.float32(0), np.float32(0)
    for sweep in range(sweeps):
        change = np.float32(0)
        for i in range(len(weights)):
            product = np.float32(0)
            for j in range(len(weights)):
                product += gram[i + 1, j + 1] * weights[j]
            step = (right[i + 1] - product) / gram[i + 1, i + 1]
            weights[i] += step
            change = max(change, abs(step))
        first = change if sweep == 0 else first
    return change <= first  # Not if they are infinite.


@serial
def _dominate(gram, size):
    """Enlarge the diagonal so that passes over the weights settle."""
    for i in range(1, size + 1):
        total = np.float32(1)
        for j in range(1, size + 1):
            total += gram[i, j] if j != i else np.float32(0)
        gram[i, i] = max(gram[i, i], total)


@serial
def _fill_gram(lists, counts, n, items, penalty, place, gram, right):
    """The sums of products of ``items`` with each other, and with item ``n``, from place 1 on.

    Place 0 takes what belongs to other items, because a processor cannot foretell which do.
    """
    size = len(items)
    for i in range(size):
        place[items[i]] = i + 1
        gram[i + 1, : size + 1] = 0
    for p in range(lists.indptr[n], lists.indptr[n + 1]):
        right[place[lists.indices[p]]] = lists.values[p]
    for i in range(size):
        for p in range(lists.indptr[items[i]], lists.indptr[items[i] + 1]):
            gram[i + 1, place[lists.indices[p]]] = lists.values[p]
    for i in range(1, size + 1):
        for j in range(1, i):  # A shortened list may lack what the other one has.
            gram[i, j] = gram[j, i] = max(gram[i, j], gram[j, i])
        gram[i, i] = counts[items[i - 1]] + penalty
    for i in range(size):
        place[items[i]] = 0


@serial
def _put_weights(items, gram, right, sweeps, found, row):
    """Write the weights of ``items`` into a row of ``found``."""
    begin, end = found.starts[row], found.starts[row] + len(items)
    found.counts[row], found.columns[begin:end] = len(items), items
    if not _solve(gram, right, sweeps, found.values[begin:end]):
        # Of shortened lists the products may be those of no rows: then they have no solution.
        _dominate(gram, len(items))
        _solve(gram, right, sweeps, found.values[begin:end])


@parallel
def regress_items(lists, counts, first, num_features, penalty, sweeps, places, close, gram, found):
    """Regress items on the items that are most often with them, by squared error and |w|^2.

    Args:
        lists: `slide.sparse.CSR` ``(N, N)``: for each item the items that share rows with it, and
            the number of these rows.
        counts: ``(N,)`` int64, the number of rows of each item.
        first: the first item that is regressed.
        num_features: items from here on have no weights.
        penalty: factor of |w|^2.
        sweeps: number of passes over the weights of an item.
        places: ``(T, N)`` int32 scratch, zero before and after.
        close: ``(T, K)`` int32 scratch; K is the largest number of weights of an item.
        gram: ``(T, K + 1, K + 1)`` float32 scratch.
        found: `slide.ops.kernels.ragged.RowRoom` of the items from ``first`` on, output.
    """
    threads = len(places)
    for t in prange(threads):
        right = np.empty(close.shape[1] + 1, np.float32)
        # Strided, because neighbours often have as many rows.
        for row in range(t, len(found.starts), threads):
            n = first + row
            size = _closest(lists, counts, n, num_features, close[t])
            items = close[t, :size]
            _fill_gram(lists, counts, n, items, penalty, places[t], gram[t], right)
            _put_weights(items, gram[t], right, sweeps, found, row)
