"""Kernels of hidden layers: ReLU with dropout, and images of channels ``positions``."""

import numpy as np

from slide.ops.kernels.compile import parallel, prange
from slide.ops.kernels.random import random_bits

_SHIFT = np.uint64(32)


@parallel
def relu_dropout_forward(x, key, least, scale, out):
    """Write ``scale * x`` where x is above 0 and its draw at least ``least``, else 0; NaN stays."""
    zero, factor = x.dtype.type(0), x.dtype.type(scale)
    for i in prange(len(x)):
        kept = random_bits(key, i) >> _SHIFT >= least or x[i] != x[i]
        out[i] = x[i] * factor if kept and not x[i] <= 0 else zero


@parallel
def relu_dropout_backward(out, grad, scale, grad_x):
    """Write ``scale * grad`` where ``out`` of `relu_dropout_forward` is not zero, else 0."""
    zero, factor = out.dtype.type(0), out.dtype.type(scale)
    for i in prange(len(out)):
        grad_x[i] = grad[i] * factor if out[i] != 0 else zero


@parallel
def put_pixels(values, positions, out):
    """Write ``values`` ``(P, A)`` to the used channels of ``out`` ``(P, C)``, zeros elsewhere."""
    for p in prange(len(out)):
        for c in range(out.shape[1]):
            out[p, c] = 0
        for a in range(len(positions)):
            out[p, positions[a]] = values[p, a]


@parallel
def put_planes(values, positions, out):
    """Write ``values`` ``(B, P, A)`` to the used planes of ``out`` ``(B, C, P)``, else zeros."""
    for b in prange(len(out)):
        planes, pixels = out[b], values[b]
        planes[:] = 0
        for a in range(len(positions)):
            plane = planes[positions[a]]
            for p in range(len(plane)):
                plane[p] = pixels[p, a]
