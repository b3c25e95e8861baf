"""Factors of rows of items by alternating least squares: one half step, and sums of products."""

import numpy as np

from slide.ops.compile import helper, parallel, prange


@helper
def _multiply(rows, b, other, gram, penalty, x, out):
    """The matrix of the equations of row ``b``, times ``x``."""
    width = len(x)
    for i in range(width):
        total = np.float32(0)
        for j in range(width):
            total += gram[i, j] * x[j]
        out[i] = total + penalty * x[i]
    for p in range(rows.indptr[b], rows.indptr[b + 1]):
        own, product = other[rows.indices[p]], np.float32(0)
        for j in range(width):
            product += own[j] * x[j]
        for j in range(width):
            out[j] += product * own[j]


@parallel
def solve_factors(rows, other, gram, penalty, steps, scratch, found):
    """Least squares of each row of items by conjugate gradients, from the factors that it has.

    The factors x of a row with items S minimise ``sum over S of (1 - <x, other>)^2 + <x, gram x> +
    penalty |x|^2``. A row without items gets 0.

    rows `Pattern` of n rows; other (m, k) float32 factors of the items; gram (k, k) float32,
    symmetric: sums of products of all factors, with their weight; penalty (n,) float32, above 0;
    steps: of conjugate gradients; scratch (T, 3, k) float32; found (n, k) float32, in and
    output.
    """
    threads = len(scratch)
    for t in prange(threads):
        residual, direction, image = scratch[t, 0], scratch[t, 1], scratch[t, 2]
        width = len(image)
        for b in range(t, len(found), threads):  # Strided: long rows may be neighbours.
            x = found[b]
            if rows.indptr[b] == rows.indptr[b + 1]:
                x[:] = 0
                continue
            _multiply(rows, b, other, gram, penalty[b], x, image)
            for j in range(width):
                residual[j] = -image[j]
            for p in range(rows.indptr[b], rows.indptr[b + 1]):
                own = other[rows.indices[p]]
                for j in range(width):
                    residual[j] += own[j]
            square = np.float32(0)
            for j in range(width):
                direction[j] = residual[j]
                square += residual[j] * residual[j]
            for _ in range(steps):
                if square < 1e-12:  # It is solved, and a further step would divide by 0.
                    break
                _multiply(rows, b, other, gram, penalty[b], direction, image)
                curvature, new = np.float32(0), np.float32(0)
                for j in range(width):
                    curvature += direction[j] * image[j]
                for j in range(width):
                    x[j] += square / curvature * direction[j]
                    residual[j] -= square / curvature * image[j]
                    new += residual[j] * residual[j]
                for j in range(width):
                    direction[j] = residual[j] + new / square * direction[j]
                square = new
            for j in range(width):
                if abs(x[j]) < 1e-12:  # Factors that vanish would make every product slow.
                    x[j] = 0


@parallel
def sum_products(x, found):
    """Write ``x[part].T @ x[part]`` of equal parts of x (n, k) to found (parts, k, k), float32."""
    parts, width = found.shape[:2]
    for part in prange(parts):
        total = found[part]
        total[:] = 0
        for b in range(part * len(x) // parts, (part + 1) * len(x) // parts):
            for i in range(width):
                for j in range(width):
                    total[i, j] += x[b, i] * x[b, j]
