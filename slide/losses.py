"""Losses on active sets, by name, and their plain torch twins over all outputs."""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slide import checks
from slide.active import ActiveSet
from slide.functional import LOSS_NAMES, loss_on_active
from slide.row_subset import check_fraction, hardest_count
from slide.sparse import Pattern


class ActiveLoss:
    """A loss on an active set, as a callable.

    * ``softmax``: cross-entropy with targets 1 / |y|.
    * ``decoupled_softmax``: each target against the negatives alone, averaged over the targets.
    * ``bce``: binary cross-entropy, summed over the outputs.
    * ``squared_hinge``: max(0, 1 - y z)^2, summed over the outputs.

    All are means over the batch. Samples without labels add nothing to the softmaxes.

    Args:
        name: one of these.
        hard_fraction: share of the batch, the samples with the largest losses, that the mean is
            over; at least one. The backward pass visits only these; see `hardest`.

    Raises:
        ValueError: for any other name, or a share that is not in (0, 1].
    """

    def __init__(self, name: str, hard_fraction: float = 1.0):
        checks.one_of("loss", name, LOSS_NAMES)
        check_fraction("hard_fraction", hard_fraction)
        self.name = name
        self.hard_fraction = hard_fraction

    def __call__(self, scores: Tensor, active: ActiveSet) -> Tensor:
        """The loss of `slide.functional.active_linear`'s ``scores``; a scalar."""
        return loss_on_active(scores, active, self.name, self.hard_fraction)

    def prior_scores(self, labels: Pattern, num_labels: int) -> Tensor:
        """Scores ``(N,)`` that minimise the loss where inputs tell nothing: good first biases.

        For ``decoupled_softmax`` with several labels a row this holds nearly.

        Args:
            labels: of the training rows.
            num_labels: N.
        """
        counts = np.diff(labels.indptr)
        # A row's labels share a target of 1 in the softmaxes, and have one of 1 each elsewhere.
        target = 1 / np.maximum(counts, 1) if "softmax" in self.name else np.ones(len(counts))
        sums = np.bincount(labels.indices, np.repeat(target, counts), minlength=num_labels)
        # Half an occurrence more, so that unseen labels stay finite.
        p = torch.from_numpy((sums + 0.5) / (labels.num_rows + 1)).float().clamp(max=1 - 1e-6)
        if self.name == "bce":
            return torch.logit(p)
        return 2 * p - 1 if self.name == "squared_hinge" else p.log()


def hardest(fraction: float) -> Callable[[Tensor], Tensor]:
    """Online hard example mining for any loss: the mean over the samples with the largest losses.

    ``hardest(0.25)(F.cross_entropy(scores, labels, reduction="none"))`` is the mean of the hardest
    quarter. The other samples' scores get gradients of zero, which slide's layers do not visit, so
    that one forward pass is enough and the backward pass of those layers costs a quarter.

    Args:
        fraction: in (0, 1], of the batch; the nearest number of samples, but one at least.

    Returns:
        A function of losses ``(B,)``, one a sample, to a scalar.

    Raises:
        ValueError: for another fraction, or, of the function, losses that are not ``(B,)``.
    """
    check_fraction("fraction", fraction)

    def mean_of_hardest(losses: Tensor) -> Tensor:
        if losses.ndim != 1:
            raise ValueError(f"losses must be (B,), one a sample, not {tuple(losses.shape)}")
        return losses.topk(hardest_count(fraction, len(losses))).values.mean()

    return mean_of_hardest


def dense_loss(scores: Tensor, targets: Tensor, name: str, log_weights: Tensor | None) -> Tensor:
    """The same losses in plain torch, differentiable by autograd; the oracle of the kernels.

    Args:
        scores: ``(B, A)``.
        targets: ``(B, A)`` bool.
        name: one of `LOSS_NAMES`.
        log_weights: ``(B, A)`` or ``(A,)``, 0 at targets; None for all 0.

    Returns:
        A scalar, the mean over the rows.
    """
    logits = scores if log_weights is None else scores + log_weights
    weights = torch.ones_like(scores) if log_weights is None else log_weights.exp()
    counts = targets.sum(1)
    share = targets.to(scores.dtype) / counts.clamp(min=1)[:, None]
    if name == "softmax":
        losses = (counts > 0) * torch.logsumexp(logits, 1) - (share * scores).sum(1)
    elif name == "decoupled_softmax":
        negatives = torch.logsumexp(logits.masked_fill(targets, -torch.inf), 1, keepdim=True)
        losses = -(share * F.logsigmoid(scores - negatives)).sum(1)
    elif name == "bce":
        losses = -(weights * F.logsigmoid(torch.where(targets, scores, -scores))).sum(1)
    elif name == "squared_hinge":
        losses = (weights * F.relu(1 + torch.where(targets, -scores, scores)) ** 2).sum(1)
    else:
        raise ValueError(f"loss must be one of {list(LOSS_NAMES)}, not {name!r}")
    return losses.mean()
