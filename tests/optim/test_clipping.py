"""Clipping of gradients: dense ones, sparse ones, and those left as rows."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.ranks import run_ranks, several
from helpers.sparse_layers import B, D, N, draw_labels, every_output, make_layer
from torch import nn

from slide.functional.linear import active_linear
from slide.optim.clipping import _see_rows, clip_grad_norm_
from slide.row_gradients import RowGradient, add_row_gradient, dense_gradient

# Programs may import them before the first layer leaves rows, from which on they see rows.
imported_first = SimpleNamespace(
    clip_grad_norm_=nn.utils.clip_grad_norm_, clip_grad_value_=nn.utils.clip_grad_value_
)


class TestClipping:
    @pytest.mark.parametrize(
        ("norm_type", "max_norm"), [(1.0, 0.01), (2.0, 0.01), (2.0, 1e6), (torch.inf, 0.01)]
    )
    def test_all_kinds_of_gradients(self, norm_type, max_norm):
        sparse, rows, linear = make_layer(), make_layer("per_sample", False), nn.Linear(D, 3)
        x = torch.randn(B, D)
        for _ in range(2):
            for layer in (sparse, rows):
                layer(x, draw_labels()).values.square().sum().backward()
        linear(x).square().sum().backward()
        both = [rows.weight, rows.bias]
        dense = [p.grad.to_dense() for p in [sparse.weight, sparse.bias, *linear.parameters()]]
        twins = [nn.Parameter(g.clone()) for g in dense + [dense_gradient(p) for p in both]]
        for twin in twins:
            twin.grad = twin.detach().clone()
        wanted = nn.utils.clip_grad_norm_(twins, max_norm, norm_type)
        parameters = [*sparse.parameters(), *linear.parameters(), *rows.parameters()]
        found = clip_grad_norm_(parameters, max_norm, norm_type)
        torch.testing.assert_close(found, wanted)
        clipped = [p.grad.to_dense() for p in [sparse.weight, sparse.bias, *linear.parameters()]]
        for got, twin in zip(clipped + [dense_gradient(p) for p in both], twins, strict=True):
            torch.testing.assert_close(got, twin.grad)

    @pytest.mark.parametrize("norm_type", [2.0, torch.inf])
    def test_of_no_rows(self, norm_type):
        weight, other = nn.Parameter(torch.zeros(N, D)), nn.Parameter(torch.tensor([3.0]))
        add_row_gradient(weight, RowGradient(np.empty(0, np.int32), torch.empty(0, D)))
        assert clip_grad_norm_(weight, 1.0, norm_type) == 0
        other.grad = torch.tensor([4.0])
        assert clip_grad_norm_([weight, other], 1.0, norm_type) == 4

    def test_one_weight_with_both(self):
        weight = nn.Parameter(torch.randn(N, D))
        active_linear(torch.randn(B, D), weight, None, every_output("shared")).sum().backward()
        weight.sum().backward()
        wanted = (dense_gradient(weight) + weight.grad).norm()
        torch.testing.assert_close(clip_grad_norm_(weight, 1.0), wanted.detach())
        assert dense_gradient(weight).norm() == pytest.approx(1, rel=1e-4)

    @pytest.mark.parametrize(
        ("size", "max_norm", "norm_type"), [(1e-6, 1e-6, 2.0), (3.0, torch.inf, "inf")]
    )
    def test_tiny_gradients_and_infinity_as_pytorch_takes_them(self, size, max_norm, norm_type):
        weight, twin = nn.Parameter(torch.zeros(N, D)), nn.Parameter(torch.zeros(1, D))
        twin.grad = torch.full((1, D), size)
        add_row_gradient(weight, RowGradient(np.zeros(1, np.int32), twin.grad.clone()))
        wanted = nn.utils.clip_grad_norm_(twin, max_norm, norm_type)
        torch.testing.assert_close(clip_grad_norm_(weight, max_norm, norm_type), wanted)
        torch.testing.assert_close(dense_gradient(weight)[:1], twin.grad, atol=0, rtol=1e-4)

    def test_what_was_handed_over_stays(self):
        weight, rows = nn.Parameter(torch.zeros(N, D)), torch.ones(2, D)
        add_row_gradient(weight, RowGradient(np.array([1, 3], np.int32), rows))
        clip_grad_norm_(weight, 0.1)
        assert dense_gradient(weight).norm() == pytest.approx(0.1, rel=1e-4)
        assert torch.equal(rows, torch.ones(2, D))

    def test_nothing_to_clip_and_errors(self):
        assert clip_grad_norm_(make_layer().parameters(), 1.0) == 0
        with pytest.raises(ValueError, match="max_norm must be a number above 0, not 0"):
            clip_grad_norm_([], 0)
        with pytest.raises(ValueError, match="norm_type must be"):
            clip_grad_norm_([], 1, -1)

    def test_pytorchs_own_takes_rows(self):
        rows, linear = make_layer(sparse_grad=False), nn.Linear(D, 3)
        x = torch.randn(B, D)
        (rows(x).values.square().sum() + linear(x).square().sum()).backward()
        parameters = [*linear.parameters(), *rows.parameters()]
        gradients = [p.grad for p in linear.parameters()]
        gradients += [dense_gradient(p) for p in rows.parameters()]
        wanted = torch.cat([g.flatten() for g in gradients]).norm(1.0)
        found = imported_first.clip_grad_norm_(iter(parameters), 0.5, 1.0)
        torch.testing.assert_close(found, wanted)
        assert nn.utils.clip_grad_norm_(parameters, 9.0, 1.0) == pytest.approx(0.5, rel=1e-3)
        assert nn.utils.clip_grad_norm_(linear.parameters(), 9.0, 1.0, foreach=False) < 0.51

    @pytest.mark.parametrize("decorated", [True, False], ids=["as_today", "a_plain_function"])
    def test_what_does_not_see_rows_says_so(self, decorated, monkeypatch):
        layer = make_layer(sparse_grad=False)
        if not decorated:
            plain = nn.utils.clip_grad_value_.__wrapped__
            for module in (nn.utils.clip_grad, nn.utils):
                monkeypatch.setattr(module, "clip_grad_value_", plain)
                monkeypatch.setattr(module, "clip_grad_norm_", module.clip_grad_norm_)
            _see_rows()
        layer(torch.randn(B, D)).values.sum().backward()
        clip = imported_first if decorated else nn.utils
        with pytest.raises(RuntimeError, match=r"does not see .*slide\.clip_grad_norm_"):
            clip.clip_grad_value_(layer.parameters(), 1.0)

    def test_a_norm_that_is_not_finite(self):
        layer = make_layer(sparse_grad=False)
        layer(torch.full((B, D), torch.inf)).values.sum().backward()
        with pytest.raises(RuntimeError, match="total norm of the gradients is"):
            nn.utils.clip_grad_norm_(layer.parameters(), 1.0, error_if_nonfinite=True)


RANKS = """
import copy

def work(group):
    found = []
    for norm_type in (1.0, 2.0, float("inf")):
        network = ShardedNetwork(50, [4, 3], 30, FullSampler, group, seed=5)
        network = copy.deepcopy(network)  # A copy has parameters of its own.
        hidden = network.encode(torch.linspace(-1, 1, 200).view(4, 50))
        network.output.loss(hidden, [[0], [7, 29], [], [3]], ActiveLoss("softmax"))[0].backward()
        before = slide.clip_grad_norm_(network.parameters(), 0.1, norm_type)
        after = slide.clip_grad_norm_(network.parameters(), 0.1, norm_type)
        whole = [p for name, p in network.named_parameters() if name not in network.shared_rows()]
        gradient = [dense_gradient(p) if p.grad is None else p.grad for p in whole]
        gradient = torch.cat([each.flatten() for each in gradient])
        found.append([before.item(), after.item(), *gradient.tolist()])
    return found
"""


@several
def test_parameters_that_processes_share_out(tmp_path):
    """Norms and gradients are those of one process with all rows, and equal on all ranks."""
    found = run_ranks(RANKS, tmp_path, 2)
    alone = np.array(found[1][0])
    assert (alone[:, 0] > 0.11).all()
    np.testing.assert_allclose(alone[:, 1], 0.1, rtol=1e-4)
    for rank in found[2]:
        assert rank == found[2][0]
        np.testing.assert_allclose(rank, alone, rtol=1e-4, atol=1e-7)
