"""The first layer on several processes against a dense product in float64."""

import numpy as np
import pytest
import torch
from helpers.matrices import make_csr, to_dense
from helpers.ranks import run_ranks, several

from slide.distributed.group import Group
from slide.distributed.layers import ShardedInputLinear
from slide.distributed.shares import Shares

D, H, B, SEED = 40, 6, 9, 3
WORK = f"""
import numpy as np, torch
from helpers.matrices import make_csr
from slide.distributed import ShardedInputLinear, Shares
from slide.row_gradients import dense_gradient

def work(group):
    rng = np.random.default_rng(0)
    x = make_csr(rng, rng.integers(0, 7, {B}), {D})
    shares = Shares("features", {D}, group.rank, group.size, np.arange({D}) ** 2)
    layer = ShardedInputLinear(shares, {H}, group, seed={SEED}).double()
    layer.bias.data.copy_(torch.arange({H}))
    out = layer(x).to_dense()
    assert group.calls["all_reduce"] == (group.size > 1)
    (out ** 3).sum().backward()
    assert group.calls["all_reduce"] == (group.size > 1)  # The backward pass sends nothing.
    gradient = dense_gradient(layer.weight)
    return [each.tolist() for each in (out, layer.bias.grad, gradient, shares.ids)]
"""


@several
def test_against_a_dense_product(tmp_path):
    rng = np.random.default_rng(0)
    x = make_csr(rng, rng.integers(0, 7, B), D)
    x = to_dense(x, D).double()
    weight = ShardedInputLinear(Shares("features", D, 0, 1), H, Group.alone(), seed=SEED).weight
    weight = weight.detach().double().requires_grad_()
    bias = torch.arange(H, dtype=torch.float64, requires_grad=True)
    out = x @ weight + bias
    (out**3).sum().backward()
    for ranks in run_ranks(WORK, tmp_path, 2, 3).values():
        for found, grad_bias, gradient, ids in ranks:
            np.testing.assert_allclose(found, out.detach(), rtol=1e-12, atol=1e-12)
            np.testing.assert_allclose(grad_bias, bias.grad, rtol=1e-12)
            np.testing.assert_allclose(gradient, weight.grad[ids], rtol=1e-12, atol=1e-12)


def test_bad_use():
    shares = Shares("features", D, 0, 1)
    with pytest.raises(ValueError, match="out_features must be a whole number of at least 1"):
        ShardedInputLinear(shares, 0, Group.alone())
    with pytest.raises(ValueError, match="init_scale must be a number above 0"):
        ShardedInputLinear(shares, 3, Group.alone(), init_scale=0)
