"""Seeds and columns that do not fit their types: the message names them and their bound."""

import re

import numpy as np
import pytest
import torch
from helpers import job

from slide import Pattern, runtime


@pytest.mark.parametrize(
    "column", [2**31, 2**40, 10**23, -(2**40), 1.5, "3", None, np.int64(2**31)]
)
def test_columns(column):
    said = re.escape(f"columns must be whole numbers in [0, 2147483648), not {column!r}")
    with pytest.raises(ValueError, match=said):
        Pattern.from_lists([[3], [1, column]])


def test_columns_that_fit():
    pattern = Pattern.from_lists([[2**31 - 1, np.int64(4)], [], [torch.tensor(0)]])
    assert pattern.indices.tolist() == [2**31 - 1, 4, 0]
    assert pattern.indices.dtype == np.int32
    assert Pattern.from_lists([]).indices.dtype == np.int32


@pytest.mark.parametrize("seed", [2**64, 10**23])
def test_seeds(tmp_path, seed):
    assert job.failure(f"seed={seed}") == f"error: seed must be below 2^64, not {seed}"


def test_seeds_that_fit():
    runtime.set_deterministic(False, 2**64 - 1)


def test_first_weights_that_are_too_large(tmp_path):
    said = job.failure(*job.tiny(tmp_path, "network.init_scale=1e38", "ranker=none"))
    assert "at step 1, before any update" in said
    assert "network.init_scale" in said
    assert "optimizer.lr" not in said
