"""Row-sparse Adam, its state, `GradScaler`, and `resize_rows` of parameters with their state."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.active_set import Transposed
from slide.backend import (
    KERNEL_DTYPES,
    array_view,
    check_memory,
    on_device,
    on_host,
    uses_reference,
)
from slide.ops.adam import AdamHyper, AdamRows, adam_factored, adam_rows, torch_adam_rows
from slide.row_gradients import (
    AnyRowGradient,
    FactoredRowGradient,
    RowGradient,
    as_rows,
    num_rows,
    renumber_rows,
    sharing_group,
    take_row_gradients,
    takers,
    to_sparse,
)
from slide.runtime import num_threads
from slide.sparse import inside
from slide.utils import checks
from slide.utils.array_checks import Expected, check_arrays, check_counter
from slide.utils.profiling import untraced

_EMPTY = np.empty(0, np.int32)
# As PyTorch wraps the methods, they import the compiler, the longest part of a start.
_UNWRAPPED = {
    name: inspect.unwrap(getattr(torch.optim.Optimizer, name))
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
}
# Options of PyTorch's optimizers, with the value that leaves them out, or does what is done here.
_FOREIGN = {
    **dict.fromkeys(("amsgrad", "maximize", "foreach", "fused", "capturable"), False),
    **dict.fromkeys(("differentiable", "nesterov", "momentum", "dampening"), False),
    "decoupled_weight_decay": True,
}
_FLAGS = {"correct_skipped", "rowwise", "every_row"}
_LEAST_EPS = 1e-37  # A much smaller number is 0 in float32.
_LARGEST_RATE = 1e38  # Ten times as much is infinite in float32.


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
            kept, as in RMSprop: a step reads and writes a third less memory.
        eps: number added to the root of the second moment, at least 1e-37.
        weight_decay: decoupled weight decay, applied in steps that touch a row.
        correct_skipped: whether a step first decays the moments of a row for all steps without a
            gradient for it, so that they equal the moments of dense Adam.
        rowwise: whether to keep one second moment for each row, of the mean square of its gradient,
            instead of one for each entry. A step then reads and writes a third less memory, and
            half if there is no first moment.
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
        _check_numbers(lr, betas, eps, weight_decay)
        numbers = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        flags = {"correct_skipped": correct_skipped, "rowwise": rowwise, "every_row": every_row}
        _check_options(flags)
        super().__init__(params, numbers | flags)
        for group in self.param_groups:  # Whose numbers may be others.
            _check_numbers(*(group[name] for name in numbers))
        self.__setstate__({})  # What is no part of its state.

    @untraced
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own; ValueError for one that this Adam lacks."""
        if isinstance(param_group, dict):  # Else the base class raises an error.
            _check_options(param_group, self.defaults)
        _UNWRAPPED["add_param_group"](self, param_group)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        takers.add(self)
        if not hasattr(self, "_user"):
            self._user = checks.Alone(
                "another thread makes a step of this optimizer now: hold a lock around zero_grad, "
                "backward and step"
            )

    @untraced
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove dense, sparse and row gradients."""
        with self._user:
            _UNWRAPPED["zero_grad"](self, set_to_none)
            for p in self._parameters():
                p.row_gradients = []  # type: ignore[attr-defined]

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """``torch.amp.GradScaler`` asks for this in its ``step``; false: it unscales ``grad``."""
        # It looks for infinities in ``grad``: row gradients become sparse tensors there.
        self._shown = [p for p in self._parameters() if getattr(p, "row_gradients", ())]
        for p in self._shown:
            gradient = take_row_gradients(p)
            assert gradient is not None
            p.grad = to_sparse(p, gradient)
        self._shown += _share_infinities(self._parameters())
        return bool(self._shown)

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    @untraced
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update all parameters that have a gradient, and remove their row gradients.

        Returns the loss of ``closure``, as in PyTorch. ValueError for a parameter that is not
        contiguous or has other rows than its gradient, or a number of a group that is out of range;
        RuntimeError after ``unscale_`` of a ``GradScaler``, with row gradients, if another
        optimizer has made a step with the same gradient, or while another thread makes one.
        """
        with self._user:
            for group in self.param_groups:  # Before any row changes.
                _check_options(group)
                _check_numbers(group["lr"], group["betas"], group["eps"], group["weight_decay"])
            loss, shown, factor = None, self.__dict__.pop("_shown", ()), self._scale_factor()
            if factor is not None:
                if closure is not None:
                    with torch.enable_grad():
                        loss = closure()
                chunks = 4 * num_threads()
                for group in self.param_groups:
                    for p in group["params"]:
                        # Removed here, because PyTorch's own zero_grad ignores row gradients.
                        gradient = take_row_gradients(p, factor)
                        if gradient is not None:
                            self._update(p, group, gradient, chunks)
            for p in shown:
                p.grad = None
            return loss

    def _scale_factor(self) -> float | None:
        """What a step multiplies gradients by; None: it is left out, because some are infinite."""
        infinities, scale = getattr(self, "found_inf", None), self.__dict__.get("grad_scale")
        if infinities is None:
            return 1.0
        if scale is None:
            raise RuntimeError(
                "GradScaler.unscale_ does not see row gradients: leave it out, since scaler.step "
                "unscales them, and clip before it by slide.clip_grad_norm_(parameters, max_norm * "
                "scaler.get_scale()); or make the layer with sparse_grad=True"
            )
        return None if infinities.item() else 1 / scale.item()

    def _update(
        self, p: Tensor, group: dict[str, Any], gradient: AnyRowGradient, chunks: int
    ) -> None:
        if not p.is_contiguous():
            raise ValueError(
                f"a parameter {tuple(p.shape)} has strides {p.stride()}, but its rows must lie in "
                "order in memory: set p.data = p.data.contiguous() after a change of memory_format"
            )
        check_memory(p)
        state, weight = self.state[p], as_rows(p)
        rows = len(weight)
        _prepare(state, p, rows, group)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        hyper = AdamHyper(
            lr=float(group["lr"]),
            beta1=float(beta1),
            beta2=float(beta2),
            eps=float(group["eps"]),
            weight_decay=float(group["weight_decay"]),
            step=int(state["step"]),
        )
        first, second = state.get("exp_avg"), state["exp_avg_sq"]
        tensors = AdamRows(
            weight=weight,
            first=None if first is None else first.view(weight.shape),
            second=second.view(rows, second.numel() // rows if rows else weight.shape[1]),
            last_step=state.get("last_step"),
        )
        _update_rows(tensors, hyper, gradient, chunks)
        if group.get("every_row") and gradient.ids is not None:
            _update_rows(tensors, hyper, _no_gradient(p, gradient.ids, rows), chunks)
        # Kernels write behind autograd's back. A backward pass through activations of the old
        # weights must raise, as it does with PyTorch's optimizers.
        torch.autograd.graph.increment_version(p)

    @untraced
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned, with its options.

        ValueError for the state of another optimizer, or of parameters of other shapes.
        """
        groups, states = state_dict.get("param_groups"), state_dict.get("state")
        if not isinstance(states, dict) or not isinstance(groups, list):
            raise ValueError("this is no state of a RowSparseAdam: it needs param_groups and state")
        for each in (*groups, *states.values()):
            if not isinstance(each, dict):
                raise ValueError(
                    "this is no state of a RowSparseAdam: its groups and the state of a parameter "
                    f"must be dicts, not {type(each).__name__}"
                )
        for group in groups:
            # Copied and loaded optimizers have "differentiable"; earlier states lack "every_row".
            names = set(self.defaults) - {"differentiable", "every_row"}
            _check_names("its groups lack", names, group)
            _check_options(group)
            if not all(isinstance(each, int) for each in group["params"]):
                raise ValueError(f"params must be numbers of parameters, not {group['params']!r}")
        saved = [(i, group["betas"][0] != 0) for group in groups for i in group["params"]]
        own = self._parameters()
        if len(saved) == len(own):  # Else the base class raises an error.
            for (i, has_first), p in zip(saved, own, strict=True):
                if state := states.get(i):
                    names = ("step", *(["exp_avg"] if has_first else []), "exp_avg_sq")
                    _check_names("that of a parameter lacks", names, state)
                    _check_shapes(state, p, num_rows(p))
                    _check_values(state)
        _UNWRAPPED["load_state_dict"](self, state_dict)
        for (i, _), p in zip(saved, own, strict=True):
            # The base class has converted all state to the type of the parameter.
            for name, value in states.get(i, {}).items():
                if isinstance(value, Tensor):
                    dtype = torch.int32 if name == "last_step" else _moment_type(p)
                    self.state[p][name] = value.detach().to(
                        p.device, dtype, copy=True, memory_format=torch.contiguous_format
                    )


def _check_options(group: dict[str, Any], known: Iterable[str] = ()) -> None:
    """Raise ValueError for an option that changes a step elsewhere, and would not here.

    Other names, such as those that schedules and users note, stay; but not a near miss of a
    ``known`` one.
    """
    for name in _FOREIGN.keys() & group.keys():
        if group[name] not in (None, _FOREIGN[name]):
            raise ValueError(
                f"{name}={group[name]!r} is no option of RowSparseAdam: leave it out of the "
                "parameter group"
            )
    for name in _FLAGS & group.keys():
        checks.flag(name, group[name])
    names = list(known)
    for name in group.keys() - {"params", *names} if names else ():
        if near := checks.near_word(str(name), names, cutoff=0.8):
            raise ValueError(f"{name} is no option of RowSparseAdam{near}")


def _check_numbers(lr: Any, betas: Any, eps: Any, weight_decay: Any) -> None:
    """Raise ValueError for numbers of a parameter group that would make weights NaN."""
    if type(betas) in (tuple, list) and len(betas) == 2:
        numbers = [lr, weight_decay, eps, *betas]
        known = {type(number) for number in numbers} <= {int, float}
        # A NaN compares as false wherever it stands, so each number is compared.
        fine = known and all(0 <= number <= checks.LARGEST_FLOAT for number in numbers)
        fine = fine and lr <= _LARGEST_RATE and lr * weight_decay <= _LARGEST_RATE
        if fine and max(betas) < 1 and eps >= _LEAST_EPS:
            return  # As in nearly every step; the checks below say which number is wrong.
    lr, weight_decay = (
        each.item() if isinstance(each, Tensor) and each.numel() == 1 else each
        for each in (lr, weight_decay)
    )
    checks.not_negative("lr", lr)
    checks.not_negative("weight_decay", weight_decay)
    if lr > _LARGEST_RATE:
        raise ValueError(f"lr must be at most {_LARGEST_RATE}, not {lr!r}")
    if lr * weight_decay > _LARGEST_RATE:
        raise ValueError(
            f"weight_decay must be at most {_LARGEST_RATE} / lr ({lr!r}), not {weight_decay!r}"
        )
    checks.listing("betas", betas)
    if len(betas) != 2:
        raise ValueError(f"betas must be two numbers in [0, 1), not {betas!r}")
    for beta in betas:
        checks.share("betas", beta)
    checks.positive("eps", eps)
    if eps < _LEAST_EPS:
        raise ValueError(f"eps must be at least {_LEAST_EPS}, not {eps!r}")


def _prepare(state: dict[str, Any], p: Tensor, rows: int, group: dict[str, Any]) -> None:
    """Fit the state of a parameter to the options of its group, which may have changed."""
    try:
        _check_shapes(state, p, rows)
    except ValueError as error:
        raise ValueError(
            f"{error}: give the optimizer to what adds or removes rows, as in "
            "add_outputs(layer, count, optimizer), so that its state follows"
        ) from None
    dtype = _moment_type(p)
    for name in ("exp_avg", "exp_avg_sq"):
        if name in state:  # The parameter may have another type since the last step.
            state[name] = state[name].to(dtype)
    if not state:
        state["step"] = 0
        shape = (rows, 1) if group["rowwise"] else p.shape
        state["exp_avg_sq"] = torch.zeros(shape, dtype=dtype, device=p.device)
    if not group["betas"][0]:
        state.pop("exp_avg", None)
    elif "exp_avg" not in state:
        state["exp_avg"] = torch.zeros_like(p, dtype=dtype)
    if not group["correct_skipped"]:
        state.pop("last_step", None)
    elif "last_step" not in state:  # Steps before do not count as skipped.
        moments: Tensor = state["exp_avg_sq"]
        state["last_step"] = moments.new_full((rows,), state["step"], dtype=torch.int32)


def _moment_type(p: Tensor) -> torch.dtype:
    if p.dtype not in (*KERNEL_DTYPES, torch.bfloat16):
        raise TypeError(f"weights must be float32, bfloat16 or float64, not {p.dtype}")
    return torch.float32 if p.dtype == torch.bfloat16 else p.dtype


def _check_names(what: str, names: Iterable[str], found: dict[str, Any]) -> None:
    """Raise ValueError unless all names are in a saved state."""
    if missing := [name for name in names if name not in found]:
        raise ValueError(f"this is no state of a RowSparseAdam: {what} {', '.join(missing)}")


def _check_shapes(state: dict[str, Any], p: Tensor, rows: int) -> None:
    """Raise ValueError unless moments and last steps fit a parameter: kernels do not check it."""
    shape = tuple(p.shape)
    fits = {"exp_avg": [shape], "exp_avg_sq": [shape, (rows, 1)], "last_step": [(rows,)]}
    for name, shapes in fits.items():
        found = state.get(name)
        own = tuple(found.shape) if isinstance(found, Tensor) else "that is no tensor"
        if name in state and own not in shapes:
            raise ValueError(f"{name} {own} does not fit a parameter {shape}")


def _check_values(state: dict[str, Any]) -> None:
    """Raise ValueError for moments and steps that no training has: weights would be NaN."""
    what, expected = "the state of a RowSparseAdam", {}
    step = check_counter(what, "step", state["step"])
    bounds = {"exp_avg": (None, None), "exp_avg_sq": (0, None), "last_step": (0, step)}
    for name in [name for name in bounds if name in state]:
        kind = str(state[name].dtype).removeprefix("torch.")
        number = "int" if name == "last_step" else "float"
        kind = kind if number in kind else number
        expected[name] = Expected(tuple(state[name].shape), kind, *bounds[name])
    check_arrays(what, state, expected)


def _share_infinities(parameters: list[Tensor]) -> list[Tensor]:
    """Make an infinite ``grad`` where another process has one: all leave a step out, or none."""
    of_group: dict[Any, list[Tensor]] = {}
    for p in parameters:
        group = sharing_group(p)
        if group is not None and group.size > 1:
            of_group.setdefault(group, []).append(p)
    made = []
    for group, shared in of_group.items():
        own = any(p.grad is not None and _has_infinities(p.grad) for p in shared)
        anywhere = group.all_reduce(torch.tensor([own], dtype=torch.float32), "max").item() > 0
        if anywhere and not own:  # The step is left out, so nothing but the scaler reads it.
            p = shared[0]
            row = p.new_full((1, *p.shape[1:]), torch.inf)
            p.grad = torch.sparse_coo_tensor(torch.zeros(1, 1).long(), row, p.shape)
            made.append(p)
    return made


def _has_infinities(gradient: Tensor) -> bool:
    values = gradient._values() if gradient.is_sparse else gradient
    return not bool(values.isfinite().all())


def _update_rows(
    tensors: AdamRows, hyper: AdamHyper, gradient: AnyRowGradient, chunks: int
) -> None:
    """Adam on the rows of a gradient; kernels share them out in ``chunks``."""
    p = tensors.weight
    _check_rows(gradient, p)
    if uses_reference(p):
        positions = None if gradient.ids is None else on_device(gradient.ids, p.device)
        factored = isinstance(gradient, FactoredRowGradient)
        values = gradient.values() if factored else gradient.rows
        torch_adam_rows(tensors, hyper, positions, values)
        return
    if isinstance(gradient, FactoredRowGradient) and p.dtype != torch.bfloat16:
        groups, coefficients = gradient.transposed, gradient.coefficients
        adam_factored(_as_arrays(tensors), hyper, groups, coefficients, gradient.vectors, chunks)
        return
    ids = gradient.ids
    if not isinstance(ids, np.ndarray):
        ids = np.arange(len(p), dtype=np.int32) if ids is None else on_host(ids)
    if p.dtype != torch.bfloat16:
        assert isinstance(gradient, RowGradient)
        grads = gradient.rows.detach().to(p.dtype).contiguous().numpy()
        adam_rows(_as_arrays(tensors), hyper, ids, grads, chunks)
        return
    # Kernels do not read bfloat16: they update float32 copies of the touched rows.
    at = torch.from_numpy(ids).long()
    touched = AdamRows._make(t if t is None else t.index_select(0, at) for t in tensors)
    touched = touched._replace(weight=touched.weight.float())
    values = array_view(gradient.values().float().contiguous())
    every = np.arange(len(at), dtype=np.int32)
    adam_rows(_as_arrays(touched), hyper, every, values, chunks)
    for tensor, changed in zip(tensors, touched, strict=True):
        if tensor is not None and changed is not None:
            tensor.index_copy_(0, at, changed.to(tensor.dtype))


def _check_rows(gradient: AnyRowGradient, weight: Tensor) -> None:
    """Raise ValueError for rows outside of a weight: the memory of ids may have changed."""
    ids, (rows, width) = gradient.ids, weight.shape
    if ids is None:
        ids = range(rows)
    elif (not isinstance(ids, Tensor) or ids.is_cpu) and not inside(ids, rows):
        raise ValueError(f"row numbers of a gradient lie outside of [0, {rows}): did they change?")
    if isinstance(gradient, RowGradient) and gradient.rows.shape != (len(ids), width):
        shape = tuple(gradient.rows.shape)
        raise ValueError(f"rows {shape} of a gradient do not fit {len(ids)} rows of {width}")


def _no_gradient(p: Tensor, but: Any, rows: int) -> AnyRowGradient:
    """A gradient of 0 for all rows ``but`` some."""
    idle = np.ones(rows, bool)
    idle[on_host(but)] = False
    ids, width = np.flatnonzero(idle).astype(np.int32), p.numel() // len(idle)
    if uses_reference(p) or p.dtype == torch.bfloat16:
        return RowGradient(ids, p.new_zeros(len(ids), width))
    none = Transposed(ids, np.zeros(len(ids) + 1, np.int64), np.empty(0, np.int64), _EMPTY)
    kind = array_view(p).dtype
    return FactoredRowGradient(none, np.empty(0, kind), np.zeros((1, width), kind))


def _as_arrays(tensors: AdamRows) -> AdamRows:
    """The arrays for kernels; empty ones for what is not kept."""
    weight, first, second, last = tensors
    for moments in (first, second):
        if moments is not None and not moments.is_contiguous():
            raise ValueError(f"a contiguous tensor is needed; got strides {moments.stride()}")
    array = weight.numpy()
    return AdamRows(
        weight=array,
        first=np.empty((0, 0), array.dtype) if first is None else first.numpy(),
        second=second.numpy(),
        last_step=_EMPTY if last is None else last.numpy(),
    )


def check_has(optimizer: torch.optim.Optimizer | None, *parameters: Tensor | None) -> None:
    """Raise ValueError unless an optimizer, if there is one, has all these parameters."""
    if optimizer is None:
        return
    known = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for p in parameters:
        if p is not None and id(p) not in known:
            raise ValueError(f"the optimizer does not have this parameter, {tuple(p.shape)}")


@torch.no_grad()
def resize_rows(
    p: torch.nn.Parameter,
    kept: Tensor | None,
    added: Tensor,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    """Keep some rows of a parameter and append others; the state of its optimizer follows.

    The parameter stays the same object with new memory. Its state keeps the same rows; new ones
    begin at 0. Gradients that wait are dropped.

    Args:
        kept: ``(n,)`` int64 numbers of rows, in their new order; None: all, in order.
        added: ``(m, ...)`` new rows, which come last.
        optimizer: of the parameter: `slide.RowSparseAdam`, or one of PyTorch's; None: no state
            follows, and an optimizer that has some refuses its next step.

    Raises:
        ValueError: for rows of another shape, numbers out of range, or an optimizer of other
            parameters.

    Example:
        >>> import slide, torch
        >>> from slide.optim import resize_rows
        >>> weight = torch.nn.Parameter(torch.tensor([[1.0], [2.0], [3.0]]))
        >>> optimizer = slide.RowSparseAdam([weight], lr=0.5)
        >>> resize_rows(weight, torch.tensor([2, 0]), torch.zeros(1, 1), optimizer)
        >>> weight.tolist()
        [[3.0], [1.0], [0.0]]
    """
    rows = len(p)
    if added.shape[1:] != p.shape[1:]:
        raise ValueError(f"new rows {tuple(added.shape)} do not fit a weight {tuple(p.shape)}")
    if kept is not None and len(kept) and not 0 <= int(kept.min()) <= int(kept.max()) < rows:
        raise ValueError(f"rows to keep must lie in [0, {rows})")
    check_has(optimizer, p)
    state = {} if optimizer is None else optimizer.state.get(p, {})
    for name, value in state.items():
        if isinstance(value, Tensor) and value.ndim and len(value) in (rows, num_rows(p)):
            if value.layout == torch.sparse_coo:  # Momentum of sparse gradients.
                value = value.to_dense()
            # Steps before a row existed are none that it skipped.
            first = int(state["step"]) if name == "last_step" else 0
            # State of a convolution may have a row for each kernel, so ``I`` for each output.
            value = value.unflatten(0, (rows, 1 if len(value) == rows else p.shape[1]))
            new = value.new_full((len(added), *value.shape[1:]), first)
            state[name] = torch.cat([value if kept is None else value[kept], new]).flatten(0, 1)
    p.grad, p.row_gradients = None, []  # type: ignore[attr-defined]
    old = p.data if kept is None else p.data[kept]
    p.data = torch.cat([old, added.to(old.dtype)])
    # Backward passes of earlier forward passes must raise, also through operations of PyTorch.
    renumber_rows(p)
    torch.autograd.graph.increment_version(p)
