"""A linear layer that computes only the outputs which its sampler chooses."""

import math

import numpy as np
import torch
from torch import Tensor, nn

from slide import checks
from slide import functional as F
from slide.active_set import ActiveSet
from slide.functional.linear import PRECISIONS, check_linear
from slide.functional.losses import ActiveLoss, active_linear_loss
from slide.nn.activation import Activation
from slide.nn.sampled_layer import SampledLayer
from slide.runtime import outside_autocast, untraced
from slide.sampling.indexed_sampling import LSHSampler
from slide.sampling.sampling import Sampler
from slide.search.exact import exact_top_k
from slide.sparse import Pattern


class SampledLinear(SampledLayer):
    """``nn.Linear`` that computes only the outputs which its sampler chooses.

    The gradients of weight and bias come as rows (see `slide.functional`), for
    `slide.RowSparseAdam`; with ``sparse_grad`` as sparse tensors, as ``nn.Embedding`` gives
    them, for ``torch.optim.SparseAdam``, ``SGD`` and ``Adagrad``.

    Args:
        in_features: D.
        out_features: N.
        sampler: chooses among N outputs; None computes all.
        bias: whether to add one.
        precision: of the products with a shared set; see `slide.functional.active_linear`.
        sparse_grad: whether gradients of weight and bias are sparse tensors in their ``grad``.
        init_scale: of the first weights. Where most outputs are hardly ever learnt, small ones are
            less noise for the rest of the network to fight.

    Raises:
        ValueError: where the sampler has another number of outputs, or a scale is not above 0.

    Attributes:
        weight: ``(N, D)``, uniform in +-init_scale/sqrt(D) at first; 1 is as in ``nn.Linear``.
        bias: ``(N,)``, zero at first, or None.
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
            labels: outputs that must be in each sample's set; the loss takes them as targets.

        Raises:
            ValueError, TypeError: see `slide.functional.active_linear`.
        """
        x, precision, outside = outside_autocast(x, self.weight, self.precision)
        check_linear(x, self.weight, self.bias)
        with outside:
            active = self._choose(x, self.weight, labels)
            values = F.active_linear(x, self.weight, self.bias, active, precision, self.sparse_grad)
        return Activation(values, active, len(x))

    @untraced
    def loss(self, x: Tensor, labels: Pattern, loss: ActiveLoss) -> tuple[Tensor, ActiveSet]:
        """The loss of `forward`, a scalar, and the active set.

        With a shared set it takes less time and memory than the loss of the values that `forward`
        gives; see `slide.functional.losses.active_linear_loss`.

        Args:
            x: ``(B, D)`` inputs.
            labels: the targets.
            loss: which one.
        """
        x, precision, outside = outside_autocast(x, self.weight, self.precision)
        check_linear(x, self.weight, self.bias)
        with outside:
            active = self._choose(x, self.weight, labels)
            mean = active_linear_loss(
                x,
                self.weight,
                self.bias,
                active,
                loss.name,
                precision,
                loss.hard_fraction,
                self.sparse_grad,
            )
        return mean, active

    @untraced
    @torch.no_grad()
    def top_k(self, x: Tensor, k: int, search: str = "exact") -> tuple[Tensor, Tensor]:
        """The k best outputs of each input.

        Args:
            x: ``(B, D)``.
            k: at most the number of outputs.
            search: ``"exact"`` scores all outputs, in blocks; ``"lsh"`` only those in the hash
                buckets of the input, of which there may be fewer than k: -1 then.

        Returns:
            scores and ids (int64), both ``(B, k)``, best first.

        Raises:
            ValueError: for another ``search``, or ``"lsh"`` without hash tables.
        """
        checks.one_of("search", search, ("exact", "lsh"))
        x, _, outside = outside_autocast(x, self.weight, self.precision)
        check_linear(x, self.weight, self.bias)
        with outside:
            return self._top_k(x, k, search)

    def _top_k(self, x: Tensor, k: int, search: str) -> tuple[Tensor, Tensor]:
        if search == "exact":
            return exact_top_k(x, self.weight, self.bias, k)
        if not isinstance(self.sampler, LSHSampler):
            raise ValueError(
                "search='lsh' needs an output layer with hash tables (sampler=lsh), not "
                f"{type(self.sampler).__name__}"
            )
        self.sampler.update(self.weight, self.bias, None)
        found = self.sampler.candidates(x)
        scores = x.new_full((len(x), k), -torch.inf)
        ids = torch.full((len(x), k), -1, dtype=torch.int64)
        for b in range(len(x)):
            own = torch.from_numpy(np.unique(found.indices[found.indptr[b] : found.indptr[b + 1]]))
            if not len(own):
                continue
            own = own.long()
            bias = None if self.bias is None else self.bias[own]
            best, places = exact_top_k(x[b : b + 1], self.weight[own], bias, min(k, len(own)))
            scores[b, : best.shape[1]], ids[b, : best.shape[1]] = best[0], own[places[0]]
        return scores, ids
