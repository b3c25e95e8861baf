"""Losses of scores on an active set, with their gradients in one visit."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.backend import array_view, on_host
from slide.ops.kernels import losses as kernels
from slide.ops.kernels.ragged import clear_rows as _clear_rows
from slide.ops.reference import losses as reference
from slide.ops.table import operation

# Number of scores in a block: they stay in the second-level caches.
_BLOCK_SCORES = 2**19
# A product of fewer samples is inefficient.
_LEAST_SAMPLES = 64
# Runs of samples whose gradients are added up: a number that no number of threads changes, and
# which 2, 4, 8 and 16 threads divide.
_CHUNKS = 16
_NO_BOUNDS = np.empty(0, np.int64)


@operation(reference.loss_rows)
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
    return _block(scores, active, loss, scale, weights, part, gradient), gradient


def _block(
    scores: Tensor,
    active: Any,
    loss: Any,
    scale: float,
    weights: np.ndarray | None,
    part: slice,
    gradient: Tensor,
) -> Tensor:
    """The losses of the samples ``part``; their gradient is written."""
    bounds, flat = active.targets.indptr[part.start : part.stop + 1], array_view(scores).reshape(-1)
    indptr = active.indptr
    if indptr is None:
        indptr = np.arange(len(bounds), dtype=np.int64) * len(active.ids)
    log_weights = np.empty(0, flat.dtype)
    if active.log_weights is not None:
        log_weights = on_host(active.log_weights).astype(flat.dtype, copy=False)
    losses, flat_gradient = np.empty(len(bounds) - 1), array_view(gradient).reshape(-1)
    positions = active.targets.indices
    rows = kernels.Rows(indptr, flat, bounds, positions, log_weights, active.indptr is None, scale)
    loss.kernel(rows, losses, flat_gradient)
    if weights is not None:
        losses *= weights[part]
        flat_gradient *= np.repeat(weights[part], np.diff(indptr)).astype(flat.dtype)
    return torch.from_numpy(losses)


@operation(reference.losses_of_products)
def losses_of_products(
    x: Tensor,
    rows: Tensor,
    bias: Tensor | None,
    active: Any,
    loss: Any,
    scale: float,
    weights: np.ndarray | None,
    exact: torch.dtype,
) -> reference.ProductLosses:
    """`loss_rows` of the scores ``x @ rows.T + bias`` of a shared set, some samples at a time.

    x (B, D) inputs, rounded to the type of the products; rows (A, D) rows of the set, rounded, too,
    and then perhaps rows of zeros (`slide.ops.gather_rounded`);
    bias (A,) or None, of the type exact; active, loss, scale, weights see `loss_rows`; exact: type
    of the scores. The gradients lie in the set's scratch memory.
    """
    count, size, scratch = len(x), len(active.ids), active.scratch
    in_one_visit = loss.kernel is kernels.squared_hinge and weights is None
    if in_one_visit and (x.dtype, exact) == (torch.bfloat16, torch.float32):
        return _squared_hinge_in_one_visit(x, rows, bias, active, scale)
    step = max(_LEAST_SAMPLES, _BLOCK_SCORES // max(size, 1))
    both = scratch.tensor("scores", (count + min(step, count), size), exact)
    gradient, scores = both[:count], both[count:]
    products = scores
    if x.dtype != exact:
        products = scratch.tensor("products", (len(scores), len(rows)), x.dtype)
    blocks = [torch.empty(0, dtype=torch.float64)]
    for start in range(0, count, step):
        part = slice(start, min(start + step, count))
        z, product = scores[: part.stop - start], products[: part.stop - start]
        torch.mm(x[part], rows.T, out=product)
        product = product[:, :size]
        if bias is not None:
            torch.add(product, bias, out=z)
        elif x.dtype != exact:
            z.copy_(product)
        blocks.append(_block(z, active, loss, scale, weights, part, gradient[part]))
    return reference.ProductLosses(torch.cat(blocks), gradient)


def _squared_hinge_in_one_visit(
    x: Tensor, rows: Tensor, bias: Tensor | None, active: Any, scale: float
) -> reference.ProductLosses:
    """`losses_of_products` in bfloat16, by a kernel that visits each product once."""
    count, size, scratch = len(x), len(active.ids), active.scratch
    products = scratch.tensor("products", (count, len(rows)), torch.bfloat16)
    gradient = scratch.tensor("gradient", (count, size), torch.float32)
    sums = np.empty((_CHUNKS, size), np.float32)
    losses, none = np.empty(count), np.empty(0, np.float32)
    torch.mm(x, rows.T, out=products)
    bits = array_view(products.view(torch.uint16))
    logs = none if active.log_weights is None else on_host(active.log_weights)
    own = none if bias is None else array_view(bias)
    targets = active.targets
    scored = kernels.Rows(
        _NO_BOUNDS,
        none,
        targets.indptr,
        targets.indices,
        logs.astype(np.float32, copy=False),
        True,
        scale,
    )
    kernels.squared_hinge_of_products(
        bits, own, scored, _CHUNKS, losses, array_view(gradient), bits, sums
    )
    with np.errstate(invalid="ignore"):  # Infinite sums are for the trainer to notice.
        totals = torch.from_numpy(sums.sum(0))
    return reference.ProductLosses(torch.from_numpy(losses), gradient, products, totals)


@operation(reference.clear_samples)
def clear_samples(gradient: Tensor, indptr: np.ndarray | None, samples: Tensor) -> None:
    """Write zeros into some samples of ``(B, A)``, or of ``(nnz,)`` with bounds ``indptr``."""
    if indptr is None:
        indptr = np.arange(len(gradient) + 1, dtype=np.int64) * gradient.shape[1]
    _clear_rows(indptr, array_view(samples), array_view(gradient).reshape(-1))
