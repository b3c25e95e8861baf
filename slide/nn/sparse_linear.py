"""Linear layers with a sparse operand: sparse inputs, or a sparse weight."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slide import functional as F
from slide.backend import KERNEL_DTYPES, on_host
from slide.nn.sampled_linear import (
    Activation,
    EveryOutput,
    SampledLayer,
    check_dtype,
    check_module,
    new_linear,
)
from slide.runtime import generator
from slide.sampling import Sampler
from slide.sparse import CSR, as_csr
from slide.utils import checks
from slide.utils.array_checks import Expected, check_arrays
from slide.utils.profiling import untraced


class SparseInputLinear(SampledLayer):
    """A linear layer with sparse input: a weighted sum of the weight rows of its features.

    With a sampler the result holds only the chosen outputs, but the layer computes all: the weights
    of a feature lie side by side in memory, and reading all takes no longer than a quarter of them.

    Args:
        in_features: D.
        out_features: H.
        sampler: chooses among H outputs; None chooses all.
        init_scale: length of the first outputs for inputs of length 1. Weights of rare features
            change little, so a small value makes rare features count less.
        sparse_grad: whether the gradient of the weight is a sparse tensor in its ``grad``, instead
            of rows for `slide.RowSparseAdam`. The gradient of the bias is dense.
        device: as in PyTorch.
        dtype: float32 or float64.

    Raises:
        ValueError: for a number out of range, a sampler with another number of outputs, or a
            sampler that does not take sparse inputs.
        TypeError: for another dtype.

    Attributes:
        weight: ``(D, H)`` float32. It begins normal with standard deviation init_scale/sqrt(H).
        bias: ``(H,)`` float32. It begins at zero.

    Example:
        >>> import numpy as np, slide
        >>> layer = slide.SparseInputLinear(100, 8)
        >>> row = slide.CSR(np.array([0, 2]), np.array([3, 70], np.int32), np.ones(2, np.float32))
        >>> layer(row).to_dense().shape
        torch.Size([1, 8])
    """

    _of_rows = ("weight",)

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sampler: Sampler | None = None,
        init_scale: float = 1.0,
        sparse_grad: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(in_features, out_features, sampler, sparse_grad)
        if not self.sampler.sparse_inputs:
            raise ValueError(
                f"this {type(self.sampler).__name__} takes dense inputs only, and the inputs of "
                "this layer are sparse: use a sampler with PublishedLSHProposer, or without a "
                "proposer"
            )
        checks.positive("init_scale", init_scale)
        check_dtype(dtype, KERNEL_DTYPES)
        weight = torch.empty(in_features, out_features, dtype=dtype, device=device)
        scale = init_scale / math.sqrt(out_features)
        self.weight = nn.Parameter(weight.normal_(0, scale, generator=generator(weight.device)))
        self.bias = nn.Parameter(torch.zeros(out_features, dtype=dtype, device=device))

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, sampler: Sampler | None = None, sparse_grad: bool = False
    ) -> "SparseInputLinear":
        """A layer with copies of the weight and the bias of an ``nn.Linear``, in their type.

        Without a bias in the ``nn.Linear``, the bias of the layer is zero. TypeError for another
        module, or weights of another type.

        Example:
            >>> import slide, torch
            >>> linear = torch.nn.Linear(100, 8)
            >>> layer = slide.SparseInputLinear.from_linear(linear)
            >>> torch.equal(layer.to_linear().weight, linear.weight)
            True
        """
        check_module(linear, nn.Linear, KERNEL_DTYPES)
        sizes, weight = (linear.in_features, linear.out_features), linear.weight
        options = {"device": weight.device, "dtype": weight.dtype}
        layer = cls(*sizes, sampler, sparse_grad=sparse_grad, **options)
        bias = torch.zeros_like(layer.weight[0]) if linear.bias is None else linear.bias
        layer.load_state_dict({"weight": linear.weight.T, "bias": bias})
        return layer

    def to_linear(self) -> nn.Linear:
        """An ``nn.Linear`` ``(H, D)`` with copies of weight and bias, for dense inputs."""
        return new_linear(self.weight.T, self.bias)

    @untraced
    def forward(self, x: Any) -> Activation | EveryOutput:
        """The outputs of the active set of a matrix ``(B, D)``; in ``eval()``, all H.

        ``x`` is as `slide.as_csr` takes it; errors: see `slide.functional.sparse_linear`.
        """
        x = as_csr(x, self.in_features)
        values = F.sparse_linear(x, self.weight, self.bias, self.sparse_grad)
        active = self._choose(x, self.weight.T, None)
        return self._activation(F.gather_active(values, active), active, (x.num_rows,))


class SparseWeightLinear(nn.Module):
    """``nn.Linear`` whose weight is a large sparse matrix with a fixed pattern.

    The products: see `slide.csr_matmul`. The gradient of the entries is dense, for any
    optimizer of PyTorch.

    Args:
        matrix: ``(N, D)`` weight, float32 or float64.
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

        ValueError if the last dimension is not D, TypeError if types differ.
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
        array = Expected((None,), "int")
        found = state if isinstance(state, dict) else {}
        check_arrays("the pattern of the layer", found, {"indptr": array, "indices": array})
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
