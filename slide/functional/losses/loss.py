"""What makes up a loss: one record, defined in one file."""

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
        name: by which a configuration and `slide.ActiveLoss` find it.
        kernel: numba kernel ``(rows, losses, gradient)`` over `slide.kernels.loss_rows.Rows`.
        dense: the same loss in plain torch, differentiable by autograd: called as
            ``dense(scores, targets, log_weights)`` with ``(B, A)`` floats, ``(B, A)`` bools, and
            ``(B, A)`` or ``(A,)`` floats that are 0 at targets, or None; gives ``(B,)`` losses.
        prior_score: maps the probability of being a target to the score that minimises the loss.
        splits_target: whether the labels of a row share a target of 1, as in a softmax; else each
            label has a target of 1.
        score_range: scores at which the loss aims for negatives and positives; None: no bounds.

    Example:
        >>> import torch
        >>> from slide.functional.losses import find_loss
        >>> loss = find_loss("squared_hinge")
        >>> loss.dense(torch.tensor([[0.5, -1.0]]), torch.tensor([[True, False]]), None)
        tensor([0.2500])
    """

    name: str
    kernel: Callable
    dense: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    prior_score: Callable[[Tensor], Tensor]
    splits_target: bool = False
    score_range: tuple[float, float] | None = None

    def prior_scores(self, labels: Pattern, num_labels: int) -> Tensor:
        """Scores ``(N,)`` float32 that minimise the loss where inputs tell nothing.

        They are good first biases.

        Args:
            labels: of the training rows.
            num_labels: N.
        """
        counts = np.diff(labels.indptr)
        target = 1 / np.maximum(counts, 1) if self.splits_target else np.ones(len(counts))
        sums = np.bincount(labels.indices, np.repeat(target, counts), minlength=num_labels)
        # Half an occurrence more, so that unseen labels have finite scores.
        p = torch.from_numpy((sums + 0.5) / (labels.num_rows + 1)).float().clamp(max=1 - 1e-6)
        return self.prior_score(p)


def target_share(targets: Tensor, scores: Tensor) -> Tensor:
    """``(B, A)``: 1 / |y| at the targets of each row, 0 elsewhere; the type of ``scores``."""
    return targets.to(scores.dtype) / targets.sum(1).clamp(min=1)[:, None]
