"""Losses and their gradients on active sets, against looped scalar twins."""

import numpy as np
import pytest
import torch
from helpers import naive_losses
from helpers.matrices import make_pattern

from slide.active_set import ActiveSet
from slide.functional import loss_on_active
from slide.sparse import Pattern

N = 40
NAMES = ["softmax", "decoupled_softmax", "bce", "squared_hinge"]
# Sizes of the samples' sets and numbers of labels: among them none, one, and all but one.
SIZES, COUNTS = [6, 5, 9, 2, 7], [2, 0, 3, 1, 6]


def draw_targets(rng, sizes):
    places = [rng.permutation(size)[:n] for size, n in zip(sizes, COUNTS, strict=True)]
    indptr = np.concatenate([[0], np.cumsum(COUNTS)])
    return Pattern(indptr, np.concatenate(places).astype(np.int32))


def draw_problem(mode, weighted, seed):
    """Scores, an active set, and for each sample what a twin takes."""
    rng = np.random.default_rng(seed)
    sizes = [8] * len(COUNTS) if mode == "shared" else SIZES
    targets, sets = draw_targets(rng, sizes), make_pattern(rng, sizes, N)
    ids, indptr = (sets.indices[:8], None) if mode == "shared" else (sets.indices, sets.indptr)
    log_weights = None
    if weighted:
        log_weights = rng.uniform(0, 3, len(ids)).astype(np.float32)
        for b in range(len(COUNTS)):
            # A label stands for itself alone.
            own = targets.indices[targets.indptr[b] : targets.indptr[b + 1]]
            log_weights[own + (0 if indptr is None else indptr[b])] = 0
    scores = 2 * rng.standard_normal((len(COUNTS), 8) if mode == "shared" else len(ids))
    samples = []
    for b in range(len(COUNTS)):
        at = slice(None) if indptr is None else slice(indptr[b], indptr[b + 1])
        own = scores[b] if mode == "shared" else scores[at]
        weights = np.zeros(len(own)) if log_weights is None else log_weights[at]
        labels = targets.indices[targets.indptr[b] : targets.indptr[b + 1]]
        samples.append((own.tolist(), labels.tolist(), weights.tolist()))
    return scores, ActiveSet(N, ids, indptr, targets, log_weights), samples


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("mode", ["per_sample", "shared"])
@pytest.mark.parametrize("name", NAMES)
def test_losses_equal_their_twins(name, mode, weighted, dtype, seed):
    scores, active, samples = draw_problem(mode, weighted, seed)
    scores = torch.from_numpy(scores).to(dtype).requires_grad_()
    loss = loss_on_active(scores, active, name)
    loss.backward()
    expected = [getattr(naive_losses, name)(*sample) for sample in samples]
    count, tolerance = len(samples), 1e-5 if dtype == torch.float32 else 1e-12
    assert loss.item() == pytest.approx(sum(value for value, _ in expected) / count, rel=tolerance)
    wanted = np.concatenate([gradient for _, gradient in expected]) / count
    np.testing.assert_allclose(scores.grad.flatten(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("mode", ["per_sample", "shared"])
@pytest.mark.parametrize("name", NAMES)
def test_samples_have_weights(name, mode):
    scores, active, samples = draw_problem(mode, True, 0)
    weights = np.array([0.5, 2, 0, 1, 3])
    scores = torch.from_numpy(scores).requires_grad_()
    loss = loss_on_active(scores, active, name, weights=weights)
    loss.backward()
    expected = [getattr(naive_losses, name)(*sample) for sample in samples]
    values = [w * value for w, (value, _) in zip(weights, expected, strict=True)]
    assert loss.item() == pytest.approx(np.mean(values), rel=1e-12)
    wanted = [w * np.array(gradient) for w, (_, gradient) in zip(weights, expected, strict=True)]
    np.testing.assert_allclose(scores.grad.flatten(), np.concatenate(wanted) / 5, atol=1e-12)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, 1], r"weights \(2,\) do not fit 5 rows"),
        ([1, 1, 1, 1, -1], "must be finite and at least 0, not -1.0"),
        ([1, 1, 1, 1, np.inf], "must be finite and at least 0, not inf"),
    ],
)
def test_weights_that_cannot_be(weights, message):
    scores, active, _ = draw_problem("shared", False, 0)
    with pytest.raises(ValueError, match=message):
        loss_on_active(torch.from_numpy(scores), active, "bce", weights=weights)


@pytest.mark.parametrize("name", NAMES)
def test_twins_have_the_gradients_of_their_losses(name):
    _, _, samples = draw_problem("per_sample", True, 3)
    for scores, labels, weights in samples:
        _, gradient = getattr(naive_losses, name)(scores, labels, weights)
        for j in range(len(scores)):
            above, below = (
                getattr(naive_losses, name)([*scores[:j], z, *scores[j + 1 :]], labels, weights)[0]
                for z in (scores[j] + 1e-5, scores[j] - 1e-5)
            )
            assert gradient[j] == pytest.approx((above - below) / 2e-5, rel=1e-4, abs=1e-6)
