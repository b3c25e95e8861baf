"""The output layer, with its rows shared out among processes."""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slide.active_set import ActiveSet
from slide.backend import on_device, on_host
from slide.distributed.first_rows import uniform_rows
from slide.distributed.group import Group
from slide.distributed.sharded_loss import Task, check_loss_of_group, loss_over_ranks
from slide.distributed.shares import Shares
from slide.functional.autograd import outside_autocast
from slide.functional.linear import LinearOptions
from slide.nn import Activation, ActiveLoss, SampledLinear
from slide.nn.network import SamplerFactory
from slide.row_gradients import mark_shared
from slide.sampling import ActiveSampler, Sampler
from slide.sparse import Pattern, as_pattern, check_labels
from slide.utils import checks
from slide.utils.profiling import untraced
from slide.utils.random_keys import random_key


class ShardedOutputLinear(nn.Module):
    """`slide.SampledLinear` with its outputs shared out among processes.

    All ranks get the same inputs and labels. Each chooses an active set among its own outputs, and
    computes their scores, loss and gradients. One all-reduce adds up the gradients of the inputs;
    the softmaxes exchange some numbers for each sample before.

    Args:
        in_features: H, length of the inputs.
        shares: which rank owns which of the N outputs.
        group: the processes.
        sampler: makes the sampler of a rank's own outputs; called as
            ``sampler(in_features, own_outputs)``. An `slide.ActiveSampler` chooses ``active``
            outputs on all ranks together: its ``active`` is divided by the number of processes.
            None: all outputs.
        init_scale: see `slide.SampledLinear`.
        seed: seed of the first weights, which do not depend on the number of processes.
        options: ``bias``, ``precision`` and ``sparse_grad`` of `slide.SampledLinear`.

    Raises:
        ValueError: see `slide.SampledLinear`.

    Attributes:
        out_features: N.
        local: the layer of this rank's own outputs; its rows are in the order of ``shares.ids``.

    Example:
        >>> import slide, torch
        >>> from slide.distributed import Group, ShardedOutputLinear, Shares
        >>> layer = ShardedOutputLinear(8, Shares("labels", 100, 0, 1), Group.alone())
        >>> loss, _ = layer.loss(torch.randn(2, 8), [[3], [5, 7]], slide.ActiveLoss("softmax"))
        >>> layer.top_k(torch.randn(2, 8), k=5)[1].shape
        torch.Size([2, 5])
    """

    def __init__(
        self,
        in_features: int,
        shares: Shares,
        group: Group,
        sampler: SamplerFactory | None = None,
        init_scale: float = 1.0,
        seed: int = 0,
        **options: Any,
    ):
        super().__init__()
        checks.whole("in_features", in_features, 1)
        self.in_features, self.out_features = in_features, shares.rows
        self.shares, self.group = shares, group
        chosen = own_sampler(sampler, in_features, len(shares), group) if sampler else None
        # Its first rows are drawn on the generator of torch, and replaced.
        with torch.random.fork_rng(devices=[]):
            self.local = SampledLinear(
                in_features, len(shares), chosen, init_scale=init_scale, **options
            )
        bound = init_scale / math.sqrt(in_features)
        rows = uniform_rows(int(random_key(seed)), shares.ids, in_features, bound)
        self.local.weight.data.copy_(rows)

    @property
    def sampler(self) -> Sampler:
        """The sampler of this rank's own outputs."""
        return self.local.sampler

    @property
    def precision(self) -> str:
        """See `slide.SampledLinear`."""
        return self.local.precision

    @property
    def weight(self) -> nn.Parameter:
        """``(n, H)``, the rows of this rank."""
        return self.local.weight

    @property
    def bias(self) -> nn.Parameter | None:
        """``(n,)``, those of this rank, or None."""
        return self.local.bias

    def forward(self, x: Tensor, labels: Any = None) -> Activation:
        """The scores of this rank's active set, by local numbers; see `slide.SampledLinear`."""
        mark_shared(self.group, self.weight, self.bias)
        return self.local(x, None if labels is None else self._own_labels(x, labels)[0])

    @untraced
    def loss(
        self, x: Tensor, labels: Any, loss: ActiveLoss, weights: Any = None
    ) -> tuple[Tensor, ActiveSet]:
        """The loss over the active sets of all ranks, a scalar, and the active set of this rank.

        The loss is the same on all ranks, and so is the gradient of ``x``.

        Args:
            x: ``(B, H)`` inputs, the same on all ranks.
            labels: the targets, B rows in any form that `slide.as_pattern` takes, the same on all
                ranks.
            loss: a loss. With ``softmax`` and ``decoupled_softmax`` the ranks exchange 2 numbers
                for each sample.
            weights: ``(B,)`` factors of the losses of the samples; None: all are 1.

        Raises:
            ValueError: see `slide.SampledLinear.loss`, or for a loss that is no sum over outputs.
            TypeError: for another kind of loss.
        """
        local, group = self.local, self.group
        check_loss_of_group(loss, group)
        mark_shared(group, self.weight, self.bias)
        x, precision, outside = outside_autocast(x, local.weight, local.precision)
        with outside:
            own, counts = self._own_labels(x, labels)
            active = local._active_set(x, own)
            products = LinearOptions.of(x, precision, local.sparse_grad)
            task = Task(active, counts, loss, products, weights, group)
            return loss_over_ranks(x, local.weight, local.bias, task), active

    def _own_labels(self, x: Tensor, labels: Any) -> tuple[Pattern, np.ndarray]:
        """This rank's labels, by local numbers, and the number of all labels of each sample."""
        labels = as_pattern(labels, self.out_features)
        # Here, so that all ranks raise: one that raised alone would leave the others waiting.
        check_labels("labels", labels, len(x), self.out_features)
        return self.shares.own(labels), np.diff(labels.indptr)

    @untraced
    @torch.no_grad()
    def top_k(self, x: Tensor, k: int, search: str = "exact") -> tuple[Tensor, Tensor]:
        """The k best outputs of each input: each rank's own, merged. The same on all ranks.

        Args:
            x: ``(B, H)``, the same on all ranks.
            k: number of outputs to return for each input, in [1, N].
            search: see `slide.SampledLinear.top_k`.

        Returns:
            Scores and ids (int64), both ``(B, k)``, best first; of equal scores the smaller id is
            first. Missing ones are -inf and -1.

        Raises:
            ValueError: see `slide.SampledLinear.top_k`.
        """
        if not 1 <= k <= self.out_features:
            raise ValueError(f"k must be in [1, {self.out_features}], not {k}")
        scores, places = self.local.top_k(x, min(k, len(self.shares)), search)
        ids = on_device(self.shares.ids, places.device).long()[places]
        ids = torch.where(places < 0, -1, ids)
        if self.group.size == 1:
            return scores, ids
        missing = k - scores.shape[1]
        scores = nn.functional.pad(scores, (0, missing), value=-torch.inf)
        ids = nn.functional.pad(ids, (0, missing), value=-1)
        lengths = [len(x)] * self.group.size
        every = torch.cat(self.group.all_gather(scores, lengths), 1)
        numbers = torch.cat(self.group.all_gather(ids, lengths), 1)
        numbers, order = numbers.sort(1)  # Then a stable sort leaves equal scores in their order.
        best, order_of_best = every.gather(1, order).sort(dim=1, descending=True, stable=True)
        return best[:, :k].contiguous(), numbers.gather(1, order_of_best)[:, :k].contiguous()

    @untraced
    @torch.no_grad()
    def scores_of(self, x: Tensor, ids: np.ndarray) -> np.ndarray:
        """The scores of some outputs of each input, each by the rank that owns it.

        Args:
            x: ``(B, H)``, the same on all ranks.
            ids: ``(B, K)``, the same on all ranks; see `slide.SampledLinear.scores_of`.
        """
        own = (ids >= 0) & (self.shares.owners(ids) == self.group.rank)
        found = self.local.scores_of(x, np.where(own, self.shares.places(ids), -1))
        return on_host(self.group.all_reduce(torch.from_numpy(found)))

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"


def own_sampler(factory: SamplerFactory, in_features: int, outputs: int, group: Group) -> Sampler:
    """The sampler of one rank, which chooses among its own outputs.

    An `slide.ActiveSampler` chooses this rank's part of ``active``, by draws of its own: with the
    draws of the other ranks, the same places would come up everywhere.
    """
    sampler = factory(in_features, outputs)
    if isinstance(sampler, ActiveSampler) and group.size > 1:
        sampler.active = -(-sampler.active // group.size)
        sampler.seed = int(random_key(sampler.seed, group.rank))
        sampler.resize(outputs)
    return sampler
