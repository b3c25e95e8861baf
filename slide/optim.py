"""Row-sparse Adam: the rows that a step touched are updated in place, and nothing else."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from slide import checks
from slide.active import AnyRowGradient, FactoredRowGradient, RowGradient, as_rows, num_rows
from slide.kernels import adam as kernels
from slide.kernels.adam import AdamHyper, AdamRows
from slide.runtime import array_view, num_threads

_EMPTY = np.empty(0, np.int32)


class RowSparseAdam(torch.optim.Optimizer):
    """Adam (Kingma and Ba 2015) for weights whose gradients come as rows.

    Takes the row gradients that slide's layers leave on their weights, and ordinary dense
    gradients, too. With all rows touched at each step it equals ``torch.optim.AdamW``. Otherwise it
    is *lazy*: moments and decay of a row stand still while the row is not touched, and the bias
    correction counts all steps, not those of the row.

    Args:
        params: parameters or parameter groups.
        lr: learning rate, above 0.
        betas: decay of the two moments, each in [0, 1).
        eps: added to the root of the second moment.
        weight_decay: decoupled decay, per step in which a row is touched.
        correct_skipped: first decay a row's moments by the number of steps that it missed, so that
            they equal dense Adam's; costs 4 bytes a row.
        rowwise: keep one second moment a row, of the mean square of its gradient, instead of one an
            entry: a third less memory to move, where that is what a step waits for (sets per
            sample).

    Raises:
        ValueError: for a number out of range.
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

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget dense and row gradients."""
        super().zero_grad(set_to_none)
        for group in self.param_groups:
            for p in group["params"]:
                p.row_gradients = []

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                # Used up here: PyTorch's own zero_grad does not know them.
                gradients: list[AnyRowGradient] = list(getattr(p, "row_gradients", ()))
                p.row_gradients = []
                if p.grad is not None:
                    rows = p.grad.reshape(num_rows(p), -1).contiguous()
                    gradients.append(RowGradient(np.arange(len(rows), dtype=np.int32), rows))
                if gradients:
                    self._update(p, group, _sum_up(gradients))
        return loss

    def _update(self, p: torch.Tensor, group: dict[str, Any], gradient: AnyRowGradient) -> None:
        state = self.state[p]
        if not state:
            state["step"] = 0
            state["exp_avg"] = torch.zeros_like(p)
            state["exp_avg_sq"] = (
                p.new_zeros(num_rows(p), 1) if group["rowwise"] else torch.zeros_like(p)
            )
            if group["correct_skipped"]:
                state["last_step"] = torch.zeros(num_rows(p), dtype=torch.int32)
        state["step"] += 1
        rows = AdamRows(
            as_rows(p),
            as_rows(state["exp_avg"]),
            as_rows(state["exp_avg_sq"]),
            array_view(state["last_step"]) if group["correct_skipped"] else _EMPTY,
        )
        hyper = AdamHyper(
            float(group["lr"]),
            float(group["betas"][0]),
            float(group["betas"][1]),
            float(group["eps"]),
            float(group["weight_decay"]),
            int(state["step"]),
        )
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
            kernels.adam_rows(rows, hyper, gradient.ids, array_view(gradient.rows), chunks)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put back what ``state_dict`` gave."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            # The base class turns all state into the parameter's type.
            if "last_step" in state:
                state["last_step"] = state["last_step"].to(torch.int32)


def _sum_up(gradients: list[AnyRowGradient]) -> AnyRowGradient:
    """One gradient with distinct rows out of several."""
    if len(gradients) == 1:
        return gradients[0]
    ids, places = np.unique(np.concatenate([g.ids for g in gradients]), return_inverse=True)
    values = torch.cat([g.values() for g in gradients])
    total = values.new_zeros(len(ids), values.shape[1])
    return RowGradient(ids, total.index_add_(0, torch.from_numpy(places), values))
