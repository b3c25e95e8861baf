"""Looped twins of kernels that copy, count, clear and mark entries of arrays, or round them."""

import math


def gather_ragged(indptr, data, rows):
    """The entries of some rows, one row after the other."""
    out = []
    for row in rows:
        for k in range(indptr[row], indptr[row + 1]):
            out.append(data[k])
    return out


def select_rows(indptr, rows, *arrays):
    bounds = [0]
    for row in rows:
        bounds.append(bounds[-1] + int(indptr[row + 1] - indptr[row]))
    return [bounds, *(gather_ragged(indptr, data, rows) for data in arrays)]


def gather_entries(values, places):
    return [values[place] for place in places]


def clear_rows(indptr, rows, values):
    out = list(values)
    for row in rows:
        for k in range(indptr[row], indptr[row + 1]):
            out[k] = 0
    return out


def largest_places(sizes, longest):
    """The places of the largest numbers, in order; of equal ones from all parts of the list."""
    if len(sizes) <= longest:
        return list(range(len(sizes)))
    least = sorted(sizes)[-longest]
    kept = [i for i, size in enumerate(sizes) if size > least]
    equal = [i for i, size in enumerate(sizes) if size == least]
    left = longest - len(kept)
    # The last place of each of so many parts of about equal length.
    kept += [equal[-(-(part + 1) * len(equal) // left) - 1] for part in range(left)]
    return sorted(kept)


def shorten_rows(rows, longest):
    """The entries ``[(index, value), ...]`` of each row that stay, in order."""
    found = []
    for a, b in zip(rows.indptr[:-1], rows.indptr[1:], strict=True):
        own = list(zip(rows.indices[a:b].tolist(), rows.values[a:b].tolist(), strict=True))
        sizes = [-1.0 if value != value else abs(value) for _, value in own]
        found.append([own[i] for i in largest_places(sizes, longest)])
    return found


def mark_nonzero_rows(indptr, values):
    """Whether each row has an entry that is not zero; NaN is not."""
    marks = []
    for b in range(len(indptr) - 1):
        marks.append(any(values[k] != 0 for k in range(indptr[b], indptr[b + 1])))
    return marks


def count_nonzeros(matrix):
    return [sum(1 for value in row if value != 0) for row in matrix]


def take_nonzeros(matrix):
    """Columns and values of the entries that are not zero, row after row."""
    columns, values = [], []
    for row in matrix:
        for column, value in enumerate(row):
            if value != 0:
                columns.append(column)
                values.append(value)
    return columns, values


def group_entries(indptr, ids, slots, num_groups):
    """For each slot, the ``(entry, sample)`` pairs whose id has that slot."""
    groups = [[] for _ in range(num_groups)]
    for b in range(len(indptr) - 1):
        for p in range(indptr[b], indptr[b + 1]):
            groups[slots[ids[p]]].append((p, b))
    return groups


def prefetch_entries(array, begin, end):
    """Nothing changes."""


def prefetch_row(rows, r):
    """Nothing: a prefetch has no result."""


def round_list(rows, biases):
    """Codes and scales of rows, and the mean and the spread of what they stand for, with biases."""
    codes, scales, whole = [], [], []
    for row, bias in zip(rows.tolist(), biases.tolist(), strict=True):
        finite = all(map(math.isfinite, row))
        scale = max(map(abs, row)) / 127 if finite else math.nan
        codes.append([round(x / scale) if finite and scale else 0 for x in row])
        scales.append(scale)
        known = finite and math.isfinite(bias)
        whole.append([scale * code if known else 0 for code in codes[-1]] + [bias if known else 0])
    mean = [sum(column) / len(whole) for column in zip(*whole, strict=True)]
    far = [sum((x - m) ** 2 for x, m in zip(row, mean, strict=True)) for row in whole]
    return codes, scales, mean, math.sqrt(sum(far) / len(far))
