"""Row-sparse Adam: a step updates only the rows that have a gradient, in place."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from slide import checks
from slide.backend import on_device, on_host, plain
from slide.kernels import adam as kernels
from slide.kernels.adam import AdamHyper, AdamRows
from slide.optim.base import Optimizer
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
from slide.runtime import array_view, num_threads, profiled

_EMPTY = np.empty(0, np.int32)


class RowSparseAdam(Optimizer):
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
        betas: decay rates of the two moments, each in [0, 1).
        eps: number added to the root of the second moment, above 0.
        weight_decay: decoupled weight decay, applied in steps that touch a row.
        correct_skipped: whether a step first decays the moments of a row for all steps without a
            gradient for it, so that they equal the moments of dense Adam. This takes 4 bytes for
            each row.
        rowwise: whether to keep one second moment for each row, of the mean square of its gradient,
            instead of one for each entry. A step then reads and writes a third less memory. With a
            set for each sample, most of the time of a step is spent on this memory.

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

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        correct_skipped: bool = False,
        rowwise: bool = False,
    ):
        checks.positive("lr", lr)
        checks.listing("betas", betas)
        if len(betas) != 2:
            raise ValueError(f"betas must be two numbers in [0, 1), not {betas!r}")
        for beta in betas:
            checks.share("betas", beta)
        checks.positive("eps", eps)
        checks.not_negative("weight_decay", weight_decay)
        checks.flag("correct_skipped", correct_skipped)
        checks.flag("rowwise", rowwise)
        defaults = {
            "lr": lr,
            "betas": tuple(betas),
            "eps": eps,
            "weight_decay": weight_decay,
            "correct_skipped": correct_skipped,
            "rowwise": rowwise,
        }
        super().__init__(params, defaults)
        takers.add(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        takers.add(self)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove dense, sparse and row gradients."""
        super().zero_grad(set_to_none)
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
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(p, dtype=_moment_type(p))
            state["exp_avg_sq"] = torch.zeros_like(state["exp_avg"])
            if group["rowwise"]:
                state["exp_avg_sq"] = state["exp_avg"].new_zeros(num_rows(p), 1)
        _note_last_steps(state, num_rows(p) if group["correct_skipped"] else None)
        state["step"] += 1
        hyper = AdamHyper(
            float(group["lr"]),
            float(group["betas"][0]),
            float(group["betas"][1]),
            float(group["eps"]),
            float(group["weight_decay"]),
            int(state["step"]),
        )
        tensors = [p, state["exp_avg"], state["exp_avg_sq"]]
        if group["correct_skipped"]:
            tensors.append(state["last_step"])
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

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned, with its options.

        Raises:
            ValueError: for the state of another optimizer, or of parameters of other shapes.
        """
        saved = [i for group in state_dict["param_groups"] for i in group["params"]]
        own = [p for group in self.param_groups for p in group["params"]]
        for group in state_dict["param_groups"]:  # Copied and loaded optimizers have one more.
            names = [name for name in self.defaults if name != "differentiable"]
            _check_names("its groups lack", names, group)
        if len(saved) == len(own):  # Else the base class raises an error.
            for i, p in zip(saved, own, strict=True):
                _check_state(state_dict["state"].get(i), p)
        super().load_state_dict(state_dict)
        for i, p in zip(saved, own, strict=True):
            # The base class has converted all state to the type of the parameter.
            for name, value in state_dict["state"].get(i, {}).items():
                if isinstance(value, torch.Tensor):
                    dtype = torch.int32 if name == "last_step" else _moment_type(p)
                    self.state[p][name] = value.detach().to(p.device, dtype, copy=True)


def _moment_type(p: torch.Tensor) -> torch.dtype:
    return torch.float32 if p.dtype == torch.bfloat16 else p.dtype


def _note_last_steps(state: dict[str, Any], rows: int | None) -> None:
    """Keep last steps for so many rows, or none. Steps without them do not count as skipped."""
    if rows is None:
        state.pop("last_step", None)
    elif "last_step" not in state:
        moments: torch.Tensor = state["exp_avg"]
        state["last_step"] = moments.new_full((rows,), state["step"], dtype=torch.int32)


def _check_names(what: str, names: Iterable[str], found: dict[str, Any]) -> None:
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"this is no state of a RowSparseAdam: {what} {', '.join(missing)}")


def _check_state(state: dict[str, Any] | None, p: torch.Tensor) -> None:
    """Raise ValueError unless a saved state fits a parameter; kernels do not check that."""
    if not state:
        return
    _check_names("that of a parameter lacks", ("step", "exp_avg", "exp_avg_sq"), state)
    rows, shape = num_rows(p), tuple(p.shape)
    fits = {"exp_avg": [shape], "exp_avg_sq": [shape, (rows, 1)], "last_step": [(rows,)]}
    for name, shapes in fits.items():
        if name in state and tuple(state[name].shape) not in shapes:
            raise ValueError(f"{name} {tuple(state[name].shape)} does not fit a parameter {shape}")


def _as_adam_rows(tensors: list[torch.Tensor]) -> AdamRows:
    """The arrays for kernels: weight, two moments and, if there are any, last steps."""
    weight, first, second = (array_view(as_rows(tensor)) for tensor in tensors[:3])
    return AdamRows(weight, first, second, array_view(tensors[3]) if tensors[3:] else _EMPTY)


def _update_plain(tensors: list[torch.Tensor], hyper: AdamHyper, gradient: AnyRowGradient) -> None:
    """Adam in plain torch, on the device of the parameter."""
    p, ids = tensors[0], gradient.ids
    rows = gradient.values() if isinstance(gradient, FactoredRowGradient) else gradient.rows
    weight, first, second = map(as_rows, tensors[:3])
    state = AdamTensors(weight, first, second, tensors[3] if tensors[3:] else None)
    plain_adam_rows(state, hyper, None if ids is None else on_device(ids, p.device), rows)


def _ids(gradient: RowGradient | FactoredRowGradient) -> np.ndarray:
    """The row numbers of a gradient for kernels."""
    if gradient.ids is None:
        return np.arange(len(gradient.values()), dtype=np.int32)
    return on_host(gradient.ids)


def _update_copies(tensors: list[torch.Tensor], hyper: AdamHyper, gradient: AnyRowGradient) -> None:
    """Adam on float32 copies of the touched rows, because kernels do not read bfloat16."""
    at = torch.from_numpy(_ids(gradient)).long()
    weight, *others = [tensor.index_select(0, at) for tensor in tensors]
    copies = [weight.float(), *others]
    kernels.adam_rows(
        _as_adam_rows(copies),
        hyper,
        np.arange(len(at), dtype=np.int32),
        array_view(gradient.values().float().contiguous()),
        4 * num_threads(),
    )
    for tensor, copy in zip(tensors, copies, strict=True):
        tensor.index_copy_(0, at, copy.to(tensor.dtype))
