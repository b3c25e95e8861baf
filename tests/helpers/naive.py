"""Looped, obvious twins of the kernels, in plain Python, independent of them.

Where a kernel writes into an argument, its twin returns the result.
"""

import math
from collections import Counter

import numpy as np

MASK = 2**64 - 1


def random_bits(key, counter):
    """SplitMix64 in unbounded integers, cut to 64 bits."""
    z = (int(key) + ((int(counter) & MASK) + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def random_below(key, counter, bound):
    return (random_bits(key, counter) >> 32) * int(bound) >> 32


def rows_of(indptr, ids):
    """The rows of a pattern as lists."""
    return [list(map(int, ids[indptr[b] : indptr[b + 1]])) for b in range(len(indptr) - 1)]


def entries_of(indptr):
    """``(sample, entry)`` for each entry of a pattern."""
    return [(b, p) for b in range(len(indptr) - 1) for p in range(indptr[b], indptr[b + 1])]


# Products on patterns


def transpose(indptr, ids):
    """``{id: [(entry, sample), ...]}`` in ascending order of ids."""
    groups = {}
    for b, p in entries_of(indptr):
        groups.setdefault(int(ids[p]), []).append((p, b))
    return dict(sorted(groups.items()))


def row_gradient(indptr, ids, coefficients, vectors):
    """``{id: its row}``."""
    out = {}
    for b, p in entries_of(indptr):
        row = out.setdefault(int(ids[p]), np.zeros(vectors.shape[1]))
        for d in range(vectors.shape[1]):
            row[d] += float(coefficients[p]) * float(vectors[b, d])
    return dict(sorted(out.items()))


# Hash tables


class Tables:
    """L dictionaries from code to the ids kept, in their places, and the number offered."""

    def __init__(self, num_tables, capacity, policy, key):
        self.buckets = [{} for _ in range(num_tables)]
        self.seen = [Counter() for _ in range(num_tables)]
        self.capacity, self.policy, self.key = capacity, policy, key

    def insert(self, i, codes, tables=None):
        for table, code in enumerate(map(int, codes)):
            if tables is not None and table not in tables:
                continue
            kept = self.buckets[table].setdefault(code, [])
            offered = self.seen[table][code]
            self.seen[table][code] += 1
            if len(kept) < self.capacity:
                kept.append(int(i))
                continue
            if self.policy == "fifo":
                place = offered % self.capacity
            else:
                counter = table * 0x2545F4914F6CDD1D + code * 0x5851F42D4C957F2D
                counter += int(i) * 0x369DEA0F31A53F85 + offered
                place = random_below(self.key, counter, offered + 1)
            if place < self.capacity:
                kept[place] = int(i)

    def remove(self, i, codes, tables):
        for table in tables:
            code = int(codes[table])
            kept = self.buckets[table].get(code, [])
            if i in kept:
                kept[kept.index(i)] = kept[-1]
                kept.pop()
                self.seen[table][code] = len(kept)
            elif self.seen[table][code] > self.capacity:
                self.seen[table][code] -= 1

    def query(self, codes):
        """The ids found, table after table."""
        found = []
        for i, code in enumerate(map(int, codes)):
            table = i % len(self.buckets)
            found += self.buckets[table].get(code, [])
        return found


def most_voted(found, budget):
    """The ``budget`` most frequent ids of a list, the first to appear winning ties."""
    votes = Counter(found)
    best = set(sorted(votes, key=lambda i: -votes[i])[:budget])
    return [i for i in votes if i in best]


def vote_per_sample(tables, codes, key, budgets):
    """A list of ids for each sample; tables are read from a random one on.

    Codes are those of each table, then further ones of each table.
    """
    num_tables, num_samples = len(tables.buckets), codes.shape[1]
    lists = []
    for b in range(num_samples):
        first = random_below(key, b, num_tables)
        found = []
        for begin in range(0, len(codes), num_tables):
            for i in range(num_tables):
                table = (first + i) % num_tables
                found += tables.buckets[table].get(int(codes[begin + table, b]), [])
        lists.append(most_voted(found, budgets[b]))
    return lists


# Active sets


def fill(ids, size, num_rows, key, stream, draws_per_place):
    """Add distinct uniform ids up to ``size``; after many vain draws, go through the free ones."""
    ids, taken, draws = list(ids), set(ids), 0
    limit = draws_per_place * (size - len(ids))
    while len(ids) < size and draws < limit:
        candidate = random_below(key, (stream << 32) + draws, num_rows)
        draws += 1
        if candidate not in taken:
            taken.add(candidate)
            ids.append(candidate)
    free = [i for i in range(num_rows) if i not in taken]
    for left, candidate in enumerate(free):
        number = random_below(key, (stream << 32) + draws + left, len(free) - left)
        if number < size - len(ids):
            ids.append(candidate)
    return ids


def assemble(labels, listed, size, num_rows, key, stream, draws_per_place):
    """Labels, then listed ids, then uniform ones.

    Returns:
        The set, and how many of it are labels or listed.
    """
    hard = list(dict.fromkeys(labels))
    hard += [i for i in dict.fromkeys(listed) if i not in hard][: size - len(hard)]
    return fill(hard, size, num_rows, key, stream, draws_per_place), len(hard)


def count_distinct(ids):
    return len({int(i) for i in ids})


def stratified_log_weights(sizes, num_hard, num_rows):
    out = []
    for size, hard in zip(sizes, num_hard, strict=True):
        uniform = size - hard
        out += [0.0] * hard
        out += [math.log((num_rows - hard) / uniform)] * uniform if uniform else []
    return np.array(out)


# Optimizer


# Metrics


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
