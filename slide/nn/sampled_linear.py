"""A linear layer that computes only the outputs which its sampler chooses."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from slide import checks
from slide.active_set import ActiveSet
from slide.functional.linear import (
    PRECISIONS,
    Products,
    check_linear,
    check_set,
    linear_on_set,
)
from slide.functional.linear_loss import linear_loss_on_set
from slide.nn.activation import Activation
from slide.nn.losses import ActiveLoss
from slide.nn.sampled_layer import SampledLayer
from slide.runtime import outside_autocast, untraced
from slide.sampling import Sampler
from slide.search import exact_top_k, index_top_k
from slide.sparse import Pattern

SEARCHES = ("exact", "index")


class SampledLinear(SampledLayer):
    """``nn.Linear`` that computes only the outputs which its sampler chooses.

    The gradients of weight and bias come as rows (see `slide.functional`), for
    `slide.RowSparseAdam`. With ``sparse_grad`` they are sparse tensors, as ``nn.Embedding`` gives
    them, for ``torch.optim.SparseAdam``, ``SGD`` and ``Adagrad``.

    Args:
        in_features: D.
        out_features: N.
        sampler: chooses among N outputs; None computes all.
        bias: whether to add one.
        precision: of the products with a shared set; see `slide.active_linear`.
        sparse_grad: whether gradients of weight and bias are sparse tensors in their ``grad``.
        init_scale: of the first weights. Small first weights help where most outputs are hardly
            ever learnt: the rest of the network then has less noise to fight.

    Raises:
        ValueError: for a sampler with another number of outputs, or a scale that is not above 0.

    Attributes:
        weight: ``(N, D)``, uniform in +-init_scale/sqrt(D) at first; 1 is as in ``nn.Linear``.
        bias: ``(N,)``, zero at first, or None.

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
    ):
        super().__init__(in_features, out_features, sampler, sparse_grad)
        checks.one_of("precision", precision, PRECISIONS)
        checks.positive("init_scale", init_scale)
        self.precision = precision
        bound = init_scale / math.sqrt(in_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    @untraced
    def forward(self, x: Tensor, labels: Pattern | None = None) -> Activation:
        """The outputs of the active set of ``x`` ``(B, D)``; in ``eval()`` without labels, all N.

        Args:
            x: inputs.
            labels: outputs that must be in the set of each sample; a loss takes them as targets.

        Raises:
            ValueError, TypeError: see `slide.active_linear`.
        """
        x, precision, outside = outside_autocast(x, self.weight, self.precision)
        with outside:
            active = self._active_set(x, labels)
            products = Products.of(x, precision, self.sparse_grad)
            values = linear_on_set(x, self.weight, self.bias, active, products)
        return Activation(values, active, len(x))

    @untraced
    def loss(
        self, x: Tensor, labels: Pattern, loss: Callable[[Tensor, ActiveSet], Tensor]
    ) -> tuple[Tensor, ActiveSet]:
        """The loss of `forward`, a scalar, and the active set.

        With `slide.ActiveLoss` and a shared set this takes less time and memory than the loss of
        the values that `forward` returns; see `slide.functional.active_linear_loss`.

        Args:
            x: ``(B, D)`` inputs.
            labels: the targets.
            loss: maps scores ``(B, A)`` or ``(nnz,)``, and the set, to a scalar.
        """
        x, precision, outside = outside_autocast(x, self.weight, self.precision)
        with outside:
            active = self._active_set(x, labels)
            layer = x, self.weight, self.bias, active
            products = Products.of(x, precision, self.sparse_grad)
            if isinstance(loss, ActiveLoss):
                mean = linear_loss_on_set(*layer, loss.record, loss.hard_fraction, products)
            else:
                mean = loss(linear_on_set(*layer, products), active)
        return mean, active

    def _active_set(self, x: Tensor, labels: Pattern | None) -> ActiveSet:
        """The set of inputs that fit the layer; the only place where either is checked."""
        check_linear(x, self.weight, self.bias)
        active = self._choose(x, self.weight, labels)
        check_set(active, len(x), self.out_features)
        return active

    @untraced
    @torch.no_grad()
    def top_k(self, x: Tensor, k: int, search: str = "exact") -> tuple[Tensor, Tensor]:
        """The k best outputs of each input.

        Args:
            x: ``(B, D)``.
            k: at most the number of outputs.
            search: ``"exact"`` scores all outputs, in blocks; ``"index"`` only the candidates of
                the sampler's index. There may be fewer of these than k: the rest is -1.

        Returns:
            scores and ids (int64), both ``(B, k)``, best first.

        Raises:
            ValueError: for another ``search``, or ``"index"`` with a sampler that has no index.
        """
        checks.one_of("search", search, SEARCHES)
        x, _, outside = outside_autocast(x, self.weight)
        check_linear(x, self.weight, self.bias)
        with outside:
            if search == "exact":
                return exact_top_k(x, self.weight, self.bias, k)
            return index_top_k(x, self.weight, self.bias, self.candidates(x), k)

    def candidates(self, x: Tensor) -> Pattern:
        """The candidates of the sampler's index for inputs ``(B, D)``.

        Raises:
            ValueError: for a sampler without an index.
        """
        self.check_index()
        self.sampler.update(self.weight, self.bias, None)
        return self.sampler.candidates(x)

    def check_index(self) -> None:
        """Raise ValueError for a sampler without an index."""
        if not self.sampler.has_index:
            raise ValueError(
                "search by index needs a sampler with an index, such as "
                f"ActiveSampler(..., LSHProposer); this {type(self.sampler).__name__} has none"
            )
