"""Looped twins of metrics."""

import math

import numpy as np


def hit_row(predicted, labels):
    return [int(i) in set(map(int, labels)) for i in predicted]


def precision(predicted, labels, k):
    return np.mean([sum(hit_row(p[:k], y)) / k for p, y in zip(predicted, labels, strict=True)])


def ndcg(predicted, labels, k):
    total = 0.0
    for p, y in zip(predicted, labels, strict=True):
        gain = sum(hit / math.log2(i + 2) for i, hit in enumerate(hit_row(p[:k], y)))
        best = sum(1 / math.log2(i + 2) for i in range(min(k, len(y))))
        total += gain / best if best else 0
    return total / len(predicted)


def psp(predicted, labels, k, inverse):
    gain = best = 0.0
    for p, y in zip(predicted, labels, strict=True):
        gain += sum(inverse[i] for i, hit in zip(p[:k], hit_row(p[:k], y), strict=True) if hit)
        best += sum(sorted((inverse[i] for i in y), reverse=True)[:k])
    return gain / best if best else 0.0
