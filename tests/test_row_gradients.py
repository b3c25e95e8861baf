"""Gradients that are zero outside of some rows."""

import numpy as np
import torch
from helpers import naive
from helpers.products import draw_product

from slide.active_set import transpose
from slide.row_gradients import (
    FactoredRowGradient,
    RowGradient,
    add_row_gradient,
    as_rows,
    dense_gradient,
)


class TestGradients:
    def test_factored_values(self):
        pattern, coefficients, vectors, rows, _ = draw_product("ordinary", np.float64, 3)
        gradient = FactoredRowGradient(transpose(pattern, len(rows)), coefficients, vectors)
        expected = naive.row_gradient(*pattern, coefficients, vectors)
        assert gradient.ids.tolist() == list(expected)
        np.testing.assert_allclose(gradient.values(), list(expected.values()), atol=1e-12)

    def test_pending_gradients_add_up(self):
        weight = torch.nn.Parameter(torch.zeros(4, 2))
        assert not dense_gradient(weight).any()
        rows = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        add_row_gradient(weight, RowGradient(np.array([3, 1], np.int32), rows))
        add_row_gradient(weight, RowGradient(np.array([1, 0], np.int32), rows))
        assert dense_gradient(weight).tolist() == [[3, 4], [4, 6], [0, 0], [1, 2]]

    def test_bias_counts_as_one_column(self):
        bias = torch.nn.Parameter(torch.zeros(3))
        add_row_gradient(bias, RowGradient(np.array([2], np.int32), torch.tensor([[5.0]])))
        assert dense_gradient(bias).tolist() == [0, 0, 5]
        as_rows(bias)[1, 0] = 4
        assert bias.tolist() == [0, 4, 0]
