"""Looped twins of the kernels of hash codes, of further buckets and of sketches."""

import math
from itertools import combinations

import numpy as np

from helpers.naive import random_below


def dwta_digits(vector, coordinates):
    """The place of the first maximum of each bin."""
    return [int(np.argmax([vector[c] for c in members])) for members in coordinates]


def dwta_sparse_digits(stored, coordinates, key, attempts):
    """Digits of a vector ``{coordinate: value}``; an empty bin borrows a filled one's.

    Returns:
        The digits, and which bins were filled from the start.
    """
    own = []
    for members in coordinates:
        present = [(-stored[c], place) for place, c in enumerate(members) if c in stored]
        own.append(min(present)[1] if present else None)
    digits = []
    for h, digit in enumerate(own):
        attempt = 0
        while digit is None and attempt < attempts:
            digit = own[random_below(key, h * attempts + attempt, len(own))]
            attempt += 1
        digits.append(0 if digit is None else digit)
    return digits, [digit is not None for digit in own]


def digits_to_codes(digits, hashes_per_table, bin_size):
    """A table's code reads its digits as a number in base ``bin_size``, first digit highest."""
    codes = []
    for start in range(0, len(digits), hashes_per_table):
        code = 0
        for digit in digits[start : start + hashes_per_table]:
            code = code * bin_size + digit
        codes.append(code)
    return codes


def fold(code, num_buckets):
    """The bucket of a code: MurmurHash3's mix of 32 bits, as a share of the buckets."""
    code = (code ^ code >> 16) * 0x85EBCA6B % 2**32
    code = (code ^ code >> 13) * 0xC2B2AE35 % 2**32
    return (code ^ code >> 16) * num_buckets // 2**32


def dwta_runners(vector, coordinates, hashes_per_table, bits):
    """For each bin, by how much its maximum leads, and the bits that its second place changes."""
    costs, flips = [], []
    for h, members in enumerate(coordinates):
        ranked = sorted(range(len(members)), key=lambda place: (-vector[members[place]], place))
        first, second = ranked[:2]
        costs.append(vector[members[first]] - vector[members[second]])
        digit = hashes_per_table - 1 - h % hashes_per_table
        flips.append((first ^ second) * 2 ** (bits * digit))
    return costs, flips


def probe_codes(code, costs, flips, probes):
    """The code of one table, then the codes after the cheapest sets of changes."""
    hashes = range(len(costs))
    sets = [s for size in range(len(costs) + 1) for s in combinations(hashes, size)]
    sets.sort(key=lambda changes: sum(costs[k] ** 2 for k in changes))
    codes = []
    for changes in sets[: 1 + probes]:
        found = int(code)
        for k in changes:
            found ^= int(flips[k])
        codes.append(found)
    return codes


def rank_buckets(query, buckets, codes, scales, priors, left_out, largest, most):
    """The best rows of some buckets, which are lists of rows, and how many rows were looked at."""
    read = [rows for place, rows in enumerate(buckets) if place == 0 or len(rows) <= largest]
    scores = {}
    for row in sorted({row for rows in read for row in rows} - set(left_out)):
        product = sum(float(x) * float(code) for x, code in zip(query, codes[row], strict=True))
        score = float(scales[row]) * product + float(priors[row])
        if not math.isnan(score) and score != -math.inf:
            scores[row] = score
    # The sort is stable, so equal scores stay in the order of the rows.
    return sorted(scores, key=lambda row: -scores[row])[:most], sum(map(len, read))


def sketch(projected, offset):
    """The numbers of a rounded row, its scale and its prior."""
    *row, prior = (
        float(np.float32(x) - np.float32(y)) for x, y in zip(projected, offset, strict=True)
    )
    if not all(map(math.isfinite, [*row, prior])):
        return [0] * len(row), 0.0, -math.inf
    scale = max(map(abs, row)) / 127
    return [round(x / scale) if scale else 0 for x in row], scale, prior


def largest_score(numbers, scale, prior, variances, deviations):
    """The prior of a row, and standard deviations of its score."""
    spread = sum(
        float(x) ** 2 * float(v) for x, v in zip(numbers, variances[: len(numbers)], strict=True)
    )
    return prior + deviations * scale * math.sqrt(spread)
