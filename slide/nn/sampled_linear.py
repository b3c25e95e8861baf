"""A linear layer that computes only the outputs which its sampler chooses, and searches them."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slide.active_set import ActiveSet
from slide.backend import on_host
from slide.functional.autograd import outside_autocast
from slide.functional.linear import (
    DTYPES,
    PRECISIONS,
    LinearOptions,
    active_linear,
    check_fits,
    check_linear,
    linear_on_set,
)
from slide.functional.linear_loss import linear_loss_on_set
from slide.nn.losses import ActiveLoss
from slide.nn.sampled_layer import Activation, SampledLayer, check_dtype, check_module, new_linear
from slide.sampling import Sampler
from slide.search import RowIndex, exact_top_k, index_top_k
from slide.search.row_index import LazyRowIndex
from slide.sparse import Pattern
from slide.utils import checks
from slide.utils.profiling import untraced

SEARCHES = ("exact", "index", "sampler")


class SampledLinear(SampledLayer):
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
            learnt: such outputs then add less noise to the gradients of other layers.
        device: a device, its name, or None: PyTorch's default. Off the CPU the layer computes in
            plain torch (`slide.backend`).
        dtype: type of weight and bias: float32, bfloat16 or float64; None: PyTorch's default.

    Raises:
        ValueError: for a number or name out of range, or a sampler with another number of outputs.
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

    weight: nn.Parameter

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
    ):
        super().__init__(in_features, out_features, sampler, sparse_grad)
        checks.one_of("precision", precision, PRECISIONS)
        checks.positive("init_scale", init_scale)
        check_dtype(dtype, DTYPES)
        self.precision = precision
        bound = init_scale / math.sqrt(in_features)
        weight = torch.empty(out_features, in_features, dtype=dtype, device=device)
        self.weight = nn.Parameter(weight.uniform_(-bound, bound))
        zeros = torch.zeros(out_features, dtype=dtype, device=device) if bias else None
        self.bias = None if zeros is None else nn.Parameter(zeros)
        self._index = LazyRowIndex()

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, sampler: Sampler | None = None, **options: Any
    ) -> "SampledLinear":
        """A layer with copies of the weight and the bias of an ``nn.Linear``, in their type.

        Args:
            linear: its ``out_features`` are N.
            sampler: chooses among N outputs; None computes all.
            options: ``precision`` and ``sparse_grad`` of the layer.

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
        x, precision, outside = outside_autocast(x, self.weight, self.precision)
        with outside:
            active = self._active_set(x, labels)
            products = LinearOptions.of(x, precision, self.sparse_grad)
            values = linear_on_set(x, self.weight, self.bias, active, products)
        return Activation(values, active, len(x))

    @untraced
    def loss(
        self,
        x: Tensor,
        labels: Any,
        loss: str | Callable[[Tensor, ActiveSet], Tensor],
        weights: Any = None,
        ignore_index: int = -100,
    ) -> tuple[Tensor, ActiveSet]:
        """The loss of `forward`, a scalar, and the active set.

        With `slide.ActiveLoss` and a shared set this takes less time and memory than the loss of
        the values that `forward` returns; see `slide.functional.active_linear_loss`.

        Args:
            x: ``(B, D)`` inputs, or ``(..., D)``, such as ``(B, T, D)`` of a language model: the
                leading dimensions are those of samples.
            labels: the targets, B rows in any form that `slide.as_pattern` takes; or one label for
                each sample in the shape of the leading dimensions.
            loss: the name of a loss, such as ``"softmax"``, an `slide.ActiveLoss`, or a function
                of scores ``(B, A)`` or ``(nnz,)`` and the set, which returns a scalar.
            weights: ``(B,)`` factors of the losses of the samples, at least 0, for the first two;
                None: all are 1.
            ignore_index: samples with this label are left out, as in ``nn.CrossEntropyLoss``, if
                labels are one for each sample. The mean is over the others.

        Raises:
            ValueError: see `slide.functional.active_linear_loss`.
            TypeError: see `slide.functional.active_linear_loss`; or for weights and another loss.
        """
        if isinstance(loss, str):
            loss = ActiveLoss(loss)
        if not callable(loss) or isinstance(loss, nn.modules.loss._Loss):
            raise TypeError(
                "loss must be a name such as 'softmax' (cross-entropy), an ActiveLoss or a "
                f"function of scores and active set, not {loss!r}"
            )
        if weights is not None and not isinstance(loss, ActiveLoss):
            raise TypeError("weights of samples need an ActiveLoss")
        x, labels, weights = _as_samples(x, labels, weights, ignore_index)
        x, precision, outside = outside_autocast(x, self.weight, self.precision)
        with outside:
            active = self._active_set(x, labels)
            products = LinearOptions.of(x, precision, self.sparse_grad)
            if not isinstance(loss, ActiveLoss):
                values = linear_on_set(x, self.weight, self.bias, active, products)
                return loss(values, active), active
            mean = linear_loss_on_set(
                x,
                self.weight,
                self.bias,
                active,
                loss.record,
                loss.hard_fraction,
                products,
                weights=weights,
            )
        return mean, active

    def _active_set(self, x: Tensor, labels: Any) -> ActiveSet:
        """The active set of inputs; checks the inputs and the set, which is not repeated later."""
        check_linear(x, self.weight, self.bias)
        active = self._choose(x, self.weight, labels)
        check_fits(active, len(x), self.out_features)
        return active

    @untraced
    @torch.no_grad()
    def top_k(self, x: Tensor, k: int, search: str = "exact") -> tuple[Tensor, Tensor]:
        """The k best outputs of each input.

        Args:
            x: ``(B, D)``.
            k: number of outputs to return for each input, in [1, N].
            search: ``"exact"`` scores all outputs, in blocks. ``"index"`` scores the few that
                `row_index` brings up; it may miss some of the best. ``"sampler"`` scores the
                candidates of the sampler's index, which was made for training.

        Returns:
            Scores and ids (int64), both ``(B, k)``, best first. If an input has fewer than k
            candidates, the remaining scores are -inf and the ids are -1.

        Raises:
            ValueError: for a k out of range, an unknown ``search``, or ``"sampler"`` with a sampler
                that has no index.
        """
        checks.one_of("search", search, SEARCHES)
        x, _, outside = outside_autocast(x, self.weight)
        check_linear(x, self.weight, self.bias)
        with outside:
            if search == "exact":
                return exact_top_k(x, self.weight, self.bias, k)
            if search == "index":
                return self.row_index().top_k(x, k)
            return index_top_k(x, self.weight, self.bias, self.candidates(x), k)

    @untraced
    @torch.no_grad()
    def scores_of(self, x: Tensor, ids: np.ndarray) -> np.ndarray:
        """The scores of some outputs of each input.

        Args:
            x: ``(B, D)``.
            ids: ``(B, K)`` integers below N, each output at most once in a row; below 0: none.

        Returns:
            ``(B, K)`` float32, 0 where there is no output.
        """
        x = x.to(self.weight.device)
        scored = partial(active_linear, x, self.weight.detach(), self.bias)
        return at_ids(ids, self.out_features, scored)

    def row_index(self) -> RowIndex:
        """The index of `top_k` over the rows of the weight as they are now.

        The first call makes it, and so does each call after weight or bias changed
        (`slide.search.RowIndex.fits`): that takes a few seconds for some 100,000 outputs. It is no
        part of the state of the layer, and copies of the layer make their own.
        """
        return self._index.of(self.weight, self.bias)

    def candidates(self, x: Tensor) -> Pattern:
        """The candidates of the sampler's index for inputs ``(B, D)``.

        Raises:
            ValueError: for a sampler without an index.
        """
        check_has_index(self.sampler)
        sampler = self._own_sampler()
        sampler.update(self.weight, self.bias, None)
        return sampler.candidates(x)


def _as_samples(x: Any, labels: Any, weights: Any, ignored: int) -> tuple[Any, Any, Any]:
    """Inputs ``(B, D)``, labels and weights of samples, without samples of an ignored label."""
    if not isinstance(x, Tensor):
        return x, labels, weights  # Which is an error.
    if x.ndim > 2:
        lead = x.shape[:-1]
        if tuple(getattr(weights, "shape", ())) == lead:
            weights = weights.reshape(-1)
        if tuple(getattr(labels, "shape", ())) == lead:
            labels = labels.reshape(-1)
        x = x.reshape(-1, x.shape[-1])
    if isinstance(labels, list) and labels and all(isinstance(i, int) for i in labels):
        labels = np.array(labels)
    if not isinstance(labels, np.ndarray | Tensor) or labels.shape != (len(x),):
        return x, labels, weights
    if labels.dtype in (bool, object, torch.bool, torch.bfloat16):
        return x, labels, weights
    known = on_host(labels)
    kept = np.flatnonzero(known != ignored)
    if len(kept) < len(known):
        at = torch.from_numpy(kept)
        x, labels = x.index_select(0, at.to(x.device)), known[kept]
        weights = None if weights is None else checks.row_weights("weights", weights, len(known))
        weights = None if weights is None else weights[kept]
    return x, labels, weights


def check_has_index(sampler: Sampler) -> None:
    """Raise ValueError for a sampler without an index."""
    if not sampler.has_index:
        raise ValueError(
            "search=sampler needs a sampler with an index, such as "
            f"ActiveSampler(..., LSHProposer); this {type(sampler).__name__} has none"
        )


def at_ids(ids: np.ndarray, out_features: int, scored: Callable[[ActiveSet], Tensor]) -> np.ndarray:
    """The scores of the outputs ``ids`` ``(B, K)`` of each input; see `SampledLinear.scores_of`."""
    known, pattern = ids >= 0, Pattern.from_padded(ids)
    active = ActiveSet(out_features, pattern.indices, pattern.indptr)
    out = np.zeros(ids.shape, np.float32)
    out[known] = on_host(scored(active).float())
    return out
