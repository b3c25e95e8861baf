"""Patterns, vectors and rows of several shapes, for products on patterns."""

import numpy as np

from helpers.matrices import make_pattern

# lengths of the samples' sets, number of rows, width
SHAPES = {
    "ordinary": ([3, 0, 5, 1, 0], 9, 6),
    "no samples": ([], 4, 3),
    "one sample": ([4], 7, 2),
    "all empty": ([0, 0, 0], 4, 3),
    "one id for all": ([1] * 6, 1, 3),
    "width one": ([2, 3, 0, 2], 5, 1),
    "complete": ([4, 4], 4, 5),
}


def draw_product(shape, dtype, seed):
    """Pattern, coefficients ``(nnz,)``, vectors ``(B, D)``, rows ``(N, D)``, bias ``(N,)``."""
    lengths, num_rows, width = SHAPES[shape]
    rng = np.random.default_rng(seed)
    pattern = make_pattern(rng, lengths, num_rows)
    sizes = len(pattern.indices), (len(lengths), width), (num_rows, width), num_rows
    return pattern, *(rng.standard_normal(size).astype(dtype) for size in sizes)
