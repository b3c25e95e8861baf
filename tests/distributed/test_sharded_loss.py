"""Losses and gradients of outputs that ranks share out, against dense formulas in float64."""

from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from helpers.ranks import run_ranks, several

from slide.distributed.group import Group
from slide.distributed.sharded_layers import ShardedOutputLinear
from slide.distributed.shares import Shares
from slide.functional import linear
from slide.functional.losses import LOSSES, ActiveLoss, Loss, find_loss
from slide.sampling import ActiveSampler

H, N, SEED = 5, 23, 4
LABELS = [[0, 3, 22], [7], [], [5, 6, 7, 8], [3], [21, 1]]
B = len(LABELS)
FACTORS = [1.0, 2.0, 0.5, 0.0, 1.5, 3.0]
# Of two ranks, the one with fewer outputs has a complete set of "most".
ACTIVE = {"shared": 9, "per_sample": 9, "most": 22}
KINDS = ["all", *ACTIVE]
SIZES = (1, 2, 3)
CASES = [*product(LOSSES, KINDS, (1.0, 0.5))]
COUNTS = {  # all_reduce, all_gather
    "bce": (1, 0),
    "squared_hinge": (1, 0),
    "softmax": (1, 1),
    "decoupled_softmax": (2, 1),
}

WORK = f"""
def sampler(kind):
    if kind == "all":
        return FullSampler
    mode = "shared" if kind == "most" else kind
    return partial(ActiveSampler, active={ACTIVE}[kind], mode=mode, weighting="stratified")

def case(group, name, kind, hard):
    counts = np.arange({N})[::-1] ** 2
    shares = Shares("labels", {N}, group.rank, group.size, counts)
    layer = ShardedOutputLinear({H}, shares, group, sampler(kind), 2.0, {SEED}).double()
    x = torch.linspace(-1, 1, {B * H}, dtype=torch.float64).view({B}, {H}).requires_grad_()
    group.calls.clear()
    loss, active = layer.loss(x, {LABELS}, ActiveLoss(name, hard), {FACTORS})
    calls = dict(group.calls)
    (2 * loss).backward()
    assert calls == dict(group.calls)
    ids = shares.ids[active.ids].tolist()
    logs = [0.0] * len(ids) if active.log_weights is None else active.log_weights.tolist()
    indptr = active.indptr if active.indptr is None else active.indptr.tolist()
    gradients = [dense_gradient(each).tolist() for each in layer.parameters()]
    found = loss.item(), x.grad.tolist(), gradients, [p.tolist() for p in layer.parameters()]
    return *found, shares.ids.tolist(), (ids, indptr, logs), calls, active.complete

def work(group):
    return [case(group, *each) for each in {CASES}]
"""


def whole(parts, at):
    """Rows of all ranks in their order, from ``(rows, ids)`` of each."""
    rows = torch.cat([torch.tensor(part[at[0]][at[1]], dtype=torch.float64) for part in parts])
    return rows[np.argsort(np.concatenate([part[4] for part in parts]))]


def dense_answer(parts, name, hard):
    """Loss and gradients by a dense formula over the sets of all ranks together."""
    weight, bias = (whole(parts, (3, i)).requires_grad_() for i in (0, 1))
    logs = torch.full((B, N), -torch.inf, dtype=torch.float64)
    for part in parts:
        ids, indptr, weights = part[5]
        bounds = indptr or [0, len(ids)]
        for b in range(B):
            own = slice(*bounds[b : b + 2]) if indptr else slice(None)
            logs[b, ids[own]] = torch.tensor(weights[own], dtype=torch.float64)
    aimed = torch.zeros(B, N, dtype=torch.bool)
    for b, row in enumerate(LABELS):
        aimed[b, row] = True
    assert (logs[aimed] == 0).all()
    x = torch.linspace(-1, 1, B * H, dtype=torch.float64).view(B, H).requires_grad_()
    scores = x @ weight.T + bias
    if name in ("bce", "squared_hinge"):  # 0 * an infinite score would be NaN.
        scores = scores.where(logs > -torch.inf, 0)
    losses = LOSSES[name].dense(scores, aimed, logs) * torch.tensor(FACTORS, dtype=torch.float64)
    mean = losses.topk(round(hard * B)).values.mean()
    (2 * mean).backward()
    return mean, x.grad, weight.grad, bias.grad


@several
def test_against_dense_formulas(tmp_path):
    found = run_ranks(WORK, tmp_path, *SIZES[1:])
    for size, (number, (name, kind, hard)) in product(SIZES, enumerate(CASES)):
        parts = [ranks[number] for ranks in found[size]]
        wanted = dense_answer(parts, name, hard)
        close = {"rtol": 1e-6, "atol": 1e-6} if kind != "all" else {"rtol": 1e-10, "atol": 1e-10}
        for part in parts:
            assert part[:2] == parts[0][:2]  # In each bit.
            loss = torch.tensor(part[0], dtype=torch.float64)
            torch.testing.assert_close(loss, wanted[0].detach(), **close)
            grad_x = torch.tensor(part[1], dtype=torch.float64)
            torch.testing.assert_close(grad_x, wanted[1], **close)
            reduced, gathered = COUNTS[name] if size > 1 else (0, 0)
            if hard < 1 and size > 1 and name in ("bce", "squared_hinge"):
                reduced += 1
            calls = {"all_reduce": reduced, "all_gather": gathered}
            assert part[6] == {call: count for call, count in calls.items() if count}
        for i in (0, 1):
            torch.testing.assert_close(whole(parts, (2, i)), wanted[2 + i], **close)
        if kind == "most" and size == 2:
            assert {part[7] for part in parts} == {True, False}
        if kind in ("shared", "per_sample"):
            chosen = sum(len(part[5][0]) for part in parts)
            assert chosen < N * (B if kind == "per_sample" else 1)


def make_layer(**options):
    return ShardedOutputLinear(H, Shares("labels", N, 0, 1), Group.alone(), **options)


@pytest.mark.kernels_only
@pytest.mark.parametrize("name", ["bce", "squared_hinge"])
def test_the_exchange_goes_on_while_the_gradient_of_the_weight_is_computed(name, monkeypatch):
    done = []

    def noted(what, function):
        return lambda *arguments: done.append(what) or function(*arguments)

    begin = noted("begin", lambda group, tensor: noted("end", lambda: tensor))
    monkeypatch.setattr(Group, "begin_all_reduce", begin)
    weights = noted("weight", linear.weight_gradient)
    monkeypatch.setattr(linear, "weight_gradient", weights)
    layer = make_layer(sampler=partial(ActiveSampler, active=9))
    x = torch.randn(B, H).requires_grad_()
    layer.loss(x, LABELS, ActiveLoss(name))[0].backward()
    assert done == ["begin", "weight", "end"]


def test_without_gradients():
    layer, x = make_layer(), torch.randn(B, H)
    with torch.no_grad():
        quiet = layer.loss(x, LABELS, ActiveLoss("softmax"))[0]
    loud = layer.loss(x, LABELS, ActiveLoss("softmax"))[0]
    assert not quiet.requires_grad
    assert quiet.item() == loud.item()
    loud.backward()
    assert x.grad is None


def test_sparse_gradients_go_through_autograd():
    layer, x = make_layer(sparse_grad=True), torch.randn(B, H)
    other = make_layer()
    (2 * layer.loss(x, LABELS, ActiveLoss("bce"))[0]).backward()
    (2 * other.loss(x, LABELS, ActiveLoss("bce"))[0]).backward()
    assert layer.weight.grad.is_sparse
    rows = other.weight.row_gradients[0].values()
    torch.testing.assert_close(layer.weight.grad.to_dense(), rows)


def test_a_loss_whose_outputs_share_a_target_is_refused():
    own = find_loss("softmax")
    strange = Loss("mine", own.kernel, own.dense, own.prior_score, splits_target=True)
    layer = make_layer()
    layer.loss(torch.randn(B, H), LABELS, ActiveLoss(strange))  # On one process there is no matter.
    layer.group.size = 2
    with pytest.raises(ValueError, match="loss mine cannot be computed on several processes"):
        layer.loss(torch.randn(B, H), LABELS, ActiveLoss(strange))
    with pytest.raises(ValueError, match="class_weights need all labels of a sample on one proc"):
        make_layer().loss(
            torch.randn(B, H), LABELS, ActiveLoss("softmax", class_weights=[1.0, 2.0])
        )
    with pytest.raises(ValueError, match="softmax with temperature cannot be computed on several"):
        layer.loss(torch.randn(B, H), LABELS, ActiveLoss("softmax", temperature=0.5))
    with pytest.raises(TypeError, match="must be an ActiveLoss, not"):
        make_layer().loss(torch.randn(B, H), LABELS, lambda scores, active: scores.sum())
