"""Looped scalar twins of the losses, for one sample.

Each takes the sample's scores, the positions of its labels, and the logarithm of how many outputs
each entry stands for. It returns the loss and its derivative by each score.
"""

import math


def log_sum_exp(values):
    top = max(values, default=-math.inf)
    if top == -math.inf:
        return top
    return top + math.log(sum(math.exp(v - top) for v in values))


def softplus(z):
    return math.log1p(math.exp(z)) if z < 30 else z


def sigmoid(z):
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0


def softmax(scores, targets, log_weights):
    """Cross-entropy of the weighted softmax with equal shares for the labels."""
    if not targets:
        return 0.0, [0.0] * len(scores)
    weighted = [z + w for z, w in zip(scores, log_weights, strict=True)]
    total = log_sum_exp(weighted)
    loss = sum(total - scores[t] for t in targets) / len(targets)
    gradient = [math.exp(z - total) for z in weighted]
    for t in targets:
        gradient[t] -= 1 / len(targets)
    return loss, gradient


def decoupled_softmax(scores, targets, log_weights):
    """The mean over the labels of the cross-entropy of each one against the negatives alone."""
    gradient = [0.0] * len(scores)
    if not targets:
        return 0.0, gradient
    negatives = [j for j in range(len(scores)) if j not in targets]
    total = log_sum_exp([scores[j] + log_weights[j] for j in negatives])
    loss = 0.0
    for t in targets:
        loss += softplus(total - scores[t]) / len(targets)
        pull = sigmoid(total - scores[t]) / len(targets)
        gradient[t] = -pull
        for j in negatives:
            gradient[j] += pull * math.exp(scores[j] + log_weights[j] - total)
    return loss, gradient


def bce(scores, targets, log_weights):
    """Binary cross-entropy of each output; a label counts once."""
    loss, gradient = 0.0, []
    for j, z in enumerate(scores):
        weight = math.exp(log_weights[j])
        if j in targets:
            loss += softplus(-z)
            gradient.append(-sigmoid(-z))
        else:
            loss += weight * softplus(z)
            gradient.append(weight * sigmoid(z))
    return loss, gradient


def squared_hinge(scores, targets, log_weights):
    """``max(0, 1 - y z)^2`` with y = 1 for labels and -1 for other outputs."""
    loss, gradient = 0.0, []
    for j, z in enumerate(scores):
        if j in targets:
            slack, weight = max(0.0, 1 - z), -1.0
        else:
            slack, weight = max(0.0, 1 + z), math.exp(log_weights[j])
        loss += abs(weight) * slack**2
        gradient.append(2 * weight * slack)
    return loss, gradient


def hinge(z):
    return z if math.isnan(z) else max(0.0, z)


def add_weights(scores, log_weights):
    """Scores with their weights, where there are any."""
    return [z + w for z, w in zip(scores, log_weights or [0.0] * len(scores), strict=True)]


def normalise(logits, scale):
    """``scale`` times the softmax, and the logarithm of the sum of exponentials."""
    total = log_sum_exp(logits)
    if total == -math.inf:
        return [0.0] * len(logits), total
    return [scale * math.exp(z - total) for z in logits], total


def score_row(rows, b):
    """The scores, targets and log weights of sample b, as lists."""
    begin, end = rows.indptr[b], rows.indptr[b + 1]
    targets = rows.target_positions[rows.target_indptr[b] : rows.target_indptr[b + 1]]
    weights = rows.log_weights if rows.shared else rows.log_weights[begin:end]
    return rows.scores[begin:end].tolist(), targets.tolist(), weights.tolist()
