"""Losses on patterns against their plain torch twins."""

import numpy as np
import pytest
import torch
from helpers.matrices import make_pattern

from slide.active_set import ActiveSet
from slide.functional import losses
from slide.functional.linear import active_linear
from slide.functional.losses import (
    LOSS_NAMES,
    ActiveLoss,
    active_linear_loss,
    dense_loss,
    loss_on_active,
)
from slide.row_gradients import dense_gradient
from slide.sparse import Pattern

N = 40
# Sizes of the samples' sets and numbers of labels: among them none, one, and all.
CASES = {
    "per_sample": ([6, 5, 4, 1, 1, 9], [2, 0, 4, 1, 0, 3]),
    "shared": ([7] * 5, [2, 0, 7, 1, 3]),
    "one sample": ([3], [1]),
    "nothing but empty sets": ([0, 0], [0, 0]),
}


def draw(case, weighted, dtype, seed=0):
    """Scores and an active set with targets at random places."""
    sizes, counts = CASES[case]
    rng = np.random.default_rng(seed)
    shared = case == "shared"
    positions = [rng.permutation(size)[:n] for size, n in zip(sizes, counts, strict=True)]
    if shared:
        # Targets have weight 1 in a set, and a column has one weight for all rows.
        positions = [np.sort(p) for p in positions]
    indptr = np.concatenate([[0], np.cumsum(counts)])
    targets = Pattern(indptr, np.concatenate(positions).astype(np.int32))
    sets = make_pattern(rng, sizes, N)
    log_weights = None
    if weighted:
        log_weights = rng.uniform(-1, 3, len(sets.indices)).astype(np.float32)
        for b, own in enumerate(positions):
            log_weights[sets.indptr[b] + own] = 0
    if shared:
        log_weights = None if log_weights is None else np.zeros(7, np.float32)
        active = ActiveSet(N, sets.indices[:7], None, targets, log_weights)
        shape = (len(sizes), 7)
    else:
        active = ActiveSet(N, sets.indices, sets.indptr, targets, log_weights)
        shape = (len(sets.indices),)
    scores = torch.from_numpy(2 * rng.standard_normal(shape)).to(dtype)
    return scores, active


def draw_shared_weights(dtype):
    """A shared set in which the first four columns are the labels."""
    rng = np.random.default_rng(5)
    targets = Pattern(np.array([0, 2, 2, 5]), np.array([1, 3, 0, 2, 1], np.int32))
    log_weights = np.concatenate([np.zeros(4), np.full(6, 1.3)]).astype(np.float32)
    active = ActiveSet(N, rng.permutation(N)[:10].astype(np.int32), None, targets, log_weights)
    return torch.from_numpy(rng.standard_normal((3, 10))).to(dtype), active


def rows_of(scores, active):
    """``(scores, targets, log weights)`` of each sample, as parts of the tensor of scores."""
    targets = active.targets
    for b in range(targets.num_rows):
        at = slice(None) if active.shared else slice(active.indptr[b], active.indptr[b + 1])
        own = scores[b] if active.shared else scores[at]
        mask = torch.zeros(len(own), dtype=torch.bool)
        mask[targets.indices[targets.indptr[b] : targets.indptr[b + 1]].astype(np.int64)] = True
        w = None if active.log_weights is None else torch.from_numpy(active.log_weights[at])
        yield own[None], mask[None], None if w is None else w.to(own.dtype)[None]


def expected_loss(scores, active, name):
    """The mean of `dense_loss` over the rows; sets without outputs have no loss."""
    parts = [
        dense_loss(own, mask, name, w)
        for own, mask, w in rows_of(scores, active)
        if own.shape[1] and not (name.endswith("softmax") and not mask.any())
    ]
    return sum(parts, scores.sum() * 0) / active.targets.num_rows


def without_negatives(scores, active):
    """Which scores belong to a sample whose outputs are all labels, as scores are shaped."""
    parts = [mask.all().expand(own.shape[1]) for own, mask, _ in rows_of(scores, active)]
    return torch.cat(parts).view(scores.shape)


def assert_equals_dense(scores, active, name, tolerance):
    scores.requires_grad_()
    loss = loss_on_active(scores, active, name)
    precise = scores.detach().double().requires_grad_()
    expected = expected_loss(precise, active, name)
    assert loss.dtype == scores.dtype
    torch.testing.assert_close(loss.double(), expected, atol=tolerance, rtol=tolerance)
    (gradient,) = torch.autograd.grad(loss, scores)
    (wanted,) = torch.autograd.grad(expected, precise)
    if name == "decoupled_softmax":
        # There is nothing to compare with, so nothing to learn; autograd gives NaN.
        wanted = torch.where(without_negatives(scores, active), 0, wanted)
    torch.testing.assert_close(gradient.double(), wanted, atol=tolerance, rtol=tolerance)


every_loss = pytest.mark.parametrize("name", LOSS_NAMES)
every_case = pytest.mark.parametrize("case", CASES)


@every_loss
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
class TestAgainstTorch:
    @every_case
    @pytest.mark.parametrize("seed", [0, 1])
    def test_all_cases(self, case, seed, dtype, tolerance, weighted, name):
        assert_equals_dense(*draw(case, weighted, dtype, seed), name, tolerance)

    @pytest.mark.parametrize("size", [10.0, 1e4])
    @pytest.mark.parametrize("case", ["per_sample", "shared"])
    def test_extreme_scores(self, case, size, dtype, tolerance, weighted, name):
        scores, active = draw(case, weighted, dtype)
        scores = size * torch.sign(scores)
        if dtype == torch.float32 and size == 1e4:
            tolerance = 1e-3  # a score and the logarithm of a weight, added in single precision
        assert_equals_dense(scores, active, name, tolerance)
        assert torch.isfinite(loss_on_active(scores, active, name))


@every_loss
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_weights_of_shared_columns(dtype, tolerance, name):
    scores, active = draw_shared_weights(dtype)
    assert_equals_dense(scores, active, name, tolerance)
    unweighted = ActiveSet(N, active.ids, None, active.targets)
    assert loss_on_active(scores, active, name) > loss_on_active(scores, unweighted, name)


@every_loss
@pytest.mark.parametrize("weighted", [False, True])
@every_case
def test_gradcheck(case, weighted, name):
    scores, active = draw(case, weighted, torch.float64, seed=3)
    if scores.numel() == 0:
        assert loss_on_active(scores, active, name) == 0
        return
    assert torch.autograd.gradcheck(
        lambda s: loss_on_active(s, active, name), scores.requires_grad_()
    )


@every_loss
def test_gradcheck_with_weights_of_shared_columns(name):
    scores, active = draw_shared_weights(torch.float64)
    assert torch.autograd.gradcheck(
        lambda s: 3 * loss_on_active(s, active, name), scores.requires_grad_()
    )


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "places",
    [[0], [2], [3], [5], [0, 2], [1, 3, 4, 5], list(range(6))],
    ids=lambda p: "".join(map(str, p)),
)
def test_nan_is_not_swallowed(places, dtype, name):
    """Targets stand at places 0 and 2."""
    targets = Pattern(np.array([0, 2]), np.array([0, 2], np.int32))
    for shared in (False, True):
        indptr = None if shared else np.array([0, 6])
        active = ActiveSet(N, np.arange(6, dtype=np.int32), indptr, targets)
        scores = torch.linspace(-2, 2, 6, dtype=dtype)
        scores[places] = torch.nan
        scores = (scores[None] if shared else scores).requires_grad_()
        loss = loss_on_active(scores, active, name)
        assert torch.isnan(loss)
        loss.backward()
        assert torch.isnan(scores.grad.flatten()[places]).any()


@pytest.mark.parametrize("name", ["softmax", "decoupled_softmax"])
def test_samples_without_labels_add_nothing_to_softmaxes(name):
    targets = Pattern(np.array([0, 0, 1]), np.array([1], np.int32))
    active = ActiveSet(N, np.arange(3, dtype=np.int32), None, targets)
    scores = torch.randn(2, 3, requires_grad=True)
    loss = loss_on_active(scores, active, name)
    loss.backward()
    assert not scores.grad[0].any()
    own = Pattern(np.array([0, 1]), np.array([1], np.int32))
    alone = loss_on_active(scores[1:], ActiveSet(N, active.ids, None, own), name)
    torch.testing.assert_close(loss, alone / 2)


def test_softmax_with_one_label_is_cross_entropy():
    scores = torch.randn(4, 6)
    labels = torch.tensor([5, 0, 3, 3])
    targets = Pattern(np.arange(5), labels.numpy().astype(np.int32))
    active = ActiveSet(6, np.arange(6, dtype=np.int32), None, targets)
    expected = torch.nn.functional.cross_entropy(scores, labels)
    torch.testing.assert_close(ActiveLoss("softmax")(scores, active), expected)


def test_decoupled_softmax_by_hand():
    scores = torch.tensor([[1.0, 2.0, 0.5, -1.0]])
    targets = Pattern(np.array([0, 2]), np.array([0, 1], np.int32))
    active = ActiveSet(4, np.arange(4, dtype=np.int32), None, targets)
    negatives = np.exp(0.5) + np.exp(-1)
    expected = [np.log1p(negatives / np.exp(z)) for z in (1, 2)]
    loss = ActiveLoss("decoupled_softmax")(scores, active)
    assert loss.item() == pytest.approx(np.mean(expected))


def loss_of_constant(scores, labels, name):
    """The loss if all samples have the same scores ``(N,)``."""
    active = ActiveSet(len(scores), np.arange(len(scores), dtype=np.int32), None, labels)
    return loss_on_active(scores.repeat(labels.num_rows, 1), active, name).item()


@every_loss
@pytest.mark.parametrize("extra", [0, 1])
def test_prior_scores(extra, name):
    """With ``extra`` some samples have two labels."""
    lengths = np.tile([1, 1, 1, 1, 1, 1 + extra, 1], 20)
    ids = np.tile(np.array([0, 0, 0, 1, 1, *[0] * extra, 2, 0], np.int32), 20)
    labels = Pattern(np.concatenate([[0], np.cumsum(lengths)]), ids)
    prior = ActiveLoss(name).prior_scores(labels, 4)
    assert prior.shape == (4,)
    assert prior.dtype == torch.float32
    best = loss_of_constant(prior, labels, name)
    assert best < loss_of_constant(torch.zeros(4), labels, name)
    if extra and name.endswith("softmax"):
        return  # These weigh the labels of a sample with several less: not quite the minimum.
    for i in range(3):
        for step in (-0.7, 0.7):
            moved = prior.clone()
            moved[i] += step
            assert best < loss_of_constant(moved, labels, name)


class TestErrors:
    def test_unknown_loss(self):
        scores, active = draw("per_sample", False, torch.float32)
        for call in (
            lambda: ActiveLoss("mse"),
            lambda: loss_on_active(scores, active, "mse"),
            lambda: dense_loss(scores[None], scores[None] > 0, "mse", None),
        ):
            with pytest.raises(ValueError, match="loss must be one of"):
                call()

    def test_no_targets(self):
        active = ActiveSet(N, np.arange(3, dtype=np.int32))
        with pytest.raises(ValueError, match="needs an active set with targets"):
            ActiveLoss("bce")(torch.zeros(2, 3), active)


def draw_linear(mode, weighted, dtype):
    """Inputs, weight and bias of a layer, and an active set with targets."""
    rng = np.random.default_rng(5)
    x = torch.from_numpy(rng.standard_normal((7, 6))).to(dtype).requires_grad_()
    weight = torch.nn.Parameter(torch.from_numpy(rng.standard_normal((N, 6))).to(dtype))
    bias = torch.nn.Parameter(torch.from_numpy(rng.standard_normal(N)).to(dtype))
    positions = [[0, 2], [1], [], [3, 0], [4], [2], [1, 2, 3]]
    targets = Pattern(
        np.cumsum([0, *map(len, positions)]), np.concatenate(positions).astype(np.int32)
    )
    if mode == "shared":
        ids, indptr = rng.permutation(N)[:9].astype(np.int32), None
    else:
        ids = np.concatenate([rng.permutation(N)[:9] for _ in range(7)]).astype(np.int32)
        indptr = np.arange(8) * 9
    log_weights = None
    if weighted:
        # Targets, of which there are five positions, have weight 1.
        one = np.r_[np.zeros(5), rng.uniform(0, 2, 4)].astype(np.float32)
        log_weights = one if mode == "shared" else np.tile(one, 7)
    return x, weight, bias, ActiveSet(N, ids, indptr, targets, log_weights)


def loss_and_gradients(loss, x, weight, bias):
    (3 * loss).backward()
    found = [loss.detach(), x.grad.clone(), dense_gradient(weight)]
    if bias is not None:
        found.append(dense_gradient(bias))
        bias.row_gradients = []
    x.grad, weight.row_gradients = None, []
    return found


@every_loss
@pytest.mark.parametrize("mode", ["shared", "per_sample"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("with_bias", "hard"), [(False, 1.0), (True, 1.0), (True, 0.3)])
def test_loss_of_a_linear_layer_equals_the_two_steps(
    monkeypatch, name, mode, weighted, with_bias, hard
):
    monkeypatch.setattr(losses, "BLOCK", 1)
    monkeypatch.setattr(losses, "LEAST", 2)  # Two samples at a time, and one at last.
    x, weight, bias, active = draw_linear(mode, weighted, torch.float64)
    bias = bias if with_bias else None
    whole = active_linear_loss(x, weight, bias, active, name, hard_fraction=hard)
    found = loss_and_gradients(whole, x, weight, bias)
    steps = loss_on_active(active_linear(x, weight, bias, active), active, name, hard)
    for one, other in zip(found, loss_and_gradients(steps, x, weight, bias), strict=True):
        torch.testing.assert_close(one, other)


@every_loss
@pytest.mark.parametrize("hard", [1.0, 0.5])
@pytest.mark.parametrize("least", [2, 64])
def test_loss_of_a_linear_layer_in_bfloat16_is_near(monkeypatch, name, hard, least):
    monkeypatch.setattr(losses, "BLOCK", 1)
    monkeypatch.setattr(losses, "LEAST", least)
    x, weight, bias, active = draw_linear("shared", False, torch.float32)
    precise = active_linear_loss(x, weight, bias, active, name, hard_fraction=hard)
    wanted = loss_and_gradients(precise, x, weight, bias)
    rounded = active_linear_loss(x, weight, bias, active, name, "bfloat16", hard)
    assert rounded.dtype == torch.float32
    found = loss_and_gradients(rounded, x, weight, bias)
    assert not torch.equal(found[1], wanted[1])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=0.02 * float(other.abs().max()), rtol=0.02)


def test_two_losses_of_one_layer_can_wait_for_their_backward():
    x, weight, bias, active = draw_linear("shared", False, torch.float64)
    alone = loss_and_gradients(
        active_linear_loss(x, weight, bias, active, "softmax"), x, weight, bias
    )
    first = active_linear_loss(x, weight, bias, active, "softmax")
    active_linear_loss(2 * x.detach(), weight, bias, active, "softmax")
    for one, other in zip(loss_and_gradients(first, x, weight, bias), alone, strict=True):
        torch.testing.assert_close(one, other)


def test_loss_of_a_linear_layer_keeps_nan_and_names_what_does_not_fit():
    x, weight, bias, active = draw_linear("shared", False, torch.float32)
    with torch.no_grad():
        weight[active.ids[7]] = torch.nan
    assert active_linear_loss(x, weight, bias, active, "squared_hinge").isnan()
    for wrong, message in [
        (lambda: active_linear_loss(x, weight, bias, active, "mse"), "loss must be one of"),
        (lambda: active_linear_loss(x, weight, bias, active, "bce", "int8"), "precision"),
        (lambda: active_linear_loss(x[:, 1:], weight, bias, active, "bce"), "does not fit"),
        (
            lambda: active_linear_loss(x, weight, bias, ActiveSet(N, active.ids), "bce"),
            "with targets",
        ),
        (
            lambda: active_linear_loss(x[1:], weight, bias, active, "bce"),
            "7 rows of targets do not fit 6 inputs",
        ),
        (
            lambda: loss_on_active(torch.zeros(6, 9), active, "bce"),
            "7 rows of targets do not fit 6 inputs",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            wrong()


def test_loss_of_a_linear_layer_where_nothing_learns():
    x, weight, bias, active = draw_linear("shared", False, torch.float32)
    wanted = active_linear_loss(x, weight, bias, active, "bce").item()
    with torch.no_grad():
        assert active_linear_loss(x, weight, bias, active, "bce").item() == wanted
    fresh = ActiveSet(N, active.ids, None, active.targets)
    with torch.inference_mode():
        assert active_linear_loss(x, weight, bias, fresh, "bce").item() == wanted
    # The buffers that were made there serve training, too.
    active_linear_loss(x, weight, bias, fresh, "bce").backward()
    assert dense_gradient(weight).abs().sum() > 0
