"""Row-sparse Adam: a step updates only the rows that have a gradient, in place."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from slide.active_set import Transposed
from slide.backend import array_view, on_device, on_host, plain
from slide.kernels import adam as kernels
from slide.kernels.adam import AdamHyper, AdamRows
from slide.optim.adam_state import check_names, check_state, moment_type, prepare
from slide.optim.scaling import scale_factor, show_rows
from slide.plain.adam import AdamTensors
from slide.plain.adam import adam_rows as plain_adam_rows
from slide.row_gradients import (
    AnyRowGradient,
    FactoredRowGradient,
    RowGradient,
    as_rows,
    num_rows,
    take_row_gradients,
    takers,
)
from slide.runtime import num_threads
from slide.utils import checks
from slide.utils.profiling import profiled, untraced

_EMPTY = np.empty(0, np.int32)
# As PyTorch wraps them, these import the compiler, which takes longer than all else at a start.
_UNWRAPPED = {
    name: inspect.unwrap(getattr(torch.optim.Optimizer, name))
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
}
_LEAST_EPS = 1e-37  # What is much less is 0 in float32.


class RowSparseAdam(torch.optim.Optimizer):
    """Adam (Kingma and Ba 2015, "Adam: a method for stochastic optimization", algorithm 1) on rows.

    The optimizer uses the row gradients that layers of slide leave on their weights, and also
    sparse and dense gradients. If each step touches all rows, it equals ``torch.optim.AdamW``.
    Otherwise it is *lazy*: in a step without a gradient for a row, neither the row nor its moments
    change. But the bias correction counts all steps. Weights in bfloat16 have float32 moments; a
    change by less than 1/512 of an entry is lost by rounding.

    Args:
        params: parameters or parameter groups, of any shape; a row of a convolution's weight
            ``(O, I, kh, kw)`` is one kernel ``(kh, kw)``.
        lr: learning rate, above 0.
        betas: decay rates of the two moments, each in [0, 1). If the first is 0, no first moment is
            kept: a step uses the gradient itself, as RMSprop does. It then reads and writes a third
            less memory, and the optimizer takes half of it.
        eps: number added to the root of the second moment, at least 1e-37.
        weight_decay: decoupled weight decay, applied in steps that touch a row.
        correct_skipped: whether a step first decays the moments of a row for all steps without a
            gradient for it, so that they equal the moments of dense Adam. This takes 4 bytes for
            each row.
        rowwise: whether to keep one second moment for each row, of the mean square of its gradient,
            instead of one for each entry. A step then reads and writes a third less memory, and
            half if there is no first moment. With a set for each sample, most of the time of a
            step is spent on this memory.
        every_row: whether a step also changes the rows that have no gradient, by their moments, so
            that all steps equal those of ``torch.optim.AdamW``. It then takes time in proportion
            to all rows.

    Raises:
        ValueError: for a number out of range.

    Example:
        >>> import slide, torch
        >>> embedding = torch.nn.Embedding(4, 2, sparse=True)
        >>> before = embedding.weight.detach().clone()
        >>> optimizer = slide.RowSparseAdam(embedding.parameters(), lr=0.1)
        >>> embedding(torch.tensor([1, 3])).sum().backward()
        >>> optimizer.step()
        >>> (embedding.weight != before).any(1)
        tensor([False,  True, False,  True])
    """

    add_param_group = untraced(_UNWRAPPED["add_param_group"])
    state_dict = untraced(_UNWRAPPED["state_dict"])

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        correct_skipped: bool = False,
        rowwise: bool = False,
        every_row: bool = False,
    ):
        checks.positive("lr", lr)
        checks.listing("betas", betas)
        if len(betas) != 2:
            raise ValueError(f"betas must be two numbers in [0, 1), not {betas!r}")
        for beta in betas:
            checks.share("betas", beta)
        checks.positive("eps", eps)
        if eps < _LEAST_EPS:
            raise ValueError(f"eps must be at least {_LEAST_EPS}, not {eps!r}")
        checks.not_negative("weight_decay", weight_decay)
        checks.flag("correct_skipped", correct_skipped)
        checks.flag("rowwise", rowwise)
        checks.flag("every_row", every_row)
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "correct_skipped": correct_skipped,
            "rowwise": rowwise,
            "every_row": every_row,
        }
        super().__init__(params, defaults)
        takers.add(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        takers.add(self)

    @untraced
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove dense, sparse and row gradients."""
        _UNWRAPPED["zero_grad"](self, set_to_none)
        for group in self.param_groups:
            for p in group["params"]:
                p.row_gradients = []

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """``torch.amp.GradScaler`` asks for this in its ``step``; false: it unscales ``grad``.

        With row gradients the step itself unscales; see `slide.optim.scaling`.
        """
        self._shown = show_rows(self)
        return bool(self._shown)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update all parameters that have a gradient, and remove their row gradients.

        Args:
            closure: computes the loss and its gradients before the update, as in PyTorch.

        Returns:
            The loss, or None without a closure.

        Raises:
            ValueError: for a parameter that is not contiguous.
            RuntimeError: after ``unscale_`` of a ``GradScaler``, with row gradients.
        """
        loss, shown, factor = None, self.__dict__.pop("_shown", ()), scale_factor(self)
        if factor is None:
            for p in shown:  # As after a step, no row gradients are left.
                p.grad = None
            return None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                # Removed here, because PyTorch's own zero_grad ignores row gradients.
                gradient = take_row_gradients(p)
                if gradient is not None:
                    self._update(p, group, gradient.scaled(factor))
                    # Kernels write behind autograd's back. A backward pass through activations of
                    # the old weights must raise, as it does with PyTorch's optimizers.
                    torch.autograd.graph.increment_version(p)
        for p in shown:
            p.grad = None
        return loss

    @profiled("adam")
    def _update(self, p: torch.Tensor, group: dict[str, Any], gradient: AnyRowGradient) -> None:
        if not p.is_contiguous():
            raise ValueError(
                f"a parameter {tuple(p.shape)} has strides {p.stride()}, but its rows must lie in "
                "order in memory: set p.data = p.data.contiguous() after a change of memory_format"
            )
        if isinstance(gradient, RowGradient) and gradient.rows.device != p.device:
            gradient = gradient.to_host()  # The rows are there, and were fetched.
        state = self.state[p]
        prepare(state, p, group)
        state["step"] += 1
        hyper = AdamHyper(
            float(group["lr"]),
            float(group["betas"][0]),
            float(group["betas"][1]),
            float(group["eps"]),
            float(group["weight_decay"]),
            int(state["step"]),
        )
        tensors = AdamTensors(p, state.get("exp_avg"), state["exp_avg_sq"], state.get("last_step"))
        _update_rows(tensors, hyper, gradient)
        if group.get("every_row") and gradient.ids is not None:
            _update_rows(tensors, hyper, _no_gradient(p, gradient.ids))

    @untraced
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned, with its options.

        Raises:
            ValueError: for the state of another optimizer, or of parameters of other shapes.
        """
        saved = [i for group in state_dict["param_groups"] for i in group["params"]]
        own = [p for group in self.param_groups for p in group["params"]]
        for group in state_dict["param_groups"]:  # Copied and loaded optimizers have one more.
            # Earlier states lack the last one, which is then false.
            names = set(self.defaults) - {"differentiable", "every_row"}
            check_names("its groups lack", names, group)
        if len(saved) == len(own):  # Else the base class raises an error.
            betas = [g["betas"] for g in state_dict["param_groups"] for _ in g["params"]]
            for i, p, (beta1, _) in zip(saved, own, betas, strict=True):
                check_state(state_dict["state"].get(i), p, with_first=beta1 != 0)
        _UNWRAPPED["load_state_dict"](self, state_dict)
        for i, p in zip(saved, own, strict=True):
            # The base class has converted all state to the type of the parameter.
            for name, value in state_dict["state"].get(i, {}).items():
                if isinstance(value, torch.Tensor):
                    dtype = torch.int32 if name == "last_step" else moment_type(p)
                    self.state[p][name] = value.detach().to(p.device, dtype, copy=True)


def _update_rows(tensors: AdamTensors, hyper: AdamHyper, gradient: AnyRowGradient) -> None:
    """Adam on the rows of a gradient."""
    p = tensors.weight
    if plain(p):
        _update_plain(tensors, hyper, gradient)
        return
    if p.dtype == torch.bfloat16:
        _update_copies(tensors, hyper, gradient)
        return
    rows = _as_adam_rows(tensors)
    chunks = 4 * num_threads()
    if isinstance(gradient, FactoredRowGradient):
        t = gradient.transposed
        kernels.adam_factored(
            rows,
            hyper,
            kernels.Factors(
                t.ids, t.starts, t.entries, t.samples, gradient.coefficients, gradient.vectors
            ),
            chunks,
        )
    else:
        kernels.adam_rows(rows, hyper, _ids(gradient), array_view(gradient.rows), chunks)


def _no_gradient(p: torch.Tensor, but: Any) -> AnyRowGradient:
    """A gradient of 0 for all rows but these."""
    idle = np.ones(num_rows(p), bool)
    idle[on_host(but)] = False
    ids, width = np.flatnonzero(idle).astype(np.int32), p.numel() // len(idle)
    if plain(p) or p.dtype == torch.bfloat16:
        return RowGradient(ids, p.new_zeros(len(ids), width))
    none = Transposed(ids, np.zeros(len(ids) + 1, np.int64), np.empty(0, np.int64), _EMPTY)
    kind = array_view(as_rows(p)).dtype
    return FactoredRowGradient(none, np.empty(0, kind), np.zeros((1, width), kind))


def _as_adam_rows(tensors: AdamTensors) -> AdamRows:
    """The arrays for kernels; empty ones for what is not kept."""
    weight, second = (array_view(as_rows(t)) for t in (tensors.weight, tensors.second))
    first, last = np.empty((0, 0), weight.dtype), _EMPTY
    if tensors.first is not None:
        first = array_view(as_rows(tensors.first))
    if tensors.last_step is not None:
        last = array_view(tensors.last_step)
    return AdamRows(weight, first, second, last)


def _in_rows(tensors: AdamTensors) -> AdamTensors:
    """The same memory as rows ``(N, D)``."""
    first = None if tensors.first is None else as_rows(tensors.first)
    return AdamTensors(as_rows(tensors.weight), first, as_rows(tensors.second), tensors.last_step)


def _update_plain(tensors: AdamTensors, hyper: AdamHyper, gradient: AnyRowGradient) -> None:
    """Adam in plain torch, on the device of the parameter."""
    ids = gradient.ids
    rows = gradient.values() if isinstance(gradient, FactoredRowGradient) else gradient.rows
    places = None if ids is None else on_device(ids, tensors.weight.device)
    plain_adam_rows(_in_rows(tensors), hyper, places, rows)


def _ids(gradient: RowGradient | FactoredRowGradient) -> np.ndarray:
    """The row numbers of a gradient for kernels."""
    if gradient.ids is None:
        return np.arange(len(gradient.values()), dtype=np.int32)
    return on_host(gradient.ids)


def _update_copies(tensors: AdamTensors, hyper: AdamHyper, gradient: AnyRowGradient) -> None:
    """Adam on float32 copies of the touched rows, because kernels do not read bfloat16."""
    at = torch.from_numpy(_ids(gradient)).long()
    tensors = _in_rows(tensors)
    rows = AdamTensors(
        tensors.weight.index_select(0, at).float(),
        None if tensors.first is None else tensors.first.index_select(0, at),
        tensors.second.index_select(0, at),
        None if tensors.last_step is None else tensors.last_step.index_select(0, at),
    )
    kernels.adam_rows(
        _as_adam_rows(rows),
        hyper,
        np.arange(len(at), dtype=np.int32),
        array_view(gradient.values().float().contiguous()),
        4 * num_threads(),
    )
    for tensor, changed in zip(tensors, rows, strict=True):
        if tensor is not None and changed is not None:
            tensor.index_copy_(0, at, changed.to(tensor.dtype))
