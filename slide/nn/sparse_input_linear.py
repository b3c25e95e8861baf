"""A linear layer with sparse input."""

import math
from typing import Any

import torch
from torch import nn

from slide import functional as F
from slide.backend import CPU, KERNEL_DTYPES, plain
from slide.functional.host_rows import fetch_features
from slide.nn.activation import Activation
from slide.nn.place import check_dtype, check_module, new_linear
from slide.nn.sampled_layer import SampledLayer
from slide.sampling import Sampler
from slide.sparse import as_csr, check_pattern
from slide.utils import checks
from slide.utils.profiling import untraced


class SparseInputLinear(SampledLayer):
    """A linear layer with sparse input: a weighted sum of the weight rows of its features.

    With a sampler the result holds only the chosen outputs. The other outputs and their gradients
    count as zero. The layer still computes all outputs: the weights of a feature lie side by side
    in memory, and to read all of them takes no longer than to read a quarter of them.

    The gradient of the weight has rows (see `slide.functional`), for `slide.RowSparseAdam`.

    Args:
        in_features: D, number of features.
        out_features: H, number of outputs.
        sampler: chooses among H outputs; None chooses all.
        init_scale: with the first weights, an input of length 1 gives an output of about this
            length. The weights of rare features change little, so a small value makes rare
            features count less.
        sparse_grad: whether the gradient of the weight is a sparse tensor in its ``grad``, instead
            of rows for `slide.RowSparseAdam`. The gradient of the bias is dense.
        device: a device, its name, or None: PyTorch's default. Off the CPU the layer computes in
            plain torch (`slide.backend`).
        host_rows: whether the weight stays on the CPU wherever the layer is moved; see
            `slide.SampledLinear`. The layer computes on the device of its bias.
        dtype: type of weight and bias: float32 or float64; None: PyTorch's default.

    Raises:
        ValueError: for a number out of range, a sampler with another number of outputs, a sampler
            that does not take sparse inputs, or ``host_rows`` together with ``sparse_grad`` or a
            sampler with a proposer.
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
        host_rows: bool = False,
    ):
        super().__init__(in_features, out_features, sampler, sparse_grad)
        checks.flag("host_rows", host_rows)
        if host_rows:
            self.keep_rows_on_host()
        if not self.sampler.sparse_inputs:
            raise ValueError(
                f"this {type(self.sampler).__name__} takes dense inputs only, and the inputs of "
                "this layer are sparse: use a sampler with PublishedLSHProposer, or without a "
                "proposer"
            )
        checks.positive("init_scale", init_scale)
        check_dtype(dtype, KERNEL_DTYPES)
        place = CPU if host_rows else device
        weight = torch.empty(in_features, out_features, dtype=dtype, device=place)
        self.weight = nn.Parameter(weight.normal_(0, init_scale / math.sqrt(out_features)))
        self.bias = nn.Parameter(torch.zeros(out_features, dtype=dtype, device=device))

    def keep_rows_on_host(self) -> None:
        """Set ``host_rows``, before the layer is moved to another device.

        Raises:
            ValueError: for a layer with ``sparse_grad`` or on another device than the CPU, or a
                sampler with a proposer.
        """
        if getattr(self.sampler, "proposer", None) is not None:
            raise ValueError(
                "host_rows=True keeps the rows of features on the CPU, and a proposer would index "
                "the neurons across all of them: use a sampler without a proposer on this layer"
            )
        super().keep_rows_on_host()

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, sampler: Sampler | None = None, sparse_grad: bool = False
    ) -> "SparseInputLinear":
        """A layer with copies of the weight and the bias of an ``nn.Linear``, in their type.

        Without a bias in the ``nn.Linear``, the bias of the layer is zero.

        Args:
            linear: its ``in_features`` are D, its ``out_features`` H.
            sampler: chooses among H outputs; None chooses all.
            sparse_grad: see `SparseInputLinear`.

        Raises:
            ValueError: see `SparseInputLinear`.
            TypeError: for another module, or weights of another type.

        Example:
            >>> import slide, torch
            >>> linear = torch.nn.Linear(100, 8)
            >>> layer = slide.SparseInputLinear.from_linear(linear)
            >>> torch.equal(layer.to_linear().weight, linear.weight)
            True
        """
        check_module(linear, nn.Linear, KERNEL_DTYPES)
        sizes, weight = (linear.in_features, linear.out_features), linear.weight
        place = {"device": weight.device, "dtype": weight.dtype}
        layer = cls(*sizes, sampler, sparse_grad=sparse_grad, **place)
        bias = torch.zeros_like(layer.weight[0]) if linear.bias is None else linear.bias
        layer.load_state_dict({"weight": linear.weight.T, "bias": bias})
        return layer

    def to_linear(self) -> nn.Linear:
        """An ``nn.Linear`` ``(H, D)`` with copies of weight and bias, for dense inputs."""
        return new_linear(self.weight.T, self.bias)

    @untraced
    def forward(self, x: Any) -> Activation:
        """The outputs of the active set of a matrix ``(B, D)``; in ``eval()``, all H.

        Args:
            x: any form that `slide.as_csr` takes.

        Raises:
            ValueError: for a column out of range, or a malformed matrix.
            TypeError: for an object that is no matrix.
        """
        x = as_csr(x, self.in_features)
        some, weight, sparse = x, self.weight, self.sparse_grad
        assert self.bias is not None
        if self.host_rows and plain(self.bias):  # Kernels read rows where they are.
            check_pattern("features", x, None, self.in_features)
            place = self.bias.device
            (weight, some), sparse = fetch_features(self.weight, x, place), True
        values = F.sparse_linear(some, weight, self.bias, sparse)
        active = self._choose(x, self.weight.T, None)
        return Activation(F.gather_active(values, active), active, x.num_rows)
