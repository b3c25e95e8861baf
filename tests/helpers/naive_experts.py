"""What answers to similar questions and regressions of items say, in loops."""

import math

import numpy as np


def ask_similar(row, similar, questions, ids):
    """What the answers to similar questions say of each candidate: sum of shares, largest weight.

    Args:
        row: pairs of a feature and the group of the other features; below 0 for none.
        similar: for each feature a dictionary from features to weights.
        questions: for each group pairs of a feature beside it and a list of answers.
        ids: numbers of the candidates; those below 0 are none.
    """
    found = []
    for label in (label for label in ids if label >= 0):
        total = best = 0.0
        for feature, group in row:
            asked = questions[group] if group >= 0 else []
            pairs = [(similar[feature].get(other, 0.0), answers) for other, answers in asked]
            right = [weight for weight, answers in pairs if label in answers]
            every = sum(weight for weight, _ in pairs)
            total += sum(right) / every if every else 0.0
            best = max(best, *right, 0.0)
        found.append([total, best])
    return found


def regress_items(lists, counts, num_features, penalty, most):
    """For each item ``{item: weight}`` of the regression on the ``most`` closest items.

    Args:
        lists: for each item a dictionary from items to the number of rows of both.
        counts: the number of rows of each item.
        num_features: items from here on have no weights.
        penalty: factor of |w|^2.
        most: how many items have a weight; no two are equally close.
    """
    found = []
    for n, own in enumerate(lists):
        others = [item for item in own if item != n and item < num_features]
        others.sort(key=lambda item: -own[item] / math.sqrt(counts[item] + 5))
        close = sorted(others[:most])
        gram = [[lists[i].get(j, lists[j].get(i, 0.0)) for j in close] for i in close]
        for place, item in enumerate(close):
            gram[place][place] = counts[item] + penalty
        right = [own[item] for item in close]
        solved = np.linalg.solve(gram, right) if close else []
        found.append(dict(zip(close, map(float, solved), strict=True)))
    return found
