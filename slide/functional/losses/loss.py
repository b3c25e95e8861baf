"""The record that describes a loss."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from slide.sparse import Pattern


@dataclass(frozen=True)
class Loss:
    """A loss on scores of an active set.

    Attributes:
        name: the name by which a configuration and `slide.ActiveLoss` find the loss.
        kernel: numba kernel ``(rows, losses, gradient)`` over `slide.ops.kernels.loss_rows.Rows`.
        dense: the same loss in plain torch, for autograd. It is called as
            ``dense(scores, targets, log_weights)`` with ``(B, A)`` floats, ``(B, A)`` bools, and
            None or ``(B, A)`` or ``(A,)`` floats that are 0 at targets. It returns ``(B,)`` losses.
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


def target_share(targets: Tensor, scores: Tensor) -> Tensor:
    """``(B, A)``: 1 / |y| at the targets of each row, 0 elsewhere; the type of ``scores``."""
    return targets.to(scores.dtype) / targets.sum(1).clamp(min=1)[:, None]
