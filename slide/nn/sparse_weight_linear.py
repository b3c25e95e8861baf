"""A linear layer whose weight is a sparse matrix."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slide import functional as F
from slide.nn.place import check_dtype
from slide.ops.backend import KERNEL_DTYPES, on_host
from slide.sparse import CSR


class SparseWeightLinear(nn.Module):
    """``nn.Linear`` whose weight is a large sparse matrix with a fixed pattern.

    The products are those of `slide.csr_matmul`. The gradient of the entries is dense, for any
    optimizer of PyTorch.

    Args:
        matrix: ``(N, D)`` weight, float32 or float64.
        bias: whether the layer has a bias.
        trainable: whether the entries are a parameter. If not, the layer does not copy the matrix,
            and several layers may share it.
        device: a device, its name, or None: the CPU.
        dtype: type of the entries and the bias: float32 or float64; None: that of the matrix.
            Another one than that of the matrix makes a copy of the entries.

    Raises:
        TypeError: for another dtype.

    Attributes:
        matrix: the pattern of the weight. If ``trainable`` is false, also its entries.
        values: ``(nnz,)`` entries; a parameter if ``trainable``, else a buffer.
        bias: ``(N,)``, of the type of the matrix, or None. It begins at zero.

    Example:
        >>> import scipy.sparse, slide, torch
        >>> matrix = slide.CSRMatrix(scipy.sparse.eye(3, format="csr", dtype="float32"))
        >>> slide.SparseWeightLinear(matrix, bias=False)(torch.ones(2, 3)).tolist()
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """

    values: Tensor

    def __init__(
        self,
        matrix: F.CSRMatrix,
        bias: bool = True,
        trainable: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__()
        check_dtype(dtype, KERNEL_DTYPES)
        if dtype not in (None, matrix.values.dtype):
            matrix = matrix.with_values(matrix.values.to(dtype))
        self.matrix = matrix
        self.out_features, self.in_features = matrix.shape
        self.trainable = trainable
        if trainable:
            self.values = nn.Parameter(matrix.values.clone())
        else:
            self.register_buffer("values", matrix.values)
        dtype = matrix.values.dtype
        self.bias = nn.Parameter(torch.zeros(self.out_features, dtype=dtype)) if bias else None
        if device is not None:
            self.to(device)

    def forward(self, x: Tensor) -> Tensor:
        """``x @ matrix.T + bias``: ``(..., D)`` to ``(..., N)``.

        Raises:
            ValueError: if the last dimension is not D.
            TypeError: if types differ.
        """
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(f"input {tuple(x.shape)} does not fit a matrix {self.matrix.shape}")
        moved = self.values.device != self.matrix.values.device
        if not self.trainable and not moved and self.matrix.values is not self.values:
            # A conversion such as `double()` replaced the values.
            self.matrix = self.matrix.with_values(self.values)
            self.values = self.matrix.values
        columns = x.reshape(-1, self.in_features).T
        own = self.values if self.trainable or moved else None
        y = F.csr_matmul(self.matrix, columns, own).T
        y = y.reshape(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, entries={len(self.values)}"

    def get_extra_state(self) -> dict[str, Any]:
        """The pattern; part of ``state_dict``."""
        return {"indptr": self.matrix.indptr, "indices": self.matrix.indices}

    def _load_from_state_dict(self, *arguments: Any, **keywords: Any) -> None:
        if not self.trainable:
            # A copy: other layers may use the matrix, and loading must not change it.
            self.values = self.values.clone()
        super()._load_from_state_dict(*arguments, **keywords)

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_extra_state` returned, with the values that were loaded before."""
        if len(state["indptr"]) != self.out_features + 1:
            raise ValueError(
                f"a pattern of {len(state['indptr']) - 1} rows does not fit a layer of "
                f"{self.out_features} outputs"
            )
        indptr, indices = on_host(state["indptr"]).astype(np.int64), on_host(state["indices"])
        csr = CSR(indptr, indices, on_host(self.values))
        self.matrix = F.CSRMatrix(csr, self.in_features)
        if not self.trainable:
            self.values = self.matrix.values.to(self.values.device)
