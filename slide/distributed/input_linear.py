"""The first layer, with its rows shared out among processes."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from slide import functional as F
from slide.distributed.first_rows import normal_rows
from slide.distributed.group import Group
from slide.distributed.shares import Shares
from slide.nn import Activation
from slide.row_gradients import mark_shared
from slide.sampling import FullSampler
from slide.sparse import as_csr, check_pattern
from slide.utils import checks
from slide.utils.profiling import untraced
from slide.utils.random_keys import random_key


class ShardedInputLinear(nn.Module):
    """`slide.SparseInputLinear` with the rows of its weight shared out among processes.

    Each rank sums the weight rows of its own features, and one all-reduce of ``(B, H)`` adds up
    these sums. The backward pass sends nothing, if the gradient of the output is equal on all
    ranks.

    Args:
        shares: which rank owns which of the D features.
        out_features: H, number of outputs.
        group: the processes.
        init_scale: see `slide.SparseInputLinear`.
        seed: seed of the first weights. They do not depend on the number of processes.

    Raises:
        ValueError: for a number out of range.

    Attributes:
        in_features: D.
        weight: ``(d, H)`` float32, the rows of this rank, in the order of ``shares.ids``.
        bias: ``(H,)`` float32, equal on all ranks.

    Example:
        >>> import torch
        >>> from slide.distributed import Group, ShardedInputLinear, Shares
        >>> layer = ShardedInputLinear(Shares("features", 100, 0, 1), 8, Group.alone())
        >>> layer(torch.ones(1, 100)).to_dense().shape
        torch.Size([1, 8])
    """

    def __init__(
        self,
        shares: Shares,
        out_features: int,
        group: Group,
        init_scale: float = 1.0,
        seed: int = 0,
    ):
        super().__init__()
        checks.whole("out_features", out_features, 1)
        checks.positive("init_scale", init_scale)
        self.in_features, self.out_features = shares.rows, out_features
        self.shares, self.group = shares, group
        # Chooses all outputs: there is no index over rows that others own.
        self.sampler = FullSampler(shares.rows, out_features)
        key, deviation = int(random_key(seed)), init_scale / math.sqrt(out_features)
        self.weight = nn.Parameter(normal_rows(key, shares.ids, out_features, deviation))
        self.bias = nn.Parameter(torch.zeros(out_features))

    @untraced
    def forward(self, x: Any) -> Activation:
        """All H outputs of a matrix ``(B, D)``, the same on all ranks.

        Args:
            x: any form that `slide.as_csr` takes, the same on all ranks.

        Raises:
            ValueError: for a column out of range, or a malformed matrix.
            TypeError: for an object that is no matrix.
        """
        x = as_csr(x, self.in_features)
        # Here, so that all ranks raise: one that raised alone would leave the others waiting.
        check_pattern("features", x, None, self.in_features)
        mark_shared(self.group, self.weight)
        own = self.shares.own(x)
        sums = F.sparse_linear(own, self.weight, None)
        if self.group.size > 1:
            sums = _SumOverRanks.apply(sums, self.group)
        return Activation(sums + self.bias, self.sampler.select(own, None), own.num_rows)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, rows here={len(self.shares)}"


class _SumOverRanks(torch.autograd.Function):
    """The sum of a tensor over ranks. All ranks get one gradient of it, which is that of each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group):
        ctx.mark_dirty(x)
        return group.all_reduce(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        return grads[0], None
