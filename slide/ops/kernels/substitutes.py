"""The answers to questions that differ in one feature."""

from typing import NamedTuple

import numpy as np

from slide.ops.kernels.compile import parallel, prange, serial


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
