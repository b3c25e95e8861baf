"""Values on an active set and in a dense matrix, both ways."""

import pytest
import torch
from helpers.active_sets import B, N, draw, every_kind, make_active, pick

from slide.functional.linear import gather_active, scatter_active


class TestScatterAndGather:
    @every_kind
    def test_are_inverse(self, kind):
        active = make_active(kind)
        dense = draw(B, N)
        values = gather_active(dense, active)
        torch.testing.assert_close(values, pick(dense, active))
        scattered = scatter_active(values, active, B)
        mask = scatter_active(torch.ones_like(values), active, B)
        torch.testing.assert_close(scattered, dense * mask)
        assert mask.sum() == values.numel()

    @pytest.mark.parametrize("kind", ["per_sample", "shared", "complete"])
    def test_gradcheck(self, kind):
        active = make_active(kind)
        values = gather_active(draw(B, N), active).detach().requires_grad_()
        assert torch.autograd.gradcheck(lambda v: scatter_active(v, active, B), values)
        assert torch.autograd.gradcheck(lambda d: gather_active(d, active), draw(B, N))
