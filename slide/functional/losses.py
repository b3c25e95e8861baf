"""The losses by name: what computes them, and which scores they want."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slide.ops.kernels import losses as kernels
from slide.ops.reference import losses as reference
from slide.sparse import Pattern
from slide.utils import checks


@dataclass(frozen=True)
class Loss:
    """A loss on scores of an active set.

    Attributes:
        name: the name by which a configuration and `slide.ActiveLoss` find the loss.
        kernel: numba kernel ``(rows, losses, gradient)`` over `slide.ops.kernels.losses.Rows`.
        dense: the same loss in torch, for autograd. It is called as
            ``dense(scores, targets, log_weights)``; see `slide.ops.reference.losses`.
        prior_score: maps the probability that an output is a target to the score that minimises the
            loss.
        splits_target: whether the labels of a row share a target of 1, as in a softmax. Otherwise
            each label has a target of 1.
        score_range: the scores that the loss wants for negatives and for positives; None: there are
            no such scores.

    Example:
        >>> import slide
        >>> from slide.functional.losses import find_loss
        >>> labels = slide.Pattern.from_lists([[0], [0], [0, 1]])
        >>> find_loss("bce").prior_scores(labels, num_labels=2)
        tensor([ 1.9459, -0.5108])
    """

    name: str
    kernel: Callable
    dense: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    prior_score: Callable[[Tensor], Tensor]
    splits_target: bool = False
    score_range: tuple[float, float] | None = None

    def prior_scores(self, labels: Pattern, num_labels: int) -> Tensor:
        """Scores ``(N,)`` float32 that minimise the loss if it knows only how often labels occur.

        They are good first biases.

        Args:
            labels: labels of the training rows.
            num_labels: N.
        """
        counts = np.diff(labels.indptr)
        target = 1 / np.maximum(counts, 1) if self.splits_target else np.ones(len(counts))
        sums = np.bincount(labels.indices, np.repeat(target, counts), minlength=num_labels)
        # Each label gets half an occurrence more, so that labels without a row have finite scores.
        p = torch.from_numpy((sums + 0.5) / (labels.num_rows + 1)).float().clamp(max=1 - 1e-6)
        return self.prior_score(p)


def _hinge_score(p: Tensor) -> Tensor:
    """The score that minimises the squared hinge of an output: a target with probability ``p``."""
    return 2 * p - 1


LOSSES = {
    loss.name: loss
    for loss in (
        Loss("bce", kernels.bce, reference.bce, torch.logit),
        # For rows with several labels the prior scores are an approximation.
        Loss(
            "decoupled_softmax",
            kernels.decoupled_softmax,
            reference.decoupled_softmax,
            torch.log,
            splits_target=True,
        ),
        Loss("softmax", kernels.softmax, reference.softmax, torch.log, splits_target=True),
        Loss(
            "squared_hinge",
            kernels.squared_hinge,
            reference.squared_hinge,
            _hinge_score,
            score_range=(-1.0, 1.0),
        ),
    )
}


def find_loss(loss: str | Loss) -> Loss:
    """The loss of that name; a record `Loss` is returned as it is.

    Raises:
        ValueError: if there is no loss of that name.

    Example:
        >>> from slide.functional.losses import find_loss
        >>> find_loss("squared_hinge").score_range
        (-1.0, 1.0)
    """
    if isinstance(loss, Loss):
        return loss
    checks.one_of("loss", loss, LOSSES)
    return LOSSES[loss]
