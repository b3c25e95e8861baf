"""Losses for modules: losses on an active set, and means over the hardest samples."""

from collections.abc import Callable

from torch import Tensor

from slide.active_set import ActiveSet
from slide.functional import loss_on_active
from slide.functional.active_loss import check_fraction, hardest_count
from slide.functional.losses import Loss, find_loss
from slide.sparse import Pattern


class ActiveLoss:
    """A loss on an active set, as a callable of scores and set.

    With scores z, targets y, weights w of the set (1 without weights), and sums over the set:

    * ``softmax``: ``log sum w exp(z) - mean of z over the targets``, cross-entropy with targets
      1 / |y|.
    * ``decoupled_softmax``: the mean over the targets of ``log(exp(z) + sum w exp(z)) - z``, where
      z outside of the sum is the score of the target, and the sum is over the negatives (Gupta et
      al. 2024, "Dual-encoders for extreme multi-label classification", section 4).
    * ``bce``: ``sum w log(1 + exp(-s z))`` with s = 1 for targets, else s = -1.
    * ``squared_hinge``: ``sum w max(0, 1 - s z)^2``.

    All are means over the batch. The softmaxes of a sample without labels are 0.

    Args:
        loss: the name of a loss above, or a record `slide.functional.losses.Loss` of another one.
        hard_fraction: share of the batch that the mean is over, in (0, 1]: the samples with the
            largest losses, at least one. The backward pass visits only these samples; see
            `hardest`.

    Raises:
        ValueError: for an unknown name, or a share that is not in (0, 1].

    Attributes:
        record: the loss as a record.

    Example:
        >>> import slide, torch
        >>> layer = slide.SampledLinear(4, 100, slide.ActiveSampler(4, 100, active=10))
        >>> labels = slide.Pattern.from_lists([[3], [5, 7]])
        >>> mean, active = layer.loss(torch.randn(2, 4), labels, slide.ActiveLoss("softmax"))
        >>> mean.shape, len(active.ids)
        (torch.Size([]), 10)
    """

    def __init__(self, loss: str | Loss, hard_fraction: float = 1.0):
        self.record = find_loss(loss)
        check_fraction("hard_fraction", hard_fraction)
        self.hard_fraction = hard_fraction

    def __call__(self, scores: Tensor, active: ActiveSet) -> Tensor:
        """The loss of scores ``(B, A)`` or ``(nnz,)`` of ``active``; a scalar."""
        return loss_on_active(scores, active, self.record, self.hard_fraction)

    def prior_scores(self, labels: Pattern, num_labels: int) -> Tensor:
        """First biases ``(N,)`` float32; see `slide.functional.losses.Loss.prior_scores`."""
        return self.record.prior_scores(labels, num_labels)


def hardest(fraction: float) -> Callable[[Tensor], Tensor]:
    """Online hard example mining for any loss: the mean over the samples with the largest losses.

    The scores of the other samples get gradients of zero, and the layers of slide skip them. So one
    forward pass is enough, and the backward pass of these layers visits only that share of the
    samples (Shrivastava et al. 2016, "Training region-based object detectors with online hard
    example mining", section 4).

    Args:
        fraction: share of the batch, in (0, 1]. The number of samples is rounded, to at least one.

    Returns:
        A function from losses ``(B,)``, one for each sample, to their mean, a scalar; 0 if there
        are no samples.

    Raises:
        ValueError: for a fraction out of range. The returned function raises it for losses of
            another shape than ``(B,)``.

    Example:
        >>> import slide, torch
        >>> slide.hardest(0.5)(torch.tensor([1.0, 4.0, 2.0, 3.0]))
        tensor(3.5000)
    """
    check_fraction("fraction", fraction)

    def mean_of_hardest(losses: Tensor) -> Tensor:
        if losses.ndim != 1:
            raise ValueError(f"losses must be (B,), one for each sample, not {tuple(losses.shape)}")
        kept = hardest_count(fraction, len(losses))
        return losses.topk(kept).values.sum() / max(kept, 1)

    return mean_of_hardest
