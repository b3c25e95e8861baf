"""Losses on patterns against their references."""

import numpy as np
import pytest
import torch
from helpers.grids import pairs
from helpers.matrices import make_pattern

from slide.active_set import ActiveSet
from slide.backend import backend
from slide.functional import loss_on_active
from slide.functional.losses import LOSSES
from slide.nn import ActiveLoss
from slide.sparse import Pattern

N = 40
# Sizes of the samples' sets and numbers of labels: among them none, one, and all.
CASES = {
    "per_sample": ([6, 5, 4, 1, 1, 9], [2, 0, 4, 1, 0, 3]),
    "shared": ([7] * 5, [2, 0, 7, 1, 3]),
    "shared, some weights": ([7] * 5, [1, 0, 2, 1, 0]),
    "one sample": ([3], [1]),
    "nothing but empty sets": ([0, 0], [0, 0]),
}


def draw(case, weighted, dtype, seed=0):
    """Scores and an active set with targets at random positions."""
    sizes, counts = CASES[case]
    rng = np.random.default_rng(seed)
    shared = "shared" in case
    positions = [rng.permutation(size)[:n] for size, n in zip(sizes, counts, strict=True)]
    indptr = np.concatenate([[0], np.cumsum(counts)])
    targets = Pattern(indptr, np.concatenate(positions).astype(np.int32))
    sets = make_pattern(rng, sizes, N)
    log_weights = None
    if weighted:  # Targets have weight 1, in the columns of a shared set for all rows.
        log_weights = rng.uniform(-1, 3, 7 if shared else len(sets.indices)).astype(np.float32)
        for b, own in enumerate(positions):
            log_weights[own if shared else sets.indptr[b] + own] = 0
    if shared:
        active = ActiveSet(N, sets.indices[:7], None, targets, log_weights)
        shape = (len(sizes), 7)
    else:
        active = ActiveSet(N, sets.indices, sets.indptr, targets, log_weights)
        shape = (len(sets.indices),)
    scores = torch.from_numpy(2 * rng.standard_normal(shape)).to(dtype)
    return scores, active


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
    """The mean of the dense twin over the rows; sets without outputs have no loss."""
    parts = [
        LOSSES[name].dense(own, mask, w).mean()
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


every_loss = pytest.mark.parametrize("name", LOSSES)
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-12}
BOTH = [False, True]
WAYS = ["kernels", "torch"]
# Each loss is tried on each kind of set, with weights and without.
SETS = [(case, weighted) for case in CASES for weighted in BOTH]


@pairs(name=LOSSES, kind=SETS, dtype=TOLERANCES, way=WAYS)
def test_all_cases(kind, dtype, name, way):
    with backend(way):
        assert_equals_dense(*draw(*kind, dtype), name, TOLERANCES[dtype])


@pairs(
    name=LOSSES,
    case=["per_sample", "shared"],
    size=[10.0, 1e4],
    weighted=BOTH,
    dtype=TOLERANCES,
    way=WAYS,
)
def test_extreme_scores(case, size, dtype, weighted, name, way):
    scores, active = draw(case, weighted, dtype)
    scores, tolerance = size * torch.sign(scores), TOLERANCES[dtype]
    if dtype == torch.float32 and size == 1e4:
        tolerance = 1e-3  # a score and the logarithm of a weight, added in single precision
    with backend(way):
        assert_equals_dense(scores, active, name, tolerance)
        assert torch.isfinite(loss_on_active(scores, active, name))


@pytest.mark.usefixtures("one_thread")
@pairs(name=LOSSES, kind=SETS)
def test_gradcheck(kind, name):
    scores, active = draw(*kind, torch.float64, seed=3)
    if scores.numel() == 0:
        assert loss_on_active(scores, active, name) == 0
        return
    assert torch.autograd.gradcheck(
        lambda s: loss_on_active(s, active, name), scores.requires_grad_()
    )


@pairs(name=LOSSES, positions=[[0], [3], [0, 2], [1, 3, 4, 5], [*range(6)]], shared=BOTH, way=WAYS)
def test_nan_is_not_swallowed(positions, name, shared, way):
    """Targets stand at positions 0 and 2."""
    targets = Pattern(np.array([0, 2]), np.array([0, 2], np.int32))
    with backend(way):
        indptr = None if shared else np.array([0, 6])
        active = ActiveSet(N, np.arange(6, dtype=np.int32), indptr, targets)
        scores = torch.linspace(-2, 2, 6)
        scores[positions] = torch.nan
        scores = (scores[None] if shared else scores).requires_grad_()
        loss = loss_on_active(scores, active, name)
        assert torch.isnan(loss)
        loss.backward()
        assert torch.isnan(scores.grad.flatten()[positions]).any()


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


@pytest.mark.parametrize("name", ["softmax", "decoupled_softmax"])
def test_softmaxes_share_a_row_among_its_labels(name):
    prior = LOSSES[name].prior_scores(Pattern.from_lists([[0, 1], [0]]), 2)
    torch.testing.assert_close(prior.exp(), torch.tensor([(1.5 + 0.5) / 3, (0.5 + 0.5) / 3]))
    nothing = LOSSES[name].dense(torch.randn(2, 3), torch.zeros(2, 3, dtype=torch.bool), None)
    assert torch.equal(nothing, torch.zeros(2))


def test_errors():
    scores, active = draw("per_sample", False, torch.float32)
    for call in (lambda: ActiveLoss("mse"), lambda: loss_on_active(scores, active, "mse")):
        with pytest.raises(ValueError, match="loss must be one of"):
            call()
    with pytest.raises(ValueError, match="needs an active set with targets"):
        ActiveLoss("bce")(torch.zeros(2, 3), ActiveSet(N, np.arange(3, dtype=np.int32)))
    with pytest.raises(ValueError, match=r"scores \(25,\) do not fit an active set, \(26,\)"):
        loss_on_active(scores[1:], active, "bce")
    for weights, message in (
        ([1, 1], r"weights \(2,\) do not fit 6 rows"),
        ([1, 1, 1, 1, 1, np.inf], "must be finite and at least 0, not inf"),
    ):
        with pytest.raises(ValueError, match=message):
            loss_on_active(scores, active, "bce", weights=weights)


@pytest.mark.parametrize("name", LOSSES)
def test_short_types_are_computed_in_float32(name):
    scores, active = draw("shared", False, torch.float32)
    rounded = scores.detach().bfloat16()
    expected = loss_on_active(rounded.float(), active, name)
    got = loss_on_active(rounded.requires_grad_(), active, name)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected)
    got.backward()
    assert rounded.grad.dtype == torch.bfloat16
