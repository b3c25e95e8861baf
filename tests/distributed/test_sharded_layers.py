"""Layers on several processes: against a dense product, and against one process."""

from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.ranks import run_ranks, several

from slide.distributed.group import Group
from slide.distributed.sharded_layers import ShardedInputLinear, ShardedSampledLinear
from slide.distributed.shares import Shares
from slide.functional.losses import ActiveLoss


def test_bad_use_of_inputs():
    shares = Shares("features", 40, 0, 1)
    with pytest.raises(ValueError, match="out_features must be a whole number of at least 1"):
        ShardedInputLinear(shares, 0, Group.alone())
    with pytest.raises(ValueError, match="init_scale must be a number above 0"):
        ShardedInputLinear(shares, 3, Group.alone(), init_scale=0)


EXAMPLES = Path(__file__).parents[2] / "examples"
LAYER_WORK = """
IN, H, N, B = 7, 6, 30, 11
rng = np.random.default_rng(0)
X = torch.from_numpy(rng.normal(size=(4, B, IN))).float()
LABELS = [[rng.choice(N, rng.integers(0, 4), replace=False).tolist() for _ in range(B)]
          for _ in range(4)]
FACTORS = rng.random(B)
# Ranks bring different numbers of samples, and one brings none.
BOUNDS = {1: [0, 11], 2: [0, 4, 11], 3: [0, 5, 5, 11]}

def train(group, name):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(IN, H), nn.Tanh())
    if group.size > 1:
        encoder = DistributedDataParallel(encoder)
    layer = ShardedSampledLinear(H, N, group=group, counts=np.arange(N) ** 2, seed=5)
    optimizers = [torch.optim.SGD(encoder.parameters(), 0.3), RowSparseAdam(layer.parameters())]
    own = slice(*BOUNDS[group.size][group.rank : group.rank + 2])
    losses = []
    for x, labels in zip(X, LABELS):
        group.calls.clear()
        weights = FACTORS[own] if name == "softmax" else None
        loss, _ = layer.loss(encoder(x[own]), labels[own], ActiveLoss(name), weights)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    calls = dict(group.calls)
    with torch.no_grad():
        scores, ids = layer.top_k(encoder(X[0][own]), 9)
    weights = torch.cat([p.flatten() for p in encoder.parameters()])
    return losses, weights.tolist(), scores.tolist(), ids.tolist(), calls

def work(group):
    return [train(group, name) for name in ("bce", "softmax")]
"""


@several
def test_as_one_process_with_all_samples(tmp_path):
    found = run_ranks(LAYER_WORK, tmp_path, 2, 3)
    for number, (reduced, gathered) in enumerate([(1, 3), (1, 5)]):
        losses, weights, scores, ids, _ = found[1][0][number]
        for size in (2, 3):
            every = [rank[number] for rank in found[size]]
            for rank in every:
                np.testing.assert_allclose(rank[0], losses, rtol=1e-5)
                np.testing.assert_allclose(rank[1], weights, rtol=1e-4, atol=1e-6)
                # Sizes, inputs, labels; factors and log-sum-exps in the second case.
                assert rank[4] == {"all_reduce": reduced, "all_gather": gathered}
            together = [[*chain.from_iterable(rank[i] for rank in every)] for i in (2, 3)]
            np.testing.assert_allclose(together[0], scores, rtol=1e-4, atol=1e-5)
            assert together[1] == ids


NO_GRADIENT = """
def gradients(group, x, name, hard, quiet=False):
    '''The loss and the gradients of all inputs; the first rank brings all samples.'''
    layer = ShardedSampledLinear(4, 9, group=group)
    labels, loss = [[1], [2, 8], [5]], ActiveLoss(name, hard)
    if group.rank:
        x, labels = torch.zeros(0, 4), []
    with torch.set_grad_enabled(not (quiet and group.rank)):
        mean, _ = layer.loss(x, labels, loss)
    assert mean.requires_grad == (not (quiet and group.rank))
    if mean.requires_grad:
        mean.backward()
    grad = None if x.grad is None else (x.grad / group.size).tolist()
    return mean.item(), grad

def work(group):
    torch.manual_seed(0)
    x, found = torch.randn(3, 4), []
    for name, hard in (("bce", 1.0), ("bce", 0.5), ("softmax", 1.0)):
        found.append(gradients(group, x.clone().requires_grad_(), name, hard))
        found.append(gradients(group, x.clone().requires_grad_(), name, hard, quiet=True))
        found.append(gradients(group, x.clone(), name, hard))
    return found
"""


@several
def test_a_process_whose_inputs_need_no_gradient_takes_part_in_that_of_others(tmp_path):
    """Such as one that has no samples left, or that computes the loss without gradients."""
    found = run_ranks(NO_GRADIENT, tmp_path, 2)
    for alone, first, other in zip(found[1][0], *found[2], strict=True):
        np.testing.assert_allclose([first[0], other[0]], alone[0], rtol=1e-5)
        assert other[1] is None
        assert (first[1] is None) == (alone[1] is None)
        if first[1] is not None:
            np.testing.assert_allclose(first[1], alone[1], rtol=1e-4, atol=1e-6)


UNLIKE = """
def said(work):
    try:
        work()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"

def work(group):
    layer, loss = ShardedSampledLinear(4, 8, group=group), ActiveLoss("bce")
    x, found = torch.ones(2, 4), []
    for bad in (torch.ones(2, 5), torch.ones(8), x.double(), [[1.0] * 4] * 2):
        own = bad if group.rank else x
        found.append(said(lambda: layer.loss(own, [[1], [2]], loss)))
        found.append(said(lambda: layer.top_k(own, 3)))
    for k in (4, 9, 2.5):
        found.append(said(lambda: layer.top_k(x, k if group.rank else 3)))
    found.append(said(lambda: layer.top_k(x, 9)))
    for unlike in (dict(width=5), dict(dtype=torch.float64)):
        width, dtype = unlike.get("width", 4), unlike.get("dtype", torch.float32)
        if not group.rank:
            width, dtype = 4, torch.float32
        other = ShardedSampledLinear(width, 8, group=group).to(dtype)
        found.append(said(lambda: other.loss(torch.ones(2, width, dtype=dtype), [[1], [2]], loss)))
    found.append(said(lambda: layer.loss(x, [[1], [99 if group.rank else 2]], loss)))
    weights = [1.0, 1.0] if group.rank else None
    found.append(said(lambda: layer.loss(x, [[1], [2]], loss, weights)))
    assert said(lambda: layer.loss(x, [[1], [2]], loss)) is None
    assert said(lambda: layer.top_k(x, 3)) is None
    return found
"""


@several
def test_inputs_of_one_process_that_do_not_fit_are_an_error_of_all(tmp_path):
    first, other = run_ranks(UNLIKE, tmp_path, 2)[2]
    told = "ValueError: the samples of rank 1 have an error, which it tells"
    both = "ValueError: k must be the same on all processes, not 3, "
    same = [both + "4", both + "9", told, "ValueError: k must be in [1, 8], not 9"]
    same.append("ValueError: inputs must have one width on all processes, not 4, 5")
    same.append("ValueError: inputs must have one type on all processes, not torch.float32, ")
    same[-1] += "torch.float64"
    weights = "ValueError: weights are needed on all processes or on none"
    assert first == [told] * 8 + same + [told, weights]
    assert other[8:10] + other[11:14] == same[:2] + same[3:]
    assert "99" in other[14]
    assert other[15] == weights
    for found, words in zip(other[:8:2], ("(2, 5)", "(8,)", "float64", "not list"), strict=True):
        assert words in found
    assert other[1:8:2] == other[:8:2]
    assert other[10].startswith("TypeError: ")


REFUSED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.output = nn.Linear(3, 4), ShardedSampledLinear(4, 8)
    def forward(self, x, labels):
        return self.output.loss(self.encoder(x), labels, ActiveLoss("bce"))[0]

def work(group):
    if group.size == 1:
        return "alone"
    model = DistributedDataParallel(Model())
    try:
        model(torch.ones(2, 3), [[1], [2]])
    except RuntimeError as error:
        return str(error)
"""


@several
def test_inside_of_data_parallel_it_is_refused(tmp_path):
    for said in run_ranks(REFUSED, tmp_path, 2)[2]:
        assert "DistributedDataParallel does not" in said
        assert "slide.distributed.ShardedSampledLinear" in said


EXAMPLE = f"""
sys.path.insert(0, {str(EXAMPLES)!r})
import data_parallel

def work(group):
    if group.size == 1:
        return None
    sizes = ["--outputs", "300", "--active", "100", "--batch", "32", "--hidden", "32"]
    return data_parallel.main([*sizes, "--steps", "80"])
"""


@several
def test_the_example_learns(tmp_path):
    one, other = run_ranks(EXAMPLE, tmp_path, 2)[2]
    assert one == other
    assert one > 0.4
    assert "% of new samples are right, out of 300 outputs" in (tmp_path / "2-0.txt").read_text()


def test_bad_use():
    layer = ShardedSampledLinear(4, 8, group=Group.alone())
    x, loss = torch.randn(2, 4), ActiveLoss("bce")
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 8\)"):
        layer.loss(x, [[8], [1]], loss)
    with pytest.raises(ValueError, match="3 rows of labels do not fit 2 inputs"):
        layer.loss(x, [[1], [2], [3]], loss)
    with pytest.raises(ValueError, match=r"weights \(1,\) do not fit 2 rows"):
        layer.loss(x, [[1], [2]], loss, [1.0])
    with pytest.raises(RuntimeError, match="have not joined yet"):
        ShardedSampledLinear(4, 8)
