"""Looped twins of the kernels of the re-ranker, on dense rows of Python numbers."""

import math

import numpy as np

from helpers.naive import random_below
from helpers.naive_arrays import largest_places


def fit_duals(rows, signs, solver, costs=None):
    """The dual variables of one classifier.

    Args:
        rows: its training rows ``(n, D)``.
        signs: 1 or -1 for each of them.
        solver: `slide.ops.kernels.linear_classifiers.Solver`.
        costs: factor of C for each of them; None: 1.
    """
    rows = np.asarray(rows, np.float64)
    weight, alphas = np.zeros(rows.shape[1]), [0.0] * len(rows)
    order, size = list(range(len(rows))), len(rows)
    draws, bound = 0, math.inf
    for _ in range(solver.max_iter):
        largest = 0.0
        for k in range(size - 1, 0, -1):
            j = random_below(len(rows), draws, k + 1)
            draws += 1
            order[k], order[j] = order[j], order[k]
        k = 0
        while k < size:
            i = order[k]
            diagonal = 1 / (2 * solver.C * (1 if costs is None else costs[i]))
            score = solver.bias + sum(rows[i] * weight)
            gradient = signs[i] * score - 1 + alphas[i] * diagonal
            if alphas[i] == 0 and gradient > bound:
                size -= 1
                order[k], order[size] = order[size], order[k]
                continue
            k += 1
            if alphas[i] > 0 or gradient < 0:
                largest = max(largest, abs(gradient))
                step = max(alphas[i] - gradient / (sum(rows[i] ** 2) + diagonal), 0) - alphas[i]
                weight += step * signs[i] * rows[i]
                alphas[i] += step
        if largest > solver.tol:
            bound = largest
        elif size == len(rows):
            break
        else:
            size, bound = len(rows), math.inf
    return alphas


def collect_weights(rows, signs, alphas, threshold):
    """``{column: weight}`` of one classifier, without weights that are zero or too small."""
    found = {}
    for row, sign, alpha in zip(rows, signs, alphas, strict=True):
        for column, value in enumerate(row):
            found[column] = found.get(column, 0.0) + float(alpha) * float(sign) * float(value)
    return {c: w for c, w in found.items() if w != 0 and abs(w) >= threshold}


def list_training_rows(labels, candidates, num_labels):
    """``[(row, sign), ...]`` of each classifier; ``labels`` and ``candidates`` are lists of ids."""
    found = [[] for _ in range(num_labels)]
    for b, (own, proposed) in enumerate(zip(labels, candidates, strict=True)):
        for n in range(num_labels):
            if n in own or n in proposed:
                found[n].append((b, 1 if n in own else -1))
    return found


def score_labels(rows, weights, bias, ids):
    """Scores ``(B, K)`` of the classifiers ``ids`` ``(B, K)``; -inf where an id is below 0."""
    out = np.full(np.shape(ids), -math.inf)
    for b, row in enumerate(rows):
        for k, label in enumerate(ids[b]):
            if label >= 0:
                products = (float(x) * float(w) for x, w in zip(row, weights[label], strict=True))
                out[b, k] = bias + sum(products)
    return out


def top_products(rows, columns, left_out):
    """``{output: score}`` of each row, for all positive products but some.

    Args:
        rows: ``(B, D)``.
        columns: ``(D, N)``.
        left_out: for each row a list of the outputs that do not count, or None.
    """
    found = []
    for b, row in enumerate(rows):
        own = {}
        for n in range(len(columns[0])):
            score = sum(float(row[d]) * float(columns[d][n]) for d in range(len(row)))
            if score > 0 and (left_out is None or n not in left_out[b]):
                own[n] = score
        found.append(own)
    return found


def sum_trees(rows, trees, base):
    """The sum of the leaves that each row reaches, tree by tree."""

    def leaf(row, node):
        if trees.columns[node] < 0:
            return float(trees.values[node])
        left = row[trees.columns[node]] <= trees.thresholds[node]
        return leaf(row, trees.left[node] if left else trees.right[node])

    return [base + sum(leaf(row, root) for root in trees.roots) for row in rows]


def keep_largest(scores, k):
    """The k largest ``(score, output)`` of each row, best first."""
    return [sorted(((s, n) for n, s in enumerate(row)), reverse=True)[:k] for row in scores]


def scan_lists(bounds, lists, scores, limit, k):
    """The k best rows of one query, best first, and how many it has seen.

    Args:
        bounds: ``(L,)``, one for each list.
        lists: for each list its rows.
        scores: ``(N,)``, of all rows.
        limit: number of seen rows after which no further list begins.
        k: number of rows.
    """
    best, seen = [], 0
    for number in sorted(range(len(lists)), key=lambda number: -bounds[number]):
        if seen >= limit or (len(best) == k and bounds[number] <= scores[best[-1]]):
            break
        seen += len(lists[number])
        best = sorted([*best, *lists[number]], key=lambda row: -scores[row])[:k]
    return best, seen


def best_first(scores, ids):
    """The pairs of score and id, the largest score first; of equal ones the first stays first."""
    return sorted(zip(scores, ids, strict=True), key=lambda pair: -pair[0])


def replace_least(pairs, new):
    """The pairs of score and id with ``new`` in place of one with the least score, in order."""
    return sorted([*sorted(pairs)[1:], new])


def leave_out(sums, outputs):
    """The sums ``{output: sum}`` of all other outputs that count."""
    return {n: total for n, total in sums.items() if n not in outputs}


def count_votes(near, weights, labels, left_out):
    """``{label: (votes, sharp votes)}`` of each row.

    Args:
        near: ``(B, C)`` numbers of rows; -1 for none.
        weights: ``(B, C)``.
        labels: for each row of labels a list.
        left_out: for each row a list of the labels that do not count.
    """
    found = []
    for rows, own, without in zip(near, weights, left_out, strict=True):
        votes = {}
        for row, weight in zip(rows, own, strict=True):
            for label in labels[row] if row >= 0 else ():
                plain, sharp = votes.get(label, (0.0, 0.0))
                votes[label] = plain + float(weight), sharp + float(weight) ** 4
        found.append(leave_out(votes, without))
    return found


def rank_scores(scores):
    """How far each score is behind the best one, its rank, and the best one, of one row."""
    best = max(scores, default=0)
    best = best if math.isfinite(best) else 0
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    return [[score - best, order.index(i), best] for i, score in enumerate(scores)]


def look_up_lists(ids, listed, one, other):
    """The values of the ids of one row in a list of labels with two values each, or zeros."""
    known = {int(n): [x, y] for n, x, y in zip(listed, one, other, strict=True) if n >= 0}
    return [known.get(int(n), [0, 0]) for n in ids if n >= 0]


def best_of_lists(lists, labels, vectors, rows, bias, best):
    """For each vector, the ids of its list with the largest scores, its labels left out."""
    found = []
    for ids, own, vector in zip(lists, labels, vectors, strict=True):
        scores = {i: sum(vector * rows[i]) + (bias[i] if len(bias) else 0) for i in ids}
        known = [i for i in ids if i not in own and not np.isnan(scores[i])]
        found.append(sorted(known, key=lambda i: -scores[i])[:best])
    return found


def count_labels(rows, labels, longest):
    """For each feature ``{label: number of rows}``, the ``longest`` labels with the most rows.

    Args:
        rows: a list of numbers of rows for each feature.
        labels: a list of labels for each row.
        longest: how many labels of a feature are kept; of equal ones evenly many.
    """
    found = []
    for own in rows:
        every = [label for row in own for label in labels[row]]
        counts = {label: every.count(label) for label in every}
        ids = sorted(counts)
        best = largest_places([counts[label] for label in ids], longest)
        found.append({ids[place]: counts[ids[place]] for place in best})
    return found


def relate(row, lists, unseen, shares, ids):
    """What the features of a row say of each candidate: sum, largest share, naive Bayes.

    Args:
        row: pairs of a feature and its value.
        lists: for each feature a dictionary from labels to shares.
        unseen: a number for each feature.
        shares: a number for each label.
        ids: numbers of the candidates; those below 0 are none.
    """
    found = []
    for label in (label for label in ids if label >= 0):
        own = [lists[f].get(label, 0.0) for f, _ in row]
        total = sum(value * share for (_, value), share in zip(row, own, strict=True))
        logarithm = math.log(shares[label])
        for (f, _), share in zip(row, own, strict=True):
            logarithm += math.log(share / shares[label] + unseen[f])
        found.append([total, max(own, default=0.0), logarithm])
    return found


def add_to_sum(sums, n, value):
    """Add to the sum of ``n`` in a dictionary, whose keys stand in the order of their first use."""
    sums[n] = sums.get(n, 0.0) + value
