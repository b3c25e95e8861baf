"""Products of vectors with the rows that a sparsity pattern names, and Adam on such rows.

Entry ``p`` of sample ``b`` of a pattern names row ``ids[p]`` of a matrix with N rows. A layer needs
two products (B samples, D columns, ``nnz`` entries), none in time proportional to N:

* `sampled_product`  ``z[p] = <vectors[b], rows[ids[p]]>``
* `weighted_sum`     ``out[b] = sum_p coefficients[p] * rows[ids[p]]``

The gradient of a row, ``sum_p coefficients[p] * vectors[b]`` over the entries with its id, is a
`weighted_sum` over the transposed pattern.

Adam is algorithm 1 of Kingma and Ba 2015, applied lazily: the moments of a row do not change in
steps that do not touch it. With ``correct_skipped``, they first decay by the number of steps that
the row missed, as moments of dense Adam with zero gradients do. With ``beta1 = 0`` no first moment
is kept.
"""

from typing import NamedTuple

import numpy as np

from slide.ops.kernels.compile import (
    AHEAD,
    AHEAD_ENTRIES,
    ask_for,
    helper,
    parallel,
    prange,
    prefetch_row,
    serial,
)

# Bits of an id by which a pass of a radix sort orders: its counters stay in the first-level cache.
_DIGIT_BITS = 11
_ENTRY = (1 << 32) - 1
# Rows that are only added up leave the cache soon, so more of them can be on their way: 2,048
# numbers are 8 KB in float32, a sixth of a first-level cache of 48 KB.
_NUMBERS_AHEAD = 2048


@parallel
def sampled_product(indptr, ids, vectors, rows, bias, out):
    """Write ``out[p] = <vectors[b], rows[ids[p]]> + bias[ids[p]]``; an empty bias is none."""
    width = vectors.shape[1]
    has_bias = bias.shape[0] > 0
    for b in prange(len(indptr) - 1):
        vector = vectors[b]
        for p in range(indptr[b], indptr[b + 1]):
            if p + AHEAD < len(ids):
                prefetch_row(rows, ids[p + AHEAD])
            if has_bias and p + AHEAD_ENTRIES < len(ids):
                ask_for(bias, ids[p + AHEAD_ENTRIES])
            row = rows[ids[p]]
            total = vector[0] * row[0]
            for d in range(1, width):
                total += vector[d] * row[d]
            if has_bias:
                total += bias[ids[p]]
            out[p] = total


@parallel
def grouped_product(groups, vectors, rows, bias, num_chunks, out):
    """`sampled_product` of grouped entries: each row is read once, vectors stay in the cache."""
    width, num_rows = vectors.shape[1], len(groups.ids)
    has_bias = bias.shape[0] > 0
    for chunk in prange(num_chunks):
        stop = (chunk + 1) * num_rows // num_chunks
        for u in range(chunk * num_rows // num_chunks, stop):
            if u + AHEAD < stop:
                prefetch_row(rows, groups.ids[u + AHEAD])
            if has_bias and u + AHEAD_ENTRIES < stop:
                ask_for(bias, groups.ids[u + AHEAD_ENTRIES])
            row = rows[groups.ids[u]]
            for q in range(groups.starts[u], groups.starts[u + 1]):
                vector = vectors[groups.samples[q]]
                total = vector[0] * row[0]
                for d in range(1, width):
                    total += vector[d] * row[d]
                if has_bias:
                    total += bias[groups.ids[u]]
                out[groups.entries[q]] = total


@parallel
def weighted_sum(indptr, ids, coefficients, rows, out):
    """Add ``sum_p coefficients[p] * rows[ids[p]]`` to ``out[b]``; see `sampled_product`."""
    width = rows.shape[1]
    ahead = max(AHEAD, _NUMBERS_AHEAD // max(width, 1))
    for b in prange(len(indptr) - 1):
        total = out[b]
        for p in range(indptr[b], indptr[b + 1]):
            if p + ahead < len(ids):
                prefetch_row(rows, ids[p + ahead])
            c = coefficients[p]
            if c != 0:
                row = rows[ids[p]]
                for d in range(width):
                    total[d] += c * row[d]


@helper
def bfloat16_bits(value, bits):
    """The upper half of the ``bits`` of a float32, rounded to nearest, of equal ones to even."""
    last = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + np.uint32(0x7FFF) + last) >> np.uint32(16)
    return np.uint16(0x7FC0) if np.isnan(value) else np.uint16(rounded)


@parallel
def gather_rounded(rows, ids, out, rounded):
    """Copy the rows ``ids`` of a float32 matrix, and write their `bfloat16_bits`, then zeros."""
    bits = rows.view(np.uint32)
    for u in prange(len(ids)):
        if u + AHEAD < len(ids):
            prefetch_row(rows, ids[u + AHEAD])
        row, own = rows[ids[u]], bits[ids[u]]
        for d in range(len(row)):
            out[u, d] = row[d]
            rounded[u, d] = bfloat16_bits(row[d], own[d])
    rounded[len(ids) :] = 0


@serial
def group_entries(indptr, ids, slots, starts, entries, samples):
    """Group entries by the slot of their id, by a counting sort; see `Transposed`."""
    starts[:] = 0
    for p in range(indptr[-1]):
        starts[slots[ids[p]] + 1] += 1
    for u in range(len(starts) - 1):
        starts[u + 1] += starts[u]
    # `starts` is used as the write cursor, and is shifted back afterwards.
    for b in range(len(indptr) - 1):
        for p in range(indptr[b], indptr[b + 1]):
            slot = slots[ids[p]]
            q = starts[slot]
            entries[q] = p
            samples[q] = b
            starts[slot] = q + 1
    for u in range(len(starts) - 1, 0, -1):
        starts[u] = starts[u - 1]
    starts[0] = 0


@helper
def _sorted_entries(ids, num_rows):
    """Keys ``id << 32 | entry`` in ascending order: a radix sort of the bits that ids can have."""
    keys, others = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    for p in range(len(ids)):
        keys[p] = (np.int64(ids[p]) << 32) | p
    bits = 1
    while (1 << bits) < num_rows:
        bits += 1
    passes = (bits + _DIGIT_BITS - 1) // _DIGIT_BITS
    digit = (bits + passes - 1) // passes
    positions = np.empty(1 << digit, np.int64)
    for i in range(passes):
        shift, mask = 32 + i * digit, len(positions) - 1
        positions[:] = 0
        for p in range(len(keys)):
            positions[(keys[p] >> shift) & mask] += 1
        end = np.int64(0)
        for c in range(len(positions)):
            count = positions[c]
            positions[c] = end
            end += count
        for p in range(len(keys)):
            c = (keys[p] >> shift) & mask
            others[positions[c]] = keys[p]
            positions[c] += 1
        keys, others = others, keys
    return keys


@serial
def transpose_pattern(indptr, ids, num_rows, touched, starts, entries, samples):
    """Group the entries of a pattern by id, ascending, in time linear in ``nnz``; returns R.

    touched (nnz,) int32, the first R get the distinct ids, which then lie on the same page or a
    near one; others see `slide.active_set.Transposed`.
    """
    keys, sample_of = _sorted_entries(ids, num_rows), np.empty(len(ids), np.int32)
    for b in range(len(indptr) - 1):
        for p in range(indptr[b], indptr[b + 1]):
            sample_of[p] = b
    distinct, last = 0, np.int64(-1)
    for q in range(len(keys)):
        p, row = keys[q] & _ENTRY, keys[q] >> 32
        if row != last:
            touched[distinct] = row
            starts[distinct] = q
            distinct += 1
            last = row
        entries[q] = p
        samples[q] = sample_of[p]
    starts[distinct] = len(keys)
    return distinct


class AdamRows(NamedTuple):
    """A weight and its optimizer state.

    weight (N, D) floats; first (N, D) floats, or (0, 0) if beta1 is 0; second (N, D) floats, or
    (N, 1), the mean square of each row; last_step (N,) int32, the last step that touched each row,
    0: none; empty if skipped steps are not corrected.
    """

    weight: np.ndarray
    first: np.ndarray
    second: np.ndarray
    last_step: np.ndarray


class AdamHyper(NamedTuple):
    """The numbers of one Adam step; ``step`` counts from 1."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    step: int


class _Rates(NamedTuple):
    """The numbers of a step in the weight's type; other types would halve the vector width."""

    decay1: float
    decay2: float
    gain1: float
    gain2: float
    rate: float
    scale: float
    keep: float
    eps: float


@helper
def _rates(hyper, weight):
    kind = weight.dtype.type
    return _Rates(
        kind(hyper.beta1),
        kind(hyper.beta2),
        kind(1 - hyper.beta1),
        kind(1 - hyper.beta2),
        kind(hyper.lr / (1 - hyper.beta1**hyper.step)),
        kind(1 / np.sqrt(1 - hyper.beta2**hyper.step)),
        kind(1 - hyper.lr * hyper.weight_decay),
        kind(hyper.eps),
    )


@helper
def _ask_for(state, r):
    prefetch_row(state.weight, r)
    if len(state.first) > 0:
        prefetch_row(state.first, r)
    prefetch_row(state.second, r)


@helper
def _decays(state, hyper, rates, r):
    """The decay of the two moments of row ``r``; notes the step."""
    if len(state.last_step) > 0:
        last = state.last_step[r]
        state.last_step[r] = hyper.step
        if last > 0:
            kind = state.weight.dtype.type
            missed = hyper.step - last
            return kind(hyper.beta1**missed), kind(hyper.beta2**missed)
    return rates.decay1, rates.decay2


@helper
def _update_entry(state, hyper, rates, r, g):
    """`_update_row` for rows of one entry, such as the entries of a bias."""
    decay1, decay2 = _decays(state, hyper, rates, r)
    first = rates.gain1 * g
    if len(state.first) > 0:
        first += decay1 * state.first[r, 0]
        state.first[r, 0] = first
    second = decay2 * state.second[r, 0] + rates.gain2 * g * g
    state.second[r, 0] = second
    step = rates.rate * first / (np.sqrt(second) * rates.scale + rates.eps)
    state.weight[r, 0] = rates.keep * state.weight[r, 0] - step


@helper
def _update_row(state, hyper, rates, r, factor, vector):
    """Adam on row ``r`` with gradient ``factor * vector``, weight decay decoupled (AdamW)."""
    decay1, decay2 = _decays(state, hyper, rates, r)
    if state.second.shape[1] < state.weight.shape[1]:
        _update_rowwise(state, rates, r, factor, vector, decay1, decay2)
        return
    w, v = state.weight[r], state.second[r]
    if len(state.first) > 0:
        m = state.first[r]
        for d in range(len(w)):
            g = factor * vector[d]
            first = decay1 * m[d] + rates.gain1 * g
            second = decay2 * v[d] + rates.gain2 * g * g
            m[d], v[d] = first, second
            w[d] = rates.keep * w[d] - rates.rate * first / (
                np.sqrt(second) * rates.scale + rates.eps
            )
        return
    for d in range(len(w)):
        g = factor * vector[d]
        second = decay2 * v[d] + rates.gain2 * g * g
        v[d] = second
        w[d] = rates.keep * w[d] - rates.rate * g / (np.sqrt(second) * rates.scale + rates.eps)


@helper
def _update_rowwise(state, rates, r, factor, vector, decay1, decay2):
    """`_update_row` with one second moment for the row."""
    w = state.weight[r]
    square = vector.dtype.type(0)
    for d in range(len(w)):
        square += vector[d] * vector[d]
    second = decay2 * state.second[r, 0] + rates.gain2 * (factor * factor * square / len(w))
    state.second[r, 0] = second
    rate = rates.rate / (np.sqrt(second) * rates.scale + rates.eps)
    if len(state.first) > 0:
        m = state.first[r]
        for d in range(len(w)):
            m[d] = decay1 * m[d] + rates.gain1 * (factor * vector[d])
            w[d] = rates.keep * w[d] - rate * m[d]
        return
    for d in range(len(w)):
        w[d] = rates.keep * w[d] - rate * (factor * vector[d])


@parallel
def adam_rows(state, hyper, ids, grads, num_chunks):
    """Adam on distinct rows ``ids`` with gradients ``grads`` ``(R, D)``, in ``num_chunks`` runs."""
    for chunk in prange(num_chunks):
        rates, one = _rates(hyper, state.weight), grads.dtype.type(1)
        stop = (chunk + 1) * len(ids) // num_chunks
        ahead = AHEAD_ENTRIES if grads.shape[1] == 1 else AHEAD
        for u in range(chunk * len(ids) // num_chunks, stop):
            if u + ahead < stop:
                _ask_for(state, ids[u + ahead])
            if grads.shape[1] == 1:
                _update_entry(state, hyper, rates, ids[u], grads[u, 0])
            else:
                _update_row(state, hyper, rates, ids[u], one, grads[u])


@parallel
def adam_factored(state, hyper, groups, coefficients, vectors, num_chunks):
    """`adam_rows` with the gradients of groups (`Transposed`), each of which stays in the cache."""
    width, num_rows = vectors.shape[1], len(groups.ids)
    for chunk in prange(num_chunks):
        grad = np.empty(width, vectors.dtype)
        rates, one = _rates(hyper, state.weight), vectors.dtype.type(1)
        stop = (chunk + 1) * num_rows // num_chunks
        for u in range(chunk * num_rows // num_chunks, stop):
            if u + AHEAD < stop:
                _ask_for(state, groups.ids[u + AHEAD])
            if width == 1:
                total = vectors.dtype.type(0)
                for q in range(groups.starts[u], groups.starts[u + 1]):
                    c = coefficients[groups.entries[q]]
                    total += c * vectors[groups.samples[q], 0]
                _update_entry(state, hyper, rates, groups.ids[u], total)
                continue
            first = groups.starts[u]
            if groups.starts[u + 1] == first + 1:
                c = coefficients[groups.entries[first]]
                vector = vectors[groups.samples[first]]
                _update_row(state, hyper, rates, groups.ids[u], c, vector)
                continue
            for d in range(width):
                grad[d] = 0
            for q in range(first, groups.starts[u + 1]):
                c = coefficients[groups.entries[q]]
                vector = vectors[groups.samples[q]]
                for d in range(width):
                    grad[d] += c * vector[d]
            _update_row(state, hyper, rates, groups.ids[u], one, grad)
