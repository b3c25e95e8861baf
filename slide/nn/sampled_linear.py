"""A linear layer that computes only the outputs which its sampler chooses."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from slide.active_set import ActiveSet
from slide.backend import CPU, plain
from slide.functional.autocast import outside_autocast
from slide.functional.host_rows import fetch_set
from slide.functional.linear import (
    DTYPES,
    PRECISIONS,
    LinearOptions,
    check_fits,
    check_linear,
    linear_on_set,
)
from slide.functional.linear_loss import linear_loss_on_set
from slide.nn.activation import Activation
from slide.nn.losses import ActiveLoss
from slide.nn.place import check_dtype, check_module, new_linear
from slide.nn.searched_layer import SearchedLayer
from slide.sampling import Sampler
from slide.utils import checks
from slide.utils.profiling import untraced


class SampledLinear(SearchedLayer):
    """``nn.Linear`` that computes only the outputs which its sampler chooses.

    The gradients of weight and bias have rows (see `slide.functional`), for
    `slide.RowSparseAdam`. With ``sparse_grad`` they are sparse tensors, like the gradients of
    ``nn.Embedding(sparse=True)``, for ``torch.optim.SparseAdam``, ``SGD`` and ``Adagrad``.

    Args:
        in_features: D, length of the inputs.
        out_features: N, number of outputs.
        sampler: chooses among N outputs; None computes all.
        bias: whether the layer has a bias.
        precision: precision of the products with a shared set; see `slide.active_linear`.
        sparse_grad: whether gradients of weight and bias are sparse tensors in their ``grad``.
        init_scale: scale of the first weights. Small first weights help if most outputs are rarely
            learnt: these outputs then add less noise to the gradients of other layers.
        device: a device, its name, or None: PyTorch's default. Off the CPU the layer computes in
            plain torch (`slide.backend`).
        host_rows: whether weight and bias stay on the CPU wherever the layer is moved, so that they
            may be larger than a device's memory. The layer computes on the device of its inputs,
            with the rows of the active set, and the optimizer updates rows on the CPU. Sets are
            chosen on the CPU: an index waits there for the inputs.
        dtype: type of weight and bias: float32, bfloat16 or float64; None: PyTorch's default.

    Raises:
        ValueError: for a number or name out of range, a sampler with another number of outputs, or
            ``host_rows`` together with ``sparse_grad``.
        TypeError: for another dtype.

    Attributes:
        weight: ``(N, D)`` float32. It begins uniform in +-init_scale/sqrt(D); with a scale of 1,
            this is the range of ``nn.Linear``.
        bias: ``(N,)`` float32, or None. It begins at zero.

    Example:
        >>> import slide, torch
        >>> sampler = slide.ActiveSampler(16, 1000, slide.LSHProposer, active=64)
        >>> layer = slide.SampledLinear(16, 1000, sampler)
        >>> x, labels = torch.randn(2, 16), slide.Pattern.from_lists([[3], [5, 7]])
        >>> layer(x, labels).values.shape
        torch.Size([2, 64])
        >>> scores, ids = layer.top_k(x, k=5)
        >>> ids.shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sampler: Sampler | None = None,
        bias: bool = True,
        precision: str = "float32",
        sparse_grad: bool = False,
        init_scale: float = 1.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
        host_rows: bool = False,
    ):
        super().__init__(in_features, out_features, sampler, sparse_grad)
        checks.flag("host_rows", host_rows)
        if host_rows:
            self.keep_rows_on_host()
            device = CPU
        checks.one_of("precision", precision, PRECISIONS)
        checks.positive("init_scale", init_scale)
        check_dtype(dtype, DTYPES)
        self.precision = precision
        bound = init_scale / math.sqrt(in_features)
        weight = torch.empty(out_features, in_features, dtype=dtype, device=device)
        self.weight = nn.Parameter(weight.uniform_(-bound, bound))
        zeros = torch.zeros(out_features, dtype=dtype, device=device) if bias else None
        self.bias = None if zeros is None else nn.Parameter(zeros)

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, sampler: Sampler | None = None, **options: Any
    ) -> "SampledLinear":
        """A layer with copies of the weight and the bias of an ``nn.Linear``, in their type.

        Args:
            linear: its ``out_features`` are N.
            sampler: chooses among N outputs; None computes all.
            options: ``precision``, ``sparse_grad`` and ``host_rows`` of the layer.

        Raises:
            ValueError: see `SampledLinear`.
            TypeError: for another module, or weights of another type.

        Example:
            >>> import slide, torch
            >>> linear = torch.nn.Linear(16, 1000)
            >>> sampler = slide.ActiveSampler(16, 1000, slide.LSHProposer, active=64)
            >>> layer = slide.SampledLinear.from_linear(linear, sampler)
            >>> torch.equal(layer.to_linear().weight, linear.weight)
            True
        """
        check_module(linear, nn.Linear, DTYPES)
        layer = cls(
            *(linear.in_features, linear.out_features, sampler, linear.bias is not None),
            device=linear.weight.device,
            dtype=linear.weight.dtype,
            **options,
        )
        layer.load_state_dict(linear.state_dict())
        return layer

    def to_linear(self) -> nn.Linear:
        """An ``nn.Linear`` with copies of weight and bias, in their type."""
        return new_linear(self.weight, self.bias)

    @untraced
    def forward(self, x: Tensor, labels: Any = None) -> Activation:
        """The outputs of the active set of ``x`` ``(B, D)``; in ``eval()`` without labels, all N.

        Args:
            x: inputs, of the type of the weight.
            labels: outputs that must be in the set of each sample, in any form that
                `slide.as_pattern` takes; a loss takes them as targets.

        Returns:
            The values, ``(B, A)`` for a shared set, else ``(nnz,)``, and the active set.

        Raises:
            ValueError: see `slide.active_linear`.
            TypeError: see `slide.active_linear`.
        """
        x, precision, outside = outside_autocast(x, self._like(x), self.precision)
        with outside:
            active = self._active_set(x, labels)
            layer, products = self._operands(x, active, precision)
            values = linear_on_set(*layer, products)
        return Activation(values, active, len(x))

    @untraced
    def loss(
        self,
        x: Tensor,
        labels: Any,
        loss: Callable[[Tensor, ActiveSet], Tensor],
        weights: Any = None,
    ) -> tuple[Tensor, ActiveSet]:
        """The loss of `forward`, a scalar, and the active set.

        With `slide.ActiveLoss` and a shared set this takes less time and memory than the loss of
        the values that `forward` returns; see `slide.functional.active_linear_loss`.

        Args:
            x: ``(B, D)`` inputs.
            labels: the targets, B rows in any form that `slide.as_pattern` takes.
            loss: maps scores ``(B, A)`` or ``(nnz,)``, and the set, to a scalar.
            weights: ``(B,)`` factors of the losses of the samples, at least 0, for
                `slide.ActiveLoss`; None: all are 1.

        Raises:
            ValueError: see `slide.functional.active_linear_loss`.
            TypeError: see `slide.functional.active_linear_loss`; or for weights and another loss.
        """
        x, precision, outside = outside_autocast(x, self._like(x), self.precision)
        with outside:
            active = self._active_set(x, labels)
            layer, products = self._operands(x, active, precision)
            if not callable(loss):
                raise TypeError(f"loss must be an ActiveLoss or a function, not {loss!r}")
            if isinstance(loss, ActiveLoss):
                kind = loss.record, loss.hard_fraction
                mean = linear_loss_on_set(*layer, *kind, products, weights)
            elif weights is not None:
                raise TypeError("weights of samples need an ActiveLoss")
            else:
                mean = loss(linear_on_set(*layer, products), active)
        return mean, active

    def _active_set(self, x: Tensor, labels: Any) -> ActiveSet:
        """The active set of inputs; checks the inputs and the set, which is not repeated later."""
        x = self._on_host(x)
        check_linear(x, self.weight, self.bias)
        active = self._choose(x, self.weight, labels)
        check_fits(active, len(x), self.out_features)
        return active

    def _operands(
        self, x: Tensor, active: ActiveSet, precision: str
    ) -> tuple[tuple[Tensor, Tensor, Tensor | None, ActiveSet], LinearOptions]:
        """What products are of, and how: with rows of the host, those of the set alone."""
        if not (self.host_rows and plain(x)):  # Kernels read them where they are.
            products = LinearOptions.of(x, precision, self.sparse_grad)
            return (x, self.weight, self.bias, active), products
        rows = fetch_set(self.weight, self.bias, active, x.device)
        return (x, *rows), LinearOptions.of(x, precision, sparse_grad=True)
