"""Random patterns and matrices, and a test of uniformity."""

import math
from itertools import pairwise

import numpy as np
import torch
from scipy.stats import chi2

from slide.sparse import CSR, Pattern


def make_pattern(rng, lengths, num_columns):
    """A `Pattern` with distinct columns in each row, in random order."""
    indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rows = [rng.permutation(num_columns)[:n] for n in lengths]
    return Pattern(indptr, np.concatenate([*rows, []]).astype(np.int32))


def make_csr(rng, lengths, num_columns, dtype=np.float32):
    """A `CSR` of normal values with distinct columns in each row."""
    pattern = make_pattern(rng, lengths, num_columns)
    return CSR(*pattern, rng.standard_normal(len(pattern.indices)).astype(dtype))


def ones_of(pattern, value=1.0):
    """A `CSR` with one value at all entries of a `Pattern`, or of a list of rows."""
    pattern = pattern if isinstance(pattern, Pattern) else Pattern.from_lists(pattern)
    return CSR(*pattern, np.full(len(pattern.indices), value, np.float32))


def dense_of(pattern, num_columns):
    """A `Pattern` as float64 zeros and ones."""
    return to_dense(ones_of(pattern), num_columns).double().numpy()


def rows_of(pattern):
    """The columns of each row, as lists."""
    return [pattern.indices[a:b].tolist() for a, b in pairwise(pattern.indptr)]


def to_dense(x, num_columns):
    """A `CSR` as a dense tensor."""
    out = np.zeros((x.num_rows, num_columns), x.values.dtype)
    out[np.repeat(np.arange(x.num_rows), np.diff(x.indptr)), x.indices] = x.values
    return torch.from_numpy(out)


def chi_square_p(counts, num_draws, num_drawn):
    """P-value of "each id is in a draw of ``num_drawn`` distinct ids with the same probability".

    Drawing without replacement makes the counts vary less than independent draws would.
    """
    n = len(counts)
    p = num_drawn / n
    statistic = ((counts - num_draws * p) ** 2).sum() / (num_draws * p * (1 - p)) * (n - 1) / n
    return float(chi2.sf(statistic, n - 1))


def z_score(hits, trials, p):
    """By how many standard deviations a binomial count differs from its mean."""
    return (hits - trials * p) / math.sqrt(trials * p * (1 - p))
