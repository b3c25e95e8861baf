"""The softmaxes over outputs that are shared out among processes.

Each function takes the scores of this rank's active sets. It returns the losses of the samples
``(B,)`` float64, equal on all ranks, and their gradients ``(B, A)`` by these scores.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from slide.backend import on_device
from slide.distributed.group import Group
from slide.ops.reference.products import samples_of
from slide.sparse import Pattern


class OwnTargets(NamedTuple):
    """The targets among this rank's scores.

    Attributes:
        rows: ``(T,)`` int64, sample of each target.
        columns: ``(T,)`` int64, its column.
        share: ``(T,)`` float64, 1 / |y|, where y are the labels of the sample on all ranks.
        labelled: ``(B,)`` bools, whether a sample has labels.
    """

    rows: Tensor
    columns: Tensor
    share: Tensor
    labelled: Tensor

    @classmethod
    def of(cls, targets: Pattern, label_counts: np.ndarray, device: torch.device) -> "OwnTargets":
        """From the targets of a set, and ``(B,)`` numbers of labels on all ranks."""
        counts = on_device(label_counts, device)
        rows = samples_of(on_device(np.diff(targets.indptr), device), len(targets.indices))
        columns = on_device(targets.indices, device).long()
        return cls(rows, columns, 1 / counts[rows].double(), counts > 0)

    def total(self, values: Tensor) -> Tensor:
        """The sums of ``(..., T)`` float64 over the targets of each sample, ``(..., B)``."""
        sums = values.new_zeros(*values.shape[:-1], len(self.labelled))
        return sums.index_add_(-1, self.rows, values)


def _softmax(
    scores: Tensor, logs: Tensor | None, targets: OwnTargets, group: Group
) -> tuple[Tensor, Tensor]:
    """`slide.functional.losses.softmax`: log-sum-exp minus the mean of the targets' scores."""
    logits = scores if logs is None else scores + logs
    at = targets.rows, targets.columns
    pulled = targets.total(scores[at].double() * targets.share)
    top, pulled = _over_ranks(torch.logsumexp(logits, 1), pulled, group)
    losses = torch.where(targets.labelled, top - pulled, 0)
    gradient = (logits - top.to(logits.dtype)[:, None]).exp_()
    gradient[at] -= targets.share.to(gradient.dtype)
    gradient.masked_fill_(~targets.labelled[:, None], 0)
    return losses, gradient


def _decoupled_softmax(
    scores: Tensor, logs: Tensor | None, targets: OwnTargets, group: Group
) -> tuple[Tensor, Tensor]:
    """`slide.functional.losses.decoupled_softmax`: each target against all negatives."""
    at = targets.rows, targets.columns
    logits = scores.clone() if logs is None else scores + logs
    logits[at] = -torch.inf
    top, _ = _over_ranks(torch.logsumexp(logits, 1), None, group)
    gaps = top[targets.rows] - scores[at].double()
    parts = torch.stack([softplus(gaps), gaps.sigmoid()]) * targets.share
    losses, pull = group.all_reduce(targets.total(parts))
    # Without negatives there is nothing to push, and -inf - -inf is not a number.
    top = torch.where(top == -torch.inf, 0, top).to(logits.dtype)
    gradient = logits.sub_(top[:, None]).exp_().mul_(pull.to(logits.dtype)[:, None])
    gradient[at] = -parts[1].to(gradient.dtype)
    return losses, gradient


def _over_ranks(logs: Tensor, sums: Tensor | None, group: Group) -> tuple[Tensor, Tensor]:
    """Log-sum-exps ``(B,)`` and sums ``(B,)`` or None, over all ranks, float64.

    One gather takes the place of a maximum and a sum of exponentials, since the ranks need as many
    messages for it as for a half of one of these.
    """
    logs = logs.double()
    own = torch.stack([logs, torch.zeros_like(logs) if sums is None else sums])
    every = torch.stack(group.all_gather(own, [2] * group.size))
    return torch.logsumexp(every[:, 0], 0), every[:, 1].sum(0)


SOFTMAXES: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {
    "softmax": _softmax,
    "decoupled_softmax": _decoupled_softmax,
}
