"""Lazy Adam on some rows of a weight, as a kernel and in torch; see `slide.RowSparseAdam`."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slide.ops.compile import AHEAD, AHEAD_ENTRIES, helper, parallel, prange, prefetch_row


class AdamRows(NamedTuple):
    """A weight and its state, as arrays, or as tensors; what is not kept is empty, or None.

    weight (N, D) floats; first (N, D) floats, not kept if beta1 is 0; second (N, D) floats, or
    (N, 1), the mean square of each row; last_step (N,) int32, the last step that touched each row,
    0: none; not kept if skipped steps are not corrected.
    """

    weight: Any
    first: Any
    second: Any
    last_step: Any


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


def torch_adam_rows(state: AdamRows, hyper: AdamHyper, ids: Tensor | None, grads: Tensor) -> None:
    """Adam on the rows ``ids``, or all; equal ids have equal gradients."""
    grads = grads.to(state.second.dtype)
    w, v = (t if ids is None else t[ids] for t in (state.weight, state.second))
    decay1, decay2 = _torch_decays(state.last_step, hyper, ids, v.dtype)
    square = grads.square()
    if v.shape[1] != w.shape[1]:
        square = square.mean(1, keepdim=True)
    m = (1 - hyper.beta1) * grads
    if state.first is not None:
        m = m + decay1 * (state.first if ids is None else state.first[ids])
        _write(state.first, ids, m)
    v = decay2 * v + (1 - hyper.beta2) * square
    rate = hyper.lr / (1 - hyper.beta1**hyper.step)
    scale = 1 / math.sqrt(1 - hyper.beta2**hyper.step)
    keep = 1 - hyper.lr * hyper.weight_decay
    w = keep * w.to(v.dtype) - rate * m / (v.sqrt() * scale + hyper.eps)
    _write(state.second, ids, v)
    _write(state.weight, ids, w.to(state.weight.dtype))


def _torch_decays(
    last_step: Tensor | None, hyper: AdamHyper, ids: Tensor | None, dtype: torch.dtype
) -> tuple[float | Tensor, float | Tensor]:
    """The decay of both moments; with last steps, of each row, which are set to this step."""
    if last_step is None:
        return hyper.beta1, hyper.beta2
    last = last_step if ids is None else last_step[ids]
    missed = torch.where(last > 0, hyper.step - last, 1).to(dtype)[:, None]
    _write(last_step, ids, torch.full_like(last, hyper.step))
    return hyper.beta1**missed, hyper.beta2**missed


def _write(tensor: Tensor, ids: Tensor | None, values: Tensor) -> None:
    if ids is None:
        tensor.copy_(values)
    else:
        tensor.index_copy_(0, ids.long(), values)
