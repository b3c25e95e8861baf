"""The output of a sampled layer."""

from typing import NamedTuple

from torch import Tensor, nn

from slide import functional as F
from slide.active_set import ActiveSet


class Activation(NamedTuple):
    """The outputs of a layer on its active set.

    Attributes:
        values: ``(nnz,)`` in the order of ``active.ids``; for a shared set ``(B, A)``, or
            ``(B, A, H, W)`` from a convolution.
        active: the active set, out of N outputs.
        num_samples: B.

    Example:
        >>> import slide, torch
        >>> layer = slide.SampledLinear(4, 100, slide.ActiveSampler(4, 100, active=10))
        >>> out = layer(torch.randn(2, 4))
        >>> out.values.shape, out.to_dense().shape
        (torch.Size([2, 10]), torch.Size([2, 100]))
    """

    values: Tensor
    active: ActiveSet
    num_samples: int

    def to_dense(self) -> Tensor:
        """``(B, N)`` with zeros outside of the set.

        This is for hidden layers, where N is some thousands: it takes B x N numbers.
        """
        return F.scatter_active(self.values, self.active, self.num_samples)


class ToDense(nn.Module):
    """Turns an `Activation` into a tensor with zeros, for the next module of an ``nn.Sequential``.

    Example:
        >>> import slide, torch
        >>> sampler = slide.ActiveSampler(4, 100, active=10)
        >>> stack = torch.nn.Sequential(slide.SampledLinear(4, 100, sampler), slide.ToDense())
        >>> stack(torch.randn(2, 4)).shape
        torch.Size([2, 100])
    """

    def forward(self, x: Activation) -> Tensor:
        """``(B, N)``; see `Activation.to_dense`."""
        return x.to_dense()
