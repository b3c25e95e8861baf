"""Kernels against references and formulas, several draws, also with kernels as plain Python."""

import numpy as np
import pytest
import torch
from helpers.kernel_formulas import FORMULAS

from slide.check.self_test import SELF_TESTS

TESTS = {**SELF_TESTS, **FORMULAS}


@pytest.mark.kernels_only
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", TESTS)
def test_kernels_equal_their_references_and_formulas(name):
    rng = np.random.default_rng(1)
    torch.manual_seed(1)
    for _ in range(3):
        TESTS[name](rng)
