"""The output of a sampled layer."""

from typing import NamedTuple

from torch import Tensor, nn

from slide import functional as F
from slide.active_set import ActiveSet


class Activation(NamedTuple):
    """The outputs of a layer on its active set.

    Attributes:
        values: ``(B, A)`` for a shared set, else ``(nnz,)`` in the order of ``active.ids``.
        active: which outputs these are.
        num_samples: B.
    """

    values: Tensor
    active: ActiveSet
    num_samples: int

    def to_dense(self) -> Tensor:
        """``(B, N)`` with zeros off the active set; for hidden layers, as it costs B x N."""
        return F.scatter_active(self.values, self.active, self.num_samples)


class ToDense(nn.Module):
    """An `Activation` as a tensor, zeros and all, for what follows in an ``nn.Sequential``."""

    def forward(self, x: Activation) -> Tensor:
        """``(B, N)``; see `Activation.to_dense`."""
        return x.to_dense()
