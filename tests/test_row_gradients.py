"""Gradients that are zero outside of some rows, and changes of the row numbers."""

import numpy as np
import pytest
import torch
from helpers.active_sets import B, D, N, draw, make_active
from helpers.grids import pairs
from helpers.matrices import make_csr

from slide.backend import backend
from slide.functional import active_conv2d, active_linear, active_linear_loss, sparse_linear
from slide.optim import resize_rows
from slide.sparse import Pattern

# A backward pass after a change of the row numbers is an error, whatever the operation.


FEATURES = make_csr(np.random.default_rng(0), [2] * B, N, np.float64)
TARGETS = make_active("shared", targets=Pattern.from_lists([[0]] * B))
OPERATIONS = {
    "shared": lambda weight: active_linear(draw(B, D), weight, None, make_active("shared")),
    "per sample": lambda w: active_linear(draw(B, D), w, None, make_active("per_sample")),
    "loss": lambda weight: active_linear_loss(draw(B, D), weight, None, TARGETS, "bce"),
    "sparse input": lambda weight: sparse_linear(FEATURES, weight, None),
    "convolution": lambda weight: active_conv2d(draw(B, D, 5, 5), weight),
}


@pairs(name=OPERATIONS, kind=["kernels", "torch"], added=[0, 1, 2])
def test_a_backward_pass_of_other_rows_is_refused(name, kind, added):
    """Also where there are as many rows as before."""
    shape = (N, D, 3, 3) if name == "convolution" else (N, D)
    weight = torch.nn.Parameter(draw(*shape, grad=False))
    with backend(kind):
        out = OPERATIONS[name](weight).sum()
        resize_rows(weight, torch.arange(1, N), weight.detach()[:added].clone())
        with pytest.raises(RuntimeError, match=r"rows of a weight \(.*\) were added or removed"):
            out.backward()
        assert not weight.row_gradients


def test_a_step_changes_no_numbers():
    weight = torch.nn.Parameter(draw(N, D, grad=False))
    out = OPERATIONS["shared"](weight).sum()
    with torch.no_grad():
        weight.mul_(2)
    out.backward()
    assert weight.row_gradients
