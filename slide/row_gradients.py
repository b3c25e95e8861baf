"""Gradients that are zero outside of some rows: a backward pass leaves them on the weight.

`slide.RowSparseAdam` takes them from there. Parameters have two marks, too; see the last functions.
"""

import gc
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, wraps
from typing import Any
from weakref import WeakSet, ref

import numpy as np
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.weak import WeakTensorKeyDictionary

from slide.active_set import Transposed
from slide.backend import array_view, on_device, uses_reference
from slide.ops.products import total_rows, weighted_sum_kernel

# So many gradients of a weight are added up, or fewer that take more memory than the weight.
MANY_PENDING = 16
# Programs rarely accumulate 1,000 gradients. Probably the optimizer of the weight makes no step.
_MANY_PASSES = 1_000
# The optimizers that take row gradients.
takers: WeakSet[torch.optim.Optimizer] = WeakSet()
# Of weights with row gradients: the optimizer of the last step, and the ``grad`` that it used.
_stepped = WeakTensorKeyDictionary()
# Called once, before the first row gradient of the process is left on a weight.
before_first_rows: list[Callable[[], None]] = []


@dataclass(frozen=True)
class RowGradient:
    """A gradient that is zero outside of some rows.

    ids (R,) int32, an array or a tensor on the device of the rows, None: all rows; rows (R, D)
    floats; first (R,) bools if ids may repeat, true for the first of equal ids, whose rows are
    equal (`TotalRows`).
    """

    ids: Any
    rows: torch.Tensor
    first: torch.Tensor | None = None

    def values(self) -> torch.Tensor:
        """The rows' gradients ``(R, D)``; of equal ids, all but the first have zeros."""
        return self.rows if self.first is None else self.rows * self.first[:, None]

    def scaled(self, factor: float | torch.Tensor, copy: bool = False) -> "RowGradient":
        """The gradient times ``factor``; with ``copy``, always in new memory."""
        same = not isinstance(factor, torch.Tensor) and factor == 1 and not copy
        return self if same else replace(self, rows=self.rows * factor)


@dataclass(frozen=True)
class FactoredRowGradient:
    """A row gradient as the product ``G^T H``, which is not computed yet.

    transposed: the pattern of G, grouped by row of the weight; coefficients (nnz,) floats, the
    entries of G in the pattern's order; vectors (B, D) floats, H.
    """

    transposed: Transposed
    coefficients: np.ndarray
    vectors: np.ndarray

    @property
    def ids(self) -> np.ndarray:
        return self.transposed.ids

    def values(self) -> torch.Tensor:
        """The rows' gradients ``(R, D)``, computed now."""
        t = self.transposed
        out = np.zeros((len(t.ids), self.vectors.shape[1]), self.vectors.dtype)
        grouped = self.coefficients[t.entries]
        weighted_sum_kernel(t.starts, t.samples, grouped, self.vectors, out)
        return torch.from_numpy(out)

    def scaled(self, factor: float | torch.Tensor, copy: bool = False) -> "FactoredRowGradient":
        """The gradient times ``factor``; `values` are always in new memory."""
        if factor == 1:
            return self
        return replace(
            self, coefficients=self.coefficients * self.coefficients.dtype.type(float(factor))
        )


AnyRowGradient = RowGradient | FactoredRowGradient


class _Pending(list[AnyRowGradient]):
    """The gradients that wait on a weight; ``passes`` counts the backward passes that left them."""

    passes = 0


def hand_over(
    ctx: Any,
    parameter: torch.Tensor,
    gradient: AnyRowGradient,
    factor: float | torch.Tensor | None = None,
):
    """What a backward pass returns to autograd as the gradient of ``parameter``.

    A loss that keeps ``gradient`` since its forward pass gives its own gradient as ``factor``.

    ``loss.backward()`` leaves it on the parameter, for `slide.RowSparseAdam`, and autograd gets
    None. With ``ctx.sparse_grad``, ``torch.autograd.grad`` or hooks it is a sparse tensor. A
    parameter that is not among the ``inputs`` of the backward pass gets none, nor does one in
    ``eval()`` (``ctx.predicts``) that no `slide.RowSparseAdam` has, if the inputs get one.

    A weight that is computed from other tensors, as by ``torch.nn.utils.parametrize``, hands a
    dense gradient on to them: most operations of PyTorch take no sparse one, and each step
    computes the whole weight anyway.
    """
    if not (parameter.is_leaf or ctx.sparse_grad):
        return to_sparse(parameter, gradient).to_dense() * (1 if factor is None else factor)
    if ctx.sparse_grad:
        return to_sparse(parameter, gradient if factor is None else gradient.scaled(factor, True))
    gradient = gradient if factor is None else gradient.scaled(factor)
    if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
        # As hooks of a sparse embedding do; a copy, which they may change.
        return to_sparse(parameter, gradient.scaled(1, copy=True))
    try:
        if _is_accumulated(ctx, parameter):
            if getattr(ctx, "predicts", False) and _passes_by(ctx, parameter):
                _note_left_out(parameter)
            else:
                add_row_gradient(parameter, gradient)
    except RuntimeError:  # PyTorch's answer where `torch.autograd.grad` asks for this gradient.
        # A copy: the caller may change it in place, and the backward pass may run again.
        return to_sparse(parameter, gradient.scaled(1, copy=True))
    return None


def _is_accumulated(ctx: Any, parameter: torch.Tensor) -> bool:
    """Whether the running backward pass adds the gradient of a leaf to its ``grad``."""
    for node, _ in ctx.next_functions:
        if getattr(node, "variable", None) is parameter:
            return _is_executed(node)
    return True


def _is_executed(node: Any) -> bool:
    return torch._C._will_engine_execute_node(node)  # pyright: ignore[reportAttributeAccessIssue]


def _passes_by(ctx: Any, parameter: torch.Tensor) -> bool:
    """Whether a backward pass goes on to the inputs, and nobody takes the gradient of the weight.

    So do saliency and a head that is not trained. Without inputs, the gradient is all there is.
    """
    node, _ = ctx.next_functions[0]
    if node is None or getattr(node, "variable", None) is parameter or not _is_executed(node):
        return False
    return _taker_of(parameter) is None


def _taker_of(parameter: torch.Tensor) -> torch.optim.Optimizer | None:
    """The optimizer that takes the row gradients of a parameter; None: there is none."""
    found = (taker for taker in list(takers) for taken in _parameters(taker) if taken is parameter)
    return next(found, None)


def to_sparse(parameter: torch.Tensor, gradient: AnyRowGradient) -> torch.Tensor:
    """A row gradient as ``torch.sparse_coo`` tensor; its rows are distinct, but not sorted."""
    axes = row_axes(parameter)
    # Rows of the host may have been fetched to another device.
    values = gradient.values().to(parameter.device, parameter.dtype)
    values = values.view(-1, *parameter.shape[axes:])
    row_ids = _row_ids(gradient, parameter, parameter.device)
    ids = torch.stack(torch.unravel_index(row_ids, parameter.shape[:axes]))
    return torch.sparse_coo_tensor(ids, values, parameter.shape, check_invariants=False)


def _row_ids(gradient: AnyRowGradient, p: torch.Tensor, device: torch.device) -> torch.Tensor:
    """The row numbers of a gradient of ``p``, int64, on a device."""
    if gradient.ids is None:
        return torch.arange(num_rows(p), device=device)
    return on_device(gradient.ids, device).long()


def add_row_gradient(parameter: torch.Tensor, gradient: AnyRowGradient) -> None:
    """Add a gradient to the list that `slide.RowSparseAdam` takes from ``parameter``."""
    pending = getattr(parameter, "row_gradients", None)
    if not isinstance(pending, _Pending):
        pending = parameter.row_gradients = _Pending(pending or ())  # type: ignore[attr-defined]
    if not pending:
        _watch()
        parameter.shape_of_rows = tuple(parameter.shape)  # type: ignore[attr-defined]
    pending.append(gradient)
    pending.passes += 1
    many = len(pending) == MANY_PENDING or sum(map(_entries, pending)) > parameter.numel()
    if many and len(pending) > 1 and _shape_of_rows(parameter) == tuple(parameter.shape):
        pending[:] = [_of_distinct_rows(add_up(pending, parameter))]
    if pending.passes == MANY_PENDING and _taker_of(parameter) is None:
        warnings.warn(
            f"{pending.passes} backward passes left gradients on {_name_of(parameter)}, and no "
            "RowSparseAdam took them: add it to the parameters of one; if it is not trained, "
            "requires_grad_(False) saves the work; other optimizers need sparse_grad=True. After "
            "load_state_dict(assign=True) an optimizer made before has the old weights",
            stacklevel=2,
        )
    elif pending.passes == _MANY_PASSES:
        warnings.warn(
            f"{pending.passes} backward passes left gradients on {_name_of(parameter)}, and its "
            "RowSparseAdam made no step: they add up until step() or zero_grad()",
            stacklevel=2,
        )


def _entries(gradient: AnyRowGradient) -> int:
    """The numbers that a gradient keeps."""
    if isinstance(gradient, RowGradient):
        return gradient.rows.numel()
    return len(gradient.coefficients) + gradient.vectors.size


def _of_distinct_rows(gradient: AnyRowGradient) -> AnyRowGradient:
    """The same gradient, which keeps each row once; on another device this waits for it."""
    if not isinstance(gradient, RowGradient) or gradient.first is None:
        return gradient
    return RowGradient(gradient.ids[gradient.first], gradient.rows[gradient.first])


def _shape_of_rows(parameter: torch.Tensor) -> tuple[int, ...]:
    """The shape that a parameter had when the first of its row gradients came."""
    return getattr(parameter, "shape_of_rows", tuple(parameter.shape))


def _note_left_out(parameter: torch.Tensor) -> None:
    """Note that a gradient was left out: an optimizer that has the weight is warned of it."""
    _watch()
    parameter.left_out_rows = True  # type: ignore[attr-defined]


def _name_of(parameter: torch.Tensor) -> str:
    """What a module calls a parameter, such as ``head.weight of Net (20000, 64)``."""
    found = ""
    for each in gc.get_objects():  # Parameters do not know their modules.
        if issubclass(type(each), torch.nn.Module):
            for name, own in list(each.named_parameters()):
                if own is parameter and len(name) > len(found.partition(" ")[0]):
                    found = f"{name} of {type(each).__name__}"
    return f"{found or 'a weight'} {tuple(parameter.shape)}"


@cache
def _watch() -> None:
    """From the first row gradient on, check each step of any optimizer of PyTorch."""
    for call in before_first_rows:
        call()
    _clear_with_modules()
    register_optimizer_step_pre_hook(_check_one_owner)
    register_optimizer_step_post_hook(_after_step)


def _clear_with_modules() -> None:
    """Make ``module.zero_grad()`` remove row gradients, too, by which people skip a bad batch."""
    whole = torch.nn.Module.zero_grad

    @wraps(whole)
    def zero_grad(self: torch.nn.Module, set_to_none: bool = True) -> None:
        whole(self, set_to_none)
        for p in self.parameters():
            if getattr(p, "row_gradients", ()):
                p.row_gradients = []  # type: ignore[attr-defined]

    torch.nn.Module.zero_grad = zero_grad


def _check_one_owner(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Raise RuntimeError if another optimizer has stepped by the dense gradient beside rows."""
    for p in _parameters(optimizer):
        if p.grad is None or p not in _stepped:
            continue
        owner, grad, version = _stepped[p]
        owner = owner()
        if owner not in (None, optimizer) and grad() is p.grad and version == p.grad._version:
            raise _two_owners(p, owner, optimizer)


def _two_owners(
    p: torch.Tensor, first: torch.optim.Optimizer, second: torch.optim.Optimizer
) -> RuntimeError:
    return RuntimeError(
        f"{type(first).__name__} has made a step with the gradient of a weight "
        f"{tuple(p.shape)}, and {type(second).__name__} has it, too: one optimizer must "
        "own a weight. If an embedding is tied to the output layer, leave the weight to "
        "slide.RowSparseAdam alone, which takes its dense and row gradients"
    )


def _after_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Note which gradients were used; warn of rows that no `slide.RowSparseAdam` will take.

    RuntimeError if it will take them after this optimizer used the dense gradient beside them.
    """
    warned = False
    for p in _parameters(optimizer):
        if p.grad is not None and hasattr(p, "row_gradients"):
            _stepped[p] = ref(optimizer), ref(p.grad), p.grad._version
        left_out = vars(p).pop("left_out_rows", False)
        if not (left_out or getattr(p, "row_gradients", ())) or (warned and p.grad is None):
            continue
        owner = _taker_of(p)
        if owner is not None and p.grad is not None and optimizer not in takers:
            raise _two_owners(p, optimizer, owner)
        if owner is None and not warned:
            warned = True
            warnings.warn(
                f"{type(optimizer).__name__} does not update a weight {tuple(p.shape)}: it ignores "
                "the row gradients of its layer. Use slide.RowSparseAdam, or make the layer with "
                "sparse_grad=True and use an optimizer that takes sparse gradients",
                stacklevel=3,
            )


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"])


def take_row_gradients(parameter: torch.Tensor, factor: float = 1.0) -> AnyRowGradient | None:
    """The sum of all gradients of ``parameter``, times ``factor``; None if there are none.

    It includes ``parameter.grad``, which stays; row gradients are removed. ValueError for a
    ``grad`` without rows.
    """
    gradients: list[AnyRowGradient] = list(getattr(parameter, "row_gradients", ()))
    if gradients:
        parameter.row_gradients = []  # type: ignore[attr-defined]
    grad = parameter.grad
    shapes = [_shape_of_rows(parameter)] if gradients else []
    for shape in shapes if grad is None else [*shapes, tuple(grad.shape)]:
        if shape != tuple(parameter.shape):
            raise ValueError(
                f"a gradient of a parameter {shape} does not fit one of "
                f"{tuple(parameter.shape)}: its rows were changed after the backward pass; use "
                "slide.nn.add_outputs or remove_outputs, which drop such gradients"
            )
    if grad is not None and grad.layout == torch.sparse_coo:
        axes, found = row_axes(parameter), grad.sparse_dim()
        if found != axes:
            raise ValueError(f"a sparse gradient needs {axes} sparse dimension, not {found}")
        gradients.append(_from_sparse(grad, parameter.shape[:axes]))
    elif grad is not None:
        gradients.append(RowGradient(None, as_rows(grad.contiguous())))
    return add_up(gradients, parameter).scaled(factor) if gradients else None


def _from_sparse(grad: torch.Tensor, shape: torch.Size) -> RowGradient:
    """A sparse tensor as row gradient; ``shape`` is that of the axes which count rows."""
    if not uses_reference(grad):  # Elsewhere it would wait for the device.
        grad = grad.coalesce()
    ids, values = grad._indices(), grad._values()
    if ids.is_cpu and ids.numel():  # PyTorch does not check what it is given.
        for numbers, size in zip(ids, shape, strict=True):
            if not 0 <= numbers.min() <= numbers.max() < size:
                raise ValueError(f"a sparse gradient has rows outside of {tuple(shape)}")
    for_rows = values.reshape(values.shape[0], math.prod(values.shape[1:])).contiguous()
    if len(shape) == 2:
        ids = ids[:1] * shape[1] + ids[1:]
    if uses_reference(grad):
        return RowGradient(*total_rows(ids[0].int(), for_rows))
    return RowGradient(array_view(ids[0].int()), for_rows)


def add_up(gradients: list[AnyRowGradient], parameter: torch.Tensor) -> AnyRowGradient:
    """The sum of several gradients of a parameter."""
    if len(gradients) == 1:
        return gradients[0]
    values = torch.cat([gradient.values() for gradient in gradients])
    row_ids = torch.cat([_row_ids(gradient, parameter, values.device) for gradient in gradients])
    if uses_reference(values):
        return RowGradient(*total_rows(row_ids.int(), values))
    ids, at = np.unique(array_view(row_ids), return_inverse=True)
    total = values.new_zeros(len(ids), values.shape[1])
    total.index_add_(0, torch.from_numpy(at), values)
    return RowGradient(ids.astype(np.int32), total)


def dense_gradient(parameter: torch.Tensor) -> torch.Tensor:
    """The sum of the row gradients left on ``parameter``, in its shape; for tests."""
    pending = getattr(parameter, "row_gradients", ())
    parts = (to_sparse(parameter, gradient).to_dense() for gradient in pending)
    return sum(parts, torch.zeros_like(parameter))


def row_axes(parameter: torch.Tensor) -> int:
    """The number of leading axes that count rows: 2 for a convolution's weight, else 1."""
    return 2 if parameter.ndim > 2 else 1


def num_rows(parameter: torch.Tensor) -> int:
    """The number of rows of a parameter: N, or O * I for a convolution's kernels."""
    return math.prod(parameter.shape[: row_axes(parameter)])


def as_rows(parameter: torch.Tensor) -> torch.Tensor:
    """A contiguous parameter, or its gradient, as rows ``(N, D)`` in the same memory.

    A bias is ``(N, 1)``, a convolution's weight ``(O, I, kh, kw)`` is ``(O * I, kh * kw)``.
    """
    shape, axes = parameter.shape, row_axes(parameter)  # Of no rows, -1 would be ambiguous.
    return parameter.detach().view(math.prod(shape[:axes]), math.prod(shape[axes:]))


def renumber_rows(parameter: torch.Tensor) -> None:
    """Note that the rows of a parameter have other numbers: earlier graphs do not fit any more."""
    times = getattr(parameter, "times_renumbered", 0)
    parameter.times_renumbered = times + 1  # type: ignore[attr-defined]


def mark_shared(group: Any, *parameters: torch.Tensor | None) -> None:
    """Note that the processes of a group share out rows; at each use, since copies lose marks."""
    for parameter in parameters:
        if parameter is not None:
            parameter.shared_by = group  # type: ignore[attr-defined]


def sharing_group(parameter: torch.Tensor) -> Any:
    """The group whose processes share out the rows of a parameter; None: this one has all."""
    return getattr(parameter, "shared_by", None)
