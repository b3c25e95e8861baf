"""Losses for modules: on an active set, and over the hardest samples of a batch."""

from collections.abc import Callable

from torch import Tensor

from slide.active_set import ActiveSet
from slide.functional import loss_on_active
from slide.functional.losses import Loss, find_loss
from slide.functional.nonzero_rows import check_fraction, hardest_count


class ActiveLoss:
    """A loss on an active set, as a callable of scores and set.

    With scores z, targets y, weights w of the set (1 without weights), and sums over the set:

    * ``softmax``: ``log sum w exp(z) - mean of z over the targets``, cross-entropy with targets
      1 / |y|.
    * ``decoupled_softmax``: the same of each target against the negatives alone, averaged over the
      targets (Gupta et al. 2024, "Dual-encoders for extreme multi-label classification",
      section 4).
    * ``bce``: ``sum w log(1 + exp(-s z))`` with s = 1 for targets and -1 else.
    * ``squared_hinge``: ``sum w max(0, 1 - s z)^2``.

    All are means over the batch. Samples without labels add nothing to the softmaxes.

    Args:
        loss: the name of one of these, or a record `slide.functional.losses.Loss` of another loss.
        hard_fraction: share of the batch, the samples with the largest losses, that the mean is
            over; at least one sample. The backward pass visits only these; see `hardest`.

    Raises:
        ValueError: for any other name, or a share that is not in (0, 1].

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
        self.record = loss if isinstance(loss, Loss) else find_loss(loss)
        check_fraction("hard_fraction", hard_fraction)
        self.hard_fraction = hard_fraction

    def __call__(self, scores: Tensor, active: ActiveSet) -> Tensor:
        """The loss of scores ``(B, A)`` or ``(nnz,)`` of ``active``; a scalar."""
        return loss_on_active(scores, active, self.record, self.hard_fraction)


def hardest(fraction: float) -> Callable[[Tensor], Tensor]:
    """Online hard example mining for any loss: the mean over the samples with the largest losses.

    The other samples' scores get gradients of zero, and slide's layers do not visit these. So one
    forward pass is enough, and the backward pass of those layers costs only that share (Shrivastava
    et al. 2016, "Training region-based object detectors with online hard example mining").

    Args:
        fraction: share of the batch, in (0, 1]; the nearest number of samples, but at least one.

    Returns:
        A function of losses ``(B,)``, one for each sample, to a scalar.

    Raises:
        ValueError: for another fraction; the function raises it for losses that are not ``(B,)``.

    Example:
        >>> import slide, torch
        >>> slide.hardest(0.5)(torch.tensor([1.0, 4.0, 2.0, 3.0]))
        tensor(3.5000)
    """
    check_fraction("fraction", fraction)

    def mean_of_hardest(losses: Tensor) -> Tensor:
        if losses.ndim != 1:
            raise ValueError(f"losses must be (B,), one a sample, not {tuple(losses.shape)}")
        return losses.topk(hardest_count(fraction, len(losses))).values.mean()

    return mean_of_hardest
