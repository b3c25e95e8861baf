"""A sparse ``(N, D)`` matrix with empty rows and a full one."""

import numpy as np

from helpers.matrices import make_csr

N, D = 23, 9
LENGTHS = [3, 0, 9, 1, 0, *[2] * 17, 4]


def make(lengths=LENGTHS, num_columns=D, dtype=np.float64, seed=0):
    return make_csr(np.random.default_rng(seed), lengths, num_columns, dtype)
