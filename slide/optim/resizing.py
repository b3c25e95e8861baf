"""Parameters whose rows become more or fewer while they are trained."""

import torch
from torch import Tensor

from slide.row_gradients import num_rows, renumber_rows


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

    The parameter stays the same object with new memory, so the optimizer keeps it. State with a row
    for each row of the parameter (moments), or for each kernel of a convolution, keeps these rows;
    the new ones begin at 0, as in an optimizer that has not seen them. Gradients that wait are
    dropped. All rows are copied.

    Args:
        p: ``(N, ...)``.
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
    state = {}
    check_has(optimizer, p)
    if optimizer is not None:
        state = optimizer.state.get(p, {})
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
    # Backward passes of forward passes before must raise, those of PyTorch's operations, too.
    renumber_rows(p)
    torch.autograd.graph.increment_version(p)
