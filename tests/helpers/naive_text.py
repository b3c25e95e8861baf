"""Looped twins of the kernels that make data: rows as text, random rows, subsampled words.

They work with exact fractions or lists, and share no code with the kernels.
"""

import math
from fractions import Fraction

import numpy as np

from helpers.naive import random_bits, rows_of


def shortest_decimal(value):
    """(digits, exponent of ten) of a positive float32, with 7 digits or more, up to 10.

    The decimal is the first one for which all numbers within a relative distance of 1e-12 are
    rounded to the float32.
    """
    exact = Fraction(float(value))
    first = math.floor(math.log10(float(value)))
    for count in range(7, 11):
        exponent = first + 1 - count
        digits = math.floor(exact / Fraction(10) ** exponent + Fraction(1, 2))
        decimal = digits * Fraction(10) ** exponent
        ends = (float(decimal * (1 + sign * Fraction(1, 10**12))) for sign in (-1, 1))
        with np.errstate(over="ignore"):
            if all(np.float32(end) == value for end in ends):
                break
    while digits % 10 == 0:
        digits, exponent = digits // 10, exponent + 1
    return str(digits), exponent


def format_value(value):
    """A float32 as text."""
    sign = "-" if math.copysign(1, value) < 0 else ""
    if value == 0:
        return sign + "0"
    digits, exponent = shortest_decimal(abs(value))
    if exponent > 5 or len(digits) + exponent < -5:
        return f"{sign}{digits}e{exponent}"
    if exponent >= 0:
        return sign + digits + "0" * exponent
    digits = digits.rjust(1 - exponent, "0")
    return f"{sign}{digits[:exponent]}.{digits[exponent:]}"


def format_rows(features, labels, first_feature, first_label):
    """The bytes of all lines."""
    lines = []
    for row, own in enumerate(rows_of(*labels)):
        line = ",".join(str(label + first_label) for label in own)
        for k in range(features.indptr[row], features.indptr[row + 1]):
            column = int(features.indices[k]) + first_feature
            line += f" {column}:{format_value(features.values[k])}"
        lines.append((line or " ") + "\n")
    return "".join(lines).encode()


def subsample_words(words, first, key, keep):
    """The words that stay, as a list."""
    kept = []
    for number, word in enumerate(words, first):
        uniform = (random_bits(key, number) >> 11) / 2**53
        if word >= 0 and uniform < keep[word]:
            kept.append(int(word))
    return kept


def draw_labels(first, steps, num_clusters, num_labels, indptr):
    """A list of label ranks for each row."""
    rows = []
    for row, origin in enumerate(first.tolist()):
        # The cluster's labels, from the most to the least popular one.
        cluster = [l for l in range(num_labels) if l % num_clusters == origin % num_clusters]
        own = [origin]
        for step in steps[indptr[row] + 1 : indptr[row + 1]].tolist():
            place = min(abs(cluster.index(origin) + step), len(cluster) - 1)
            while cluster[place] in own:
                place = (place + 1) % len(cluster)
            own.append(cluster[place])
        rows.append(own)
    return rows


def draw_features(labels, prototypes, pick, slot, common, noise, idf, names, indptr):
    """A list of ``(column, weight)`` for each row, of length 1."""
    rows = []
    for row, own in enumerate(labels):
        counts = {}
        for k in range(indptr[row], indptr[row + 1]):
            rank = int(common[k])
            if pick[k] >= noise:
                which = int((pick[k] - noise) / (1 - noise) * len(own))
                wanted = int(prototypes[own[min(which, len(own) - 1)], slot[k]])
                if wanted in counts:
                    counts[wanted] += 1
                else:
                    rank = wanted
            while rank in counts:
                rank = (rank + 1) % len(names)
            counts[rank] = 1
        weights = [(1 + math.log(count)) * float(idf[rank]) for rank, count in counts.items()]
        norm = math.sqrt(sum(weight**2 for weight in weights))
        columns = [int(names[rank]) for rank in counts]
        rows.append([(c, w / norm) for c, w in zip(columns, weights, strict=True)])
    return rows
