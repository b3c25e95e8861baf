"""Losses of scores on an active set: by name, as an operation with a gradient, and as callables."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide import ops
from slide.active_set import ActiveSet, check_active
from slide.functional.autograd import FirstDerivatives
from slide.ops import losses as formulas
from slide.ops.losses import check_fraction, hardest_count
from slide.sparse import Pattern
from slide.utils import checks
from slide.utils.profiling import untraced


@dataclass(frozen=True)
class Loss:
    """A loss on scores of an active set.

    Attributes:
        kernel: numba kernel ``(rows, losses, gradient)`` over `slide.ops.losses.Rows`.
        dense: the reference, ``dense(scores, targets, log_weights)``, for autograd; see
            `slide.ops.losses`.
        prior_score: from the probability that an output is a target to the score that minimises the
            loss.
        splits_target: whether the labels of a sample share a target of 1, as in a softmax.
        score_range: the scores that the loss wants for negatives and for positives, or None.
    """

    name: str
    kernel: Callable
    dense: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    prior_score: Callable[[Tensor], Tensor]
    splits_target: bool = False
    score_range: tuple[float, float] | None = None

    def prior_scores(self, labels: Pattern, num_labels: int) -> Tensor:
        """First biases ``(N,)`` float32, which minimise the loss given the labels' counts."""
        counts = np.diff(labels.indptr)
        target = 1 / np.maximum(counts, 1) if self.splits_target else np.ones(len(counts))
        sums = np.bincount(labels.indices, np.repeat(target, counts), minlength=num_labels)
        # Each label gets half an occurrence more, so that labels without a row have finite scores.
        p = torch.from_numpy((sums + 0.5) / (labels.num_rows + 1)).float().clamp(max=1 - 1e-6)
        return self.prior_score(p)


def _hinge_score(p: Tensor) -> Tensor:
    """The score that minimises the squared hinge of an output, a target with probability ``p``."""
    return 2 * p - 1


def _smoothed_kernel(smoothing: float, rows: Any, losses: np.ndarray, gradient: np.ndarray) -> None:
    formulas.softmax(rows, losses, gradient)
    formulas.smooth_labels(rows, smoothing, losses, gradient)


def _scaled_kernel(
    kernel: Callable, factor: float, rows: Any, losses: np.ndarray, gradient: np.ndarray
) -> None:
    scores = rows.scores * rows.scores.dtype.type(factor)
    kernel(rows._replace(scores=scores, scale=rows.scale * factor), losses, gradient)


def _scaled_dense(
    dense: Callable, factor: float, scores: Tensor, targets: Tensor, logs: Tensor | None
) -> Tensor:
    return dense(scores * factor, targets, logs)


def _scaled_prior(prior_score: Callable, factor: float, p: Tensor) -> Tensor:
    return prior_score(p) / factor


LOSSES = {
    loss.name: loss
    for loss in (
        Loss("bce", formulas.bce, formulas.torch_bce, torch.logit),
        # For samples with several labels the prior scores of softmaxes are an approximation.
        Loss(
            "decoupled_softmax",
            formulas.decoupled_softmax,
            formulas.torch_decoupled_softmax,
            torch.log,
            splits_target=True,
        ),
        Loss("softmax", formulas.softmax, formulas.torch_softmax, torch.log, splits_target=True),
        Loss(
            "squared_hinge",
            formulas.squared_hinge,
            formulas.torch_squared_hinge,
            _hinge_score,
            score_range=(-1.0, 1.0),
        ),
    )
}


def find_loss(loss: str | Loss) -> Loss:
    """The loss of that name; a record `Loss` is returned as it is."""
    if isinstance(loss, Loss):
        return loss
    checks.one_of("loss", loss, LOSSES)
    return LOSSES[loss]


@untraced
def loss_on_active(
    scores: Tensor,
    active: ActiveSet,
    loss: str | Loss,
    hard_fraction: float = 1.0,
    weights: np.ndarray | None = None,
) -> Tensor:
    """The mean over the samples of a loss on an active set.

    Args:
        scores: ``(B, A)`` for a shared set, else ``(nnz,)``: what `active_linear` returns.
        active: a set with targets. With its weights, sums over the set estimate sums over all N.
        loss, hard_fraction: see `slide.ActiveLoss`.
        weights: ``(B,)`` factors of the losses of the samples, at least 0; None: all are 1.

    Raises:
        ValueError: for an unknown loss, a share that is not in (0, 1], a set without targets, or
            scores, bounds, targets or weights that do not fit each other.
        TypeError: for bounds or targets of a wrong type.

    Example:
        >>> import numpy as np, slide, torch
        >>> from slide.functional import loss_on_active
        >>> ids = np.array([3, 7], np.int32)
        >>> active = slide.ActiveSet(9, ids, targets=slide.Pattern.from_lists([[0]]))
        >>> loss_on_active(torch.tensor([[1.0, 0.0]]), active, "squared_hinge")
        tensor(1.)
    """
    loss = find_loss(loss)
    num_samples = len(scores) if active.indptr is None else len(active.indptr) - 1
    check_active(active, num_samples, None, targets=True)
    weights = checks.row_weights("weights", weights, num_samples)
    shape = (num_samples, len(active.ids)) if active.indptr is None else active.ids.shape
    if scores.shape != shape:
        raise ValueError(f"scores {tuple(scores.shape)} do not fit an active set, {shape}")
    return loss_of_scores(scores, active, loss, hard_fraction, weights)


def loss_of_scores(
    scores: Tensor,
    active: ActiveSet,
    loss: Loss,
    hard_fraction: float,
    weights: np.ndarray | None,
) -> Tensor:
    """`loss_on_active` without its checks."""
    assert active.targets is not None
    if scores.dtype in (torch.bfloat16, torch.float16):
        scores = scores.float()
    kept = hardest_count(hard_fraction, len(active.targets.indptr) - 1)
    return _ActiveLoss.apply(scores, active, loss, kept, weights)  # type: ignore[return-value]


class _ActiveLoss(FirstDerivatives):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        active: ActiveSet,
        loss: Loss,
        kept: int,
        weights: np.ndarray | None,
    ):
        assert active.targets is not None
        count, scale = len(active.targets.indptr) - 1, 1 / max(kept, 1)
        losses, ctx.gradient = ops.loss_rows(scores.contiguous(), active, loss, scale, weights)
        if kept < count:
            order = losses.argsort(descending=True)  # NaN counts as the largest loss.
            ops.clear_samples(ctx.gradient, active.indptr, order[kept:])
            losses = losses[order[:kept]]
        return formulas.mean_loss(losses, scores.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        _ = ctx.saved_tensors  # Empty; it raises in a second backward pass, as PyTorch's do.
        # In new memory even where the factor is 1, since callers may change it in place.
        return ctx.gradient * grads[0], None, None, None, None


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
        hard_fraction: share of the batch, in (0, 1], that has the largest losses, and that the mean
            is over; see `hardest`.
        label_smoothing: of ``softmax``, in [0, 1): this share of the targets goes to all outputs
            equally, as in ``nn.CrossEntropyLoss``. Their sum is estimated by the set: with weights
            it is that over all N on average, without weights it is over the set alone.
        class_weights: of the softmaxes, ``(N,)`` finite numbers of at least 0: the loss of a sample
            counts as its label does, and the mean is over these weights, as in
            ``nn.CrossEntropyLoss``. A sample may then have one label at most.
        temperature: what scores are divided by, above 0.

    Raises:
        ValueError: for an unknown name, a number out of range, or an option that this loss does not
            have; when it is called, for class weights of another number of outputs or samples of
            several labels.

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

    def __init__(
        self,
        loss: str | Loss,
        hard_fraction: float = 1.0,
        *,
        label_smoothing: float = 0.0,
        class_weights: Any = None,
        temperature: float = 1.0,
    ):
        record = find_loss(loss)
        check_fraction("hard_fraction", hard_fraction)
        checks.share("label_smoothing", label_smoothing)
        checks.positive("temperature", temperature)
        if label_smoothing and record.name != "softmax":
            raise ValueError(f"label_smoothing needs the loss softmax, not {record.name}")
        if class_weights is not None:
            if not record.splits_target:
                raise ValueError(f"class_weights need a softmax, not {record.name}")
            if label_smoothing:
                raise ValueError("class_weights and label_smoothing do not go together")
            class_weights = np.asarray(torch.as_tensor(class_weights).detach().cpu(), np.float64)
            class_weights = checks.row_weights("class_weights", class_weights, class_weights.size)
        # Another name, so that nothing takes it for the loss that has the name.
        if label_smoothing:
            record = replace(
                record,
                name=f"{record.name} with label_smoothing",
                kernel=partial(_smoothed_kernel, label_smoothing),
                dense=partial(formulas.torch_smoothed_softmax, label_smoothing),
            )
        if temperature != 1:
            factor, ends = 1 / temperature, record.score_range
            record = Loss(
                f"{record.name} with temperature",
                partial(_scaled_kernel, record.kernel, factor),
                partial(_scaled_dense, record.dense, factor),
                partial(_scaled_prior, record.prior_score, factor),
                record.splits_target,
                None if ends is None else (ends[0] * temperature, ends[1] * temperature),
            )
        self.record, self.hard_fraction, self.class_weights = record, hard_fraction, class_weights

    def __repr__(self) -> str:
        return f"ActiveLoss({self.record.name!r}, hard_fraction={self.hard_fraction})"

    def __call__(self, scores: Tensor, active: ActiveSet) -> Tensor:
        """The loss of scores ``(B, A)`` or ``(nnz,)`` of ``active``; a scalar."""
        weights = self.sample_weights(active, None)
        return loss_on_active(scores, active, self.record, self.hard_fraction, weights)

    def sample_weights(self, active: ActiveSet, weights: Any) -> Any:
        """``weights`` of the samples of a set, checked, times the weights of their classes."""
        if active.targets is None or (self.class_weights is None and weights is None):
            return weights
        counts = np.diff(active.targets.indptr)
        weights = checks.row_weights("weights", weights, len(counts))
        if self.class_weights is None:
            return weights
        if len(self.class_weights) != active.out_features:
            raise ValueError(
                f"{len(self.class_weights)} class_weights do not fit {active.out_features} outputs"
            )
        if counts.max(initial=0) > 1:
            row = int(counts.argmax())
            raise ValueError(
                f"class_weights need one label for each sample, and sample {row} has {counts[row]}:"
                " give weights of the samples to layer.loss instead"
            )
        own = np.zeros(len(counts))
        own[counts > 0] = self.class_weights[active.label_ids()]
        own *= len(own) / (own.sum() or 1)  # The mean over the samples is one over their weights.
        own *= 1 if weights is None else weights
        return checks.row_weights("weights", own, len(own))

    def prior_scores(self, labels: Pattern, num_labels: int) -> Tensor:
        """First biases ``(N,)`` float32, which minimise the loss given the labels' counts."""
        return self.record.prior_scores(labels, num_labels)


def hardest(fraction: float) -> Callable[[Tensor], Tensor]:
    """Online hard example mining for any loss: the mean over the samples with the largest losses.

    The scores of the other samples get gradients of zero, and the backward passes of slide's layers
    skip them, so one forward pass is enough (Shrivastava et al. 2016, "Training region-based object
    detectors with online hard example mining", section 4).

    Args:
        fraction: share of the batch, in (0, 1]. The number of samples is rounded, to at least one.

    Returns:
        A function from losses ``(B,)``, one for each sample, to a scalar; 0 without samples.

    Raises:
        ValueError: for a fraction out of range, or losses of another shape.

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
