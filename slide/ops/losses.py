"""Losses of scores on an active set: kernels of `Rows` write losses and gradients in one visit.

A formula in torch returns the losses ``(B,)`` of scores and bools of targets ``(B, A)``, and None
or log weights ``(B, A)`` or ``(A,)``.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, relu

from slide.backend import array_view, on_device, on_host
from slide.ops.compile import helper, parallel, prange
from slide.ops.dispatch import operation
from slide.ops.products import bfloat16_bits, gather_rounded, nonzeros, samples_on
from slide.ops.ragged import clear_rows
from slide.sparse import CSR, Pattern
from slide.utils import checks

# Number of scores in a block: they stay in the second-level caches.
_BLOCK_SCORES = 2**19
# A product of fewer samples is inefficient.
_LEAST_SAMPLES = 64
# Runs of samples whose gradients are added up: a number that no number of threads changes, and
# which 2, 4, 8 and 16 threads divide.
_CHUNKS = 16
_NO_BOUNDS = np.empty(0, np.int64)


class Rows(NamedTuple):
    """Scores and what is known of them.

    indptr (B + 1,) int64 bounds of the rows; scores (nnz,); target_indptr (B + 1,) int64;
    target_positions int32, from the start of the row; log_weights (nnz,), or (A,) if all rows are
    shared, or empty for 0, see `slide.ActiveSet`; scale: factor on the gradient of each loss.
    """

    indptr: np.ndarray
    scores: np.ndarray
    target_indptr: np.ndarray
    target_positions: np.ndarray
    log_weights: np.ndarray
    shared: bool
    scale: float


@helper
def score_row(rows, b):
    """The scores, targets and log weights of row b, the last ones empty if there are none."""
    begin, end = rows.indptr[b], rows.indptr[b + 1]
    targets = rows.target_positions[rows.target_indptr[b] : rows.target_indptr[b + 1]]
    if rows.shared or len(rows.log_weights) == 0:
        return rows.scores[begin:end], targets, rows.log_weights
    return rows.scores[begin:end], targets, rows.log_weights[begin:end]


@helper
def softplus(z):
    """log(1 + exp(z)) without overflow."""
    return max(z, 0.0) + np.log1p(np.exp(-abs(z)))


@helper
def sigmoid(z):
    """1 / (1 + exp(-z)) without overflow."""
    e = np.exp(-abs(z))
    return 1 / (1 + e) if z >= 0 else e / (1 + e)


@helper
def hinge(z):
    """max(0, z); NaN stays NaN, which max would lose."""
    return 0.0 if z < 0 else z


@helper
def add_weights(scores, log_weights, out):
    """Write ``scores + log_weights``."""
    for j in range(len(scores)):
        out[j] = scores[j]
    if len(log_weights) > 0:
        for j in range(len(scores)):
            out[j] += log_weights[j]


@helper
def normalise(out, scale):
    """Turn logits into ``scale`` times their softmax; return log(sum(exp)), -inf if all are."""
    top = -np.inf
    for j in range(len(out)):
        top = max(top, out[j])
    if top == -np.inf:
        # All are -inf, or some are NaN, which no comparison finds and which must stay.
        for j in range(len(out)):
            out[j] = np.exp(out[j])
            top += out[j]
        return top
    shift = out.dtype.type(top)
    total = 0.0
    for j in range(len(out)):
        out[j] = np.exp(out[j] - shift)
        total += out[j]
    inverse = out.dtype.type(scale / total)
    for j in range(len(out)):
        out[j] *= inverse
    return top + np.log(total)


def target_share(targets: Tensor, scores: Tensor) -> Tensor:
    """``(B, A)``: 1 / |y| at the targets of each row, 0 elsewhere; the type of ``scores``."""
    return targets.to(scores.dtype) / targets.sum(1).clamp(min=1)[:, None]


@parallel
def bce(rows, losses, gradient):
    """Binary cross-entropy of each output against 0 or 1, weighted and summed over the row."""
    for b in prange(len(rows.indptr) - 1):
        scores, targets, log_weights = score_row(rows, np.int64(b))
        g = gradient[rows.indptr[b] : rows.indptr[b + 1]]
        weighted = len(log_weights) > 0
        scale = g.dtype.type(rows.scale)
        loss = 0.0
        for j in range(len(g)):
            weight = np.exp(log_weights[j]) if weighted else log_weights.dtype.type(1)
            z = scores[j]
            # One exponential for both the loss log(1 + e^z) and its derivative.
            e = np.exp(-abs(z))
            loss += weight * (hinge(z) + np.log1p(e))
            g[j] = scale * weight * ((1 if z >= 0 else e) / (1 + e))
        for t in targets:
            loss -= scores[t]
            g[t] = -scale * sigmoid(-scores[t])
        losses[b] = loss


def torch_bce(scores: Tensor, targets: Tensor, log_weights: Tensor | None) -> Tensor:
    """Binary cross-entropy of each output against 0 or 1, weighted and summed."""
    weights = torch.ones_like(scores) if log_weights is None else log_weights.exp()
    return -(weights * logsigmoid(torch.where(targets, scores, -scores))).sum(1)


@helper
def _squared_hinge_row(scores, targets, log_weights, factor, g):
    """The loss of a row, whose gradient is written to ``g``; see `squared_hinge`."""
    weighted = len(log_weights) > 0
    scale = g.dtype.type(2 * factor)
    loss = 0.0
    for j in range(len(g)):
        slack = hinge(1 + scores[j])
        weight = np.exp(log_weights[j]) if weighted else log_weights.dtype.type(1)
        loss += weight * slack * slack
        g[j] = scale * weight * slack
    for t in targets:
        wrong, slack = hinge(1 + scores[t]), hinge(1 - scores[t])
        loss += slack * slack - wrong * wrong
        g[t] = -scale * slack
    return loss


@parallel
def squared_hinge(rows, losses, gradient):
    """max(0, 1 - y z)^2 with y = 1 for targets, else y = -1; weighted and summed."""
    for b in prange(len(rows.indptr) - 1):
        scores, targets, log_weights = score_row(rows, np.int64(b))
        g = gradient[rows.indptr[b] : rows.indptr[b + 1]]
        losses[b] = _squared_hinge_row(scores, targets, log_weights, rows.scale, g)


@parallel
def squared_hinge_of_products(products, bias, rows, num_chunks, losses, gradient, rounded, sums):
    """`squared_hinge` of the scores ``products + bias`` of a shared set, in one visit of each row.

    products (B, P) uint16, the bits of bfloat16, of which the first A of each row count; bias (A,)
    float32, or empty for none; ``rows`` has no scores; written: gradient (B, A) float32, the same
    as `bfloat16_bits` and zeros in ``rounded`` (B, P), which may be the memory of ``products``, and
    in sums (num_chunks, A) its sums over runs of samples.
    """
    count, size = gradient.shape
    for chunk in prange(num_chunks):
        scores, total = np.empty(size, np.float32), sums[chunk]
        bits = scores.view(np.uint32)
        total[:] = 0
        for b in range(chunk * count // num_chunks, (chunk + 1) * count // num_chunks):
            for j in range(size):
                bits[j] = np.uint32(products[b, j]) << np.uint32(16)
            for j in range(len(bias)):
                scores[j] += bias[j]
            targets = rows.target_positions[rows.target_indptr[b] : rows.target_indptr[b + 1]]
            g = gradient[b]
            losses[b] = _squared_hinge_row(scores, targets, rows.log_weights, rows.scale, g)
            own, out = g.view(np.uint32), rounded[b]
            for j in range(size):
                total[j] += g[j]
                out[j] = bfloat16_bits(g[j], own[j])
            out[size:] = 0


def torch_squared_hinge(scores: Tensor, targets: Tensor, log_weights: Tensor | None) -> Tensor:
    """max(0, 1 - y z)^2 with y = 1 for targets, else y = -1; weighted and summed."""
    weights = torch.ones_like(scores) if log_weights is None else log_weights.exp()
    return (weights * relu(1 + torch.where(targets, -scores, scores)) ** 2).sum(1)


@parallel
def softmax(rows, losses, gradient):
    """Cross-entropy of the weighted softmax with targets of 1 / |y|; 0 without targets."""
    for b in prange(len(rows.indptr) - 1):
        scores, targets, log_weights = score_row(rows, np.int64(b))
        g = gradient[rows.indptr[b] : rows.indptr[b + 1]]
        loss = 0.0
        if len(targets) == 0:
            g[:] = 0
        else:
            add_weights(scores, log_weights, g)
            loss = normalise(g, rows.scale)
            share = 1.0 / len(targets)
            for t in targets:
                loss -= share * scores[t]
                g[t] -= g.dtype.type(rows.scale * share)
        losses[b] = loss


def torch_softmax(scores: Tensor, targets: Tensor, log_weights: Tensor | None) -> Tensor:
    """Cross-entropy of the weighted softmax with targets of 1 / |y|; 0 without targets."""
    logits = scores if log_weights is None else scores + log_weights
    aimed = (target_share(targets, scores) * scores).sum(1)
    # The sum is infinite if a set is empty.
    return torch.where(targets.any(1), torch.logsumexp(logits, 1), 0) - aimed


@parallel
def smooth_labels(rows, smoothing, losses, gradient):
    """After `softmax`: move this share of the targets to all outputs, by their weights."""
    for b in prange(len(rows.indptr) - 1):
        scores, targets, log_weights = score_row(rows, np.int64(b))
        g = gradient[rows.indptr[b] : rows.indptr[b + 1]]
        if len(targets) > 0:
            weighted = len(log_weights) > 0
            total, mean = 0.0, 0.0
            for j in range(len(g)):
                weight = np.exp(log_weights[j]) if weighted else log_weights.dtype.type(1)
                total += weight
                mean += weight * scores[j]
            factor = rows.scale * smoothing
            for j in range(len(g)):
                weight = np.exp(log_weights[j]) if weighted else log_weights.dtype.type(1)
                g[j] -= g.dtype.type(factor * weight / total)
            own = 0.0
            for t in targets:
                own += scores[t] / len(targets)
                g[t] += g.dtype.type(factor / len(targets))
            losses[b] += smoothing * (own - mean / total)


def torch_smoothed_softmax(
    smoothing: float, scores: Tensor, targets: Tensor, log_weights: Tensor | None
) -> Tensor:
    """`softmax`, with a share of the targets on all outputs, by their weights."""
    weights = torch.ones_like(scores) if log_weights is None else log_weights.exp()
    mean = (weights * scores).sum(1) / (weights + torch.zeros_like(scores)).sum(1)
    aimed = (target_share(targets, scores) * scores).sum(1)
    moved = torch.where(targets.any(1), aimed - mean, 0)
    return torch_softmax(scores, targets, log_weights) + smoothing * moved


@parallel
def decoupled_softmax(rows, losses, gradient):
    """Mean over targets with scores z of softplus(n - z), n the log-sum-exp of the negatives."""
    for b in prange(len(rows.indptr) - 1):
        scores, targets, log_weights = score_row(rows, np.int64(b))
        g = gradient[rows.indptr[b] : rows.indptr[b + 1]]
        loss = 0.0
        if len(targets) == 0:
            g[:] = 0
        else:
            add_weights(scores, log_weights, g)
            for t in targets:
                g[t] = -np.inf
            negatives = normalise(g, rows.scale)
            share = 1.0 / len(targets)
            pull = 0.0
            for t in targets:
                loss += share * softplus(negatives - scores[t])
                pull += share * sigmoid(negatives - scores[t])
            for j in range(len(g)):
                g[j] *= g.dtype.type(pull)
            for t in targets:
                g[t] = g.dtype.type(-rows.scale * share * sigmoid(negatives - scores[t]))
        losses[b] = loss


def torch_decoupled_softmax(scores: Tensor, targets: Tensor, log_weights: Tensor | None) -> Tensor:
    """Mean cross-entropy of each target against the negatives alone."""
    logits = scores if log_weights is None else scores + log_weights
    negatives = torch.logsumexp(logits.masked_fill(targets, -torch.inf), 1, keepdim=True)
    return -(target_share(targets, scores) * logsigmoid(scores - negatives)).sum(1)


def aimed_at(targets: Pattern, scores: Tensor) -> Tensor:
    """Which of the scores ``(B, A)`` belong to targets, ``(B, A)`` bools."""
    aimed = torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
    samples = targets.entry_rows()
    columns = on_device(targets.indices, scores.device).long()
    aimed[on_device(samples, scores.device), columns] = True
    return aimed


def score_matrix(
    scores: Tensor, weights: Tensor | None, indptr: np.ndarray
) -> tuple[Tensor, Tensor | None]:
    """Scores and log weights as ``(B, largest set)``, filled up by outputs of weight 0."""
    sizes = np.diff(indptr)
    shape = len(sizes), int(sizes.max(initial=0))
    if (sizes == shape[1]).all():
        return scores.view(shape), None if weights is None else weights.view(shape)
    at = on_device(np.flatnonzero(np.arange(shape[1]) < sizes[:, None]), scores.device)
    if weights is None:
        weights = torch.zeros_like(scores)
    logs = weights.new_full((shape[0] * shape[1],), -torch.inf).index_copy(0, at, weights)
    flat = scores.new_zeros(shape[0] * shape[1]).index_copy(0, at, scores)
    return flat.view(shape), logs.view(shape)


def torch_loss_rows(
    scores: Tensor, active: Any, loss: Any, scale: float, weights: np.ndarray | None
) -> tuple[Tensor, Tensor]:
    device, logs = scores.device, active.log_weights
    if logs is not None:
        logs = on_device(logs, device).to(scores.dtype)
    with torch.enable_grad():
        leaf = matrix = scores.detach().requires_grad_()
        if active.indptr is not None:
            matrix, logs = score_matrix(leaf, logs, active.indptr)
        losses = loss.dense(matrix, aimed_at(active.targets, matrix), logs)
        if weights is not None:
            losses = losses * on_device(weights, device).to(losses.dtype)
        if torch.is_inference_mode_enabled():  # Nothing is recorded, and nobody asks for it.
            return losses, torch.zeros_like(scores)
        (gradient,) = torch.autograd.grad(losses.sum() * scale, leaf)
    return losses.detach(), gradient


@operation(torch_loss_rows)
def loss_rows(
    scores: Tensor, active: Any, loss: Any, scale: float, weights: np.ndarray | None
) -> tuple[Tensor, Tensor]:
    """The loss of each sample, and the gradient of ``scale`` times their sum.

    scores (B, A) for a shared set, else (nnz,); active: a `slide.ActiveSet` with targets; loss: a
    `slide.functional.losses.Loss`; scale: factor on the gradient; weights (B,) factors of the
    losses of the samples. Returns losses ``(B,)``, and the gradient in the shape of ``scores``.
    """
    gradient = torch.empty_like(scores)
    part = slice(0, len(active.targets.indptr) - 1)
    flat, own = array_view(scores), gradient.numpy()
    return _block(flat, own, active, loss, scale, weights, part), gradient


def _log_weights(active: Any, dtype: Any) -> np.ndarray:
    logs = active.log_weights
    return np.empty(0, dtype) if logs is None else on_host(logs).astype(dtype, copy=False)


def _block(
    scores: np.ndarray,
    gradient: np.ndarray,
    active: Any,
    loss: Any,
    scale: float,
    weights: np.ndarray | None,
    part: slice,
) -> Tensor:
    """The losses of the samples ``part``; their gradient is written."""
    bounds, flat = active.targets.indptr[part.start : part.stop + 1], scores.reshape(-1)
    indptr = active.indptr
    if indptr is None:
        indptr = np.arange(len(bounds), dtype=np.int64) * len(active.ids)
    log_weights = _log_weights(active, flat.dtype)
    losses, flat_gradient = np.empty(len(bounds) - 1), gradient.reshape(-1)
    positions = active.targets.indices
    rows = Rows(indptr, flat, bounds, positions, log_weights, active.indptr is None, scale)
    loss.kernel(rows, losses, flat_gradient)
    if weights is not None:
        losses *= weights[part]
        flat_gradient *= np.repeat(weights[part], np.diff(indptr)).astype(flat.dtype)
    return torch.from_numpy(losses)


def mean_loss(losses: Tensor, dtype: torch.dtype) -> Tensor:
    """The mean as a scalar tensor of a type; 0 if there are no samples."""
    if not len(losses):
        return torch.zeros((), dtype=dtype, device=losses.device)
    if losses.is_cpu:
        return torch.tensor(losses.numpy().mean(), dtype=dtype)
    return losses.mean().to(dtype)


def check_fraction(name: str, fraction: float) -> None:
    """Raise ValueError unless ``fraction`` lies in (0, 1]."""
    checks.positive(name, fraction)
    checks.share(name, fraction, with_one=True)


def hardest_count(fraction: float, num_samples: int) -> int:
    """The number of samples in a ``fraction`` of them, rounded; at least one."""
    if not isinstance(fraction, float) or not 0 < fraction <= 1:  # Steps take the short check.
        check_fraction("hard_fraction", fraction)
    return min(num_samples, max(1, round(fraction * num_samples)))


class LinearFactors(NamedTuple):
    """The factors of the gradients of a loss of the scores ``x @ rows.T + bias`` of a shared set.

    sums (A,), the gradient of the bias; gradient (R, A) of the scores: dense in the type of the
    products, perhaps with columns of zeros for rows of zeros, or the few entries that are not zero,
    exactly; x (R, D) and rows (A, D), of the type of gradient; samples (R,) int64, the hardest
    ones, None: all.
    """

    sums: Tensor | None
    gradient: Tensor | CSR
    x: Tensor
    rows: Tensor
    samples: Tensor | None


def _hardest(losses: Tensor, kept: int) -> Tensor | None:
    """The samples with the largest losses, ascending; None: all. NaN is the largest."""
    if kept == len(losses):
        return None
    return losses.argsort(descending=True)[:kept].sort().values


def torch_linear_loss(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    active: Any,
    loss: Any,
    hard_fraction: float,
    weights: np.ndarray | None,
    rounded: torch.dtype,
    learns: bool,
) -> tuple[Tensor, LinearFactors | None]:
    ids = on_device(active.ids, weight.device)
    exact, x, rows = x.dtype, x.to(rounded), weight.index_select(0, ids).to(rounded)
    scores = (x @ rows.T).to(exact)
    scores = scores if bias is None else scores + bias.index_select(0, ids)
    kept = hardest_count(hard_fraction, len(x))
    losses, gradient = torch_loss_rows(scores, active, loss, 1 / max(kept, 1), weights)
    samples = _hardest(losses, kept)
    mean = mean_loss(losses if samples is None else losses[samples], exact)
    if not learns:
        return mean, None
    if samples is not None:
        gradient, x = gradient[samples], x[samples]
    sums = None if bias is None else gradient.sum(0)
    return mean, LinearFactors(sums, gradient.to(rounded), x, rows, samples)


@operation(torch_linear_loss)
def linear_loss(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    active: Any,
    loss: Any,
    hard_fraction: float,
    weights: np.ndarray | None,
    rounded: torch.dtype,
    learns: bool,
) -> tuple[Tensor, LinearFactors | None]:
    """The mean loss of the hardest samples on a shared set, from the scores of some at a time.

    x (B, D) inputs, weight (N, D) and bias (N,) or None, of one type; hard_fraction: share of the
    samples; active, loss, weights see `loss_rows`; rounded: type of the products. Returns the mean
    and, if the caller ``learns``, factors, of which the gradient may lie in the set's scratch
    memory.
    """
    kept = hardest_count(hard_fraction, len(x))
    ids, exact, scale = on_device(active.ids, weight.device), x.dtype, 1 / max(kept, 1)
    rows = gather_rounded(weight, ids, rounded)
    rounded_x, added = x.to(rounded), None if bias is None else bias.index_select(0, ids)
    rounded_gradient = sums = None
    one_visit = loss.kernel is squared_hinge and weights is None
    if one_visit and (rounded, exact) == (torch.bfloat16, torch.float32):
        losses, gradient, rounded_gradient, sums = _squared_hinge_in_one_visit(
            rounded_x, rows, added, active, scale
        )
    else:
        count, size = len(x), len(ids)
        step = max(_LEAST_SAMPLES, _BLOCK_SCORES // max(size, 1))
        both = active.scratch.tensor("scores", (count + min(step, count), size), exact)
        gradient, scores = both[:count], both[count:]
        products = scores
        if rounded != exact:
            products = active.scratch.tensor("products", (len(scores), len(rows)), rounded)
        blocks = [torch.empty(0, dtype=torch.float64)]
        for start in range(0, count, step):
            part = slice(start, min(start + step, count))
            z, product = scores[: part.stop - start], products[: part.stop - start]
            torch.mm(rounded_x[part], rows.T, out=product)
            product = product[:, :size]
            if added is not None:
                torch.add(product, added, out=z)
            elif rounded != exact:
                z.copy_(product)
            own = gradient[part].numpy()
            blocks.append(_block(z.numpy(), own, active, loss, scale, weights, part))
        losses = torch.cat(blocks)
    samples = _hardest(losses, kept)
    mean = mean_loss(losses if samples is None else losses[samples], exact)
    if not learns:
        return mean, None
    if samples is not None:
        gradient, x, rounded_x = gradient[samples], x[samples], rounded_x[samples]
        rounded_gradient = sums = None
    if sums is None and bias is not None:
        sums = gradient.sum(0)
    if (few := nonzeros(gradient)) is not None:
        rows = rows if rounded == exact else weight.index_select(0, ids)
        return mean, LinearFactors(sums, few, x, rows, samples)
    if rounded == exact:
        rounded_gradient = gradient
    elif rounded_gradient is None:
        shape = len(gradient), len(rows)
        rounded_gradient = active.scratch.tensor("rounded", shape, rounded)
        rounded_gradient[:, : len(ids)].copy_(gradient)
        rounded_gradient[:, len(ids) :] = 0
    return mean, LinearFactors(sums, rounded_gradient, rounded_x, rows, samples)


def _squared_hinge_in_one_visit(
    x: Tensor, rows: Tensor, bias: Tensor | None, active: Any, scale: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Losses, gradient, the same in bfloat16 with a column for each of ``rows``, sums ``(A,)``."""
    count, size, scratch = len(x), len(active.ids), active.scratch
    products = scratch.tensor("products", (count, len(rows)), torch.bfloat16)
    gradient = scratch.tensor("gradient", (count, size), torch.float32)
    sums = np.empty((_CHUNKS, size), np.float32)
    losses, none = np.empty(count), np.empty(0, np.float32)
    torch.mm(x, rows.T, out=products)
    bits = products.view(torch.uint16).numpy()
    logs = _log_weights(active, np.float32)
    own = none if bias is None else array_view(bias)
    targets = active.targets
    scored = Rows(_NO_BOUNDS, none, targets.indptr, targets.indices, logs, True, scale)
    squared_hinge_of_products(bits, own, scored, _CHUNKS, losses, gradient.numpy(), bits, sums)
    with np.errstate(invalid="ignore"):  # Infinite sums are for the trainer to notice.
        totals = torch.from_numpy(sums.sum(0))
    return torch.from_numpy(losses), gradient, products, totals


def torch_clear_samples(gradient: Tensor, indptr: np.ndarray | None, samples: Tensor) -> None:
    if indptr is None:
        gradient[samples] = 0
        return
    cleared = torch.zeros(len(indptr) - 1, dtype=torch.bool, device=gradient.device)
    cleared[samples] = True
    gradient.masked_fill_(cleared[samples_on(indptr, gradient.device)], 0)


@operation(torch_clear_samples)
def clear_samples(gradient: Tensor, indptr: np.ndarray | None, samples: Tensor) -> None:
    """Write zeros into some samples of ``(B, A)``, or of ``(nnz,)`` with bounds ``indptr``."""
    if indptr is None:
        indptr = np.arange(len(gradient) + 1, dtype=np.int64) * gradient.shape[1]
    clear_rows(indptr, array_view(samples), array_view(gradient).reshape(-1))
