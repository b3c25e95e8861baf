"""Backward passes that notice that their ids are no longer those of the forward pass.

The forward pass may have run again with another active set: ``torch.utils.checkpoint`` computes
saved tensors a second time, and a sampler then draws others. So the ids are saved like the tensors
that belong to them, and compared with the first ones.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.ops.backend import CPU, on_device


def drawn_ids(ctx: Any, ids: np.ndarray | Tensor) -> Tensor:
    """The ids as a tensor for ``save_for_backward``; ``ctx`` keeps those of the first time."""
    ctx.drawn = ids if isinstance(ids, Tensor) else on_device(ids, CPU)
    return ctx.drawn


def check_drawn(ctx: Any, saved: Tensor | None) -> None:
    """Raise unless the saved ids are those of the first forward pass.

    Nothing is compared where the tensor itself comes back, as in all usual steps,
    or where none was saved.

    Raises:
        RuntimeError: for other ids.
    """
    if saved is None or saved.data_ptr() == ctx.drawn.data_ptr():
        return
    if not torch.equal(saved, ctx.drawn):
        raise RuntimeError(
            f"the forward pass of this layer ran again and drew another active set of {len(saved)} "
            "ids, as in torch.utils.checkpoint, so its gradients would be wrong: call the layer "
            "outside of the checkpoint, or draw the set before it and call slide.active_linear"
        )
