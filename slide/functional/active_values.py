"""Values on an active set, and the same values in a dense matrix."""

from torch import Tensor

from slide.active_set import ActiveSet
from slide.backend import on_device
from slide.ops.reference.products import samples_on
from slide.utils.profiling import untraced


@untraced
def gather_active(values: Tensor, active: ActiveSet) -> Tensor:
    """The entries of a dense ``(B, N)`` on the active set; the inverse of `scatter_active`.

    Args:
        values: ``(B, N)`` of any type.
        active: the active set, out of N outputs.

    Returns:
        ``(B, A)`` for a shared set, else ``(nnz,)`` in the order of ``active.ids``.

    Example:
        >>> import numpy as np, slide, torch
        >>> from slide.functional import gather_active
        >>> active = slide.ActiveSet(4, np.array([3, 0], np.int32))
        >>> gather_active(torch.tensor([[5, 6, 7, 8]]), active)
        tensor([[8, 5]])
    """
    if active.complete:
        return values
    ids = on_device(active.ids, values.device).long()
    if active.indptr is None:
        return values[:, ids]
    return values[samples_on(active.indptr, values.device), ids]


@untraced
def scatter_active(values: Tensor, active: ActiveSet, num_samples: int) -> Tensor:
    """A dense ``(B, N)`` with ``values`` on the active set and zeros elsewhere.

    This is for hidden layers, where N is some thousands: it takes B x N numbers.

    Args:
        values: ``(nnz,)``; for a shared set ``(B, A)``, or ``(B, A, H, W)`` from a convolution.
        active: the active set, out of N outputs.
        num_samples: B.

    Returns:
        ``(B, N)``, or ``(B, N, H, W)``, of the type of ``values``.

    Example:
        >>> import numpy as np, slide, torch
        >>> from slide.functional import scatter_active
        >>> active = slide.ActiveSet(4, np.array([3, 0], np.int32))
        >>> scatter_active(torch.tensor([[8, 5]]), active, num_samples=1)
        tensor([[5, 0, 0, 8]])
    """
    if active.complete:
        return values
    ids = on_device(active.ids, values.device).long()
    out = values.new_zeros(num_samples, active.out_features, *values.shape[2:])
    if active.indptr is None:
        return out.index_copy(1, ids, values)
    return out.index_put((samples_on(active.indptr, values.device), ids), values)
