"""Layers whose weight rows are shared out among processes."""

import math
from operator import index
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slide import functional as F
from slide.active_set import ActiveSet
from slide.backend import on_device, on_host
from slide.distributed.group import Group
from slide.distributed.sharded_loss import Task, check_loss_of_group, loss_over_ranks
from slide.distributed.shares import Shares, normal_rows, uniform_rows
from slide.functional.autograd import outside_autocast
from slide.functional.linear import DTYPES, check_linear
from slide.nn import Activation, ActiveLoss, SampledLinear
from slide.nn.network import SamplerFactory
from slide.row_gradients import mark_shared
from slide.runtime import own_draws
from slide.sampling import ActiveSampler, FullSampler, Sampler
from slide.sparse import Pattern, as_csr, as_pattern, check_labels, check_pattern, row_bounds
from slide.utils import checks
from slide.utils.profiling import untraced
from slide.utils.random_keys import random_key


class ShardedInputLinear(nn.Module):
    """`slide.SparseInputLinear` with the rows of its weight shared out among processes.

    Each rank sums the weight rows of its own features, and one all-reduce of ``(B, H)`` adds up
    the sums. The backward pass sends nothing, if the gradient of the output is equal on all
    ranks. ``weight`` ``(d, H)`` float32 has the rows of this rank, in the order of ``shares.ids``.

    Args:
        shares: which rank owns which of the D features.
        out_features: H.
        init_scale: see `slide.SparseInputLinear`.
        seed: of the first weights, which do not depend on the number of processes.

    Example:
        >>> import torch
        >>> from slide.distributed import Group, ShardedInputLinear, Shares
        >>> layer = ShardedInputLinear(Shares("features", 100, 0, 1), 8, Group.alone())
        >>> layer(torch.ones(1, 100)).to_dense().shape
        torch.Size([1, 8])
    """

    def __init__(
        self,
        shares: Shares,
        out_features: int,
        group: Group,
        init_scale: float = 1.0,
        seed: int = 0,
    ):
        super().__init__()
        checks.whole("out_features", out_features, 1)
        checks.positive("init_scale", init_scale)
        self.in_features, self.out_features = shares.rows, out_features
        self.shares, self.group = shares, group
        # Chooses all outputs: there is no index over rows that others own.
        self.sampler = FullSampler(shares.rows, out_features)
        key, deviation = int(random_key(seed)), init_scale / math.sqrt(out_features)
        self.weight = nn.Parameter(normal_rows(key, shares.ids, out_features, deviation))
        self.bias = nn.Parameter(torch.zeros(out_features, dtype=torch.float32))

    @untraced
    def forward(self, x: Any) -> Activation:
        """All H outputs of a matrix ``(B, D)`` for `slide.as_csr`; both the same on all ranks."""
        x = as_csr(x, self.in_features)
        # Here, so that all ranks raise: one that raised alone would leave the others waiting.
        check_pattern("features", x, None, self.in_features)
        mark_shared(self.group, self.weight)
        own = self.shares.own(x)
        sums = F.sparse_linear(own, self.weight, None)
        if self.group.size > 1:
            sums = _SumOverRanks.apply(sums, self.group)
        return Activation(sums + self.bias, self.sampler.select(own, None), own.num_rows)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, rows here={len(self.shares)}"


class _SumOverRanks(torch.autograd.Function):
    """The sum of a tensor over ranks. All ranks get one gradient of it, which is that of each."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group):
        ctx.mark_dirty(x)
        return group.all_reduce(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        return grads[0], None


class ShardedOutputLinear(nn.Module):
    """`slide.SampledLinear` with its outputs shared out among processes.

    All ranks get the same inputs and labels. Each chooses an active set among its own outputs, and
    computes their scores, loss and gradients. One all-reduce adds up the gradients of the inputs;
    the softmaxes exchange some numbers for each sample before. ``local`` is the layer of this
    rank's own outputs, in the order of ``shares.ids``.

    Args:
        in_features: H.
        shares: which rank owns which of the N outputs.
        sampler: makes the sampler of a rank's own outputs; called as
            ``sampler(in_features, own_outputs)``. The ``active`` of an `slide.ActiveSampler` is
            divided by the number of processes. None: all outputs.
        seed: of the first weights, which do not depend on the number of processes.
        options: ``bias``, ``precision`` and ``sparse_grad`` of `slide.SampledLinear`.

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
        chosen = _own_sampler(sampler, in_features, len(shares), group) if sampler else None
        options["init_scale"] = init_scale
        with own_draws(0):  # Its first rows are replaced.
            self.local = SampledLinear(in_features, len(shares), chosen, **options)
        bound = init_scale / math.sqrt(in_features)
        rows = uniform_rows(int(random_key(seed)), shares.ids, in_features, bound)
        self.local.weight.data.copy_(rows)

    # Of this rank's own outputs.
    sampler = property(lambda self: self.local.sampler)
    precision = property(lambda self: self.local.precision)
    weight = property(lambda self: self.local.weight)
    bias = property(lambda self: self.local.bias)

    def forward(self, x: Tensor, labels: Any = None) -> Activation:
        """The scores of this rank's active set, by local numbers; see `slide.SampledLinear`."""
        mark_shared(self.group, self.weight, self.bias)
        return self.local(x, None if labels is None else self._own_labels(x, labels)[0])

    @untraced
    def loss(
        self, x: Tensor, labels: Any, loss: ActiveLoss, weights: Any = None
    ) -> tuple[Tensor, ActiveSet]:
        """The loss over the active sets of all ranks, a scalar, and the active set of this rank.

        Inputs ``x`` ``(B, H)``, their gradient and the loss are the same on all ranks.
        """
        local, group = self.local, self.group
        check_loss_of_group(loss, group)
        mark_shared(group, self.weight, self.bias)
        x, precision, outside = outside_autocast(x, local.weight, local.precision)
        with outside:
            own, counts = self._own_labels(x, labels)
            active = local._active_set(x, own)
            task = Task(active, counts, loss, precision, local.sparse_grad, weights, group)
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
        """`slide.SampledLinear.top_k` of all ranks; inputs and results are the same on all of them.

        Of equal scores the smaller id is first.
        """
        k = checks.whole_within("k", k, 1, self.out_features)
        scores, own = self.local.top_k(x, min(k, len(self.shares)), search)
        ids = torch.where(own < 0, -1, on_device(self.shares.ids, own.device).long()[own])
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
        """`slide.SampledLinear.scores_of` of all ranks, which have the same ``x`` and ids."""
        own = (ids >= 0) & (self.shares.owners(ids) == self.group.rank)
        found = self.local.scores_of(x, np.where(own, self.shares.local_ids(ids), -1))
        return on_host(self.group.all_reduce(torch.from_numpy(found)))

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}"


def _own_sampler(factory: SamplerFactory, in_features: int, outputs: int, group: Group) -> Sampler:
    """The sampler of one rank: its part of ``active``, by draws of its own."""
    sampler = factory(in_features, outputs)
    if isinstance(sampler, ActiveSampler) and group.size > 1:
        sampler.active = -(-sampler.active // group.size)
        sampler.seed = int(random_key(sampler.seed, group.rank))
        sampler.resize(outputs)
    return sampler


# Types of inputs, by the numbers that processes tell each other; under autocast there are more.
_DTYPES = (*DTYPES, torch.float16)


class ShardedSampledLinear(nn.Module):
    """An output layer after an encoder in ``DistributedDataParallel``, for very many outputs.

    Each process has its own samples, and owns some of the outputs. Inputs and labels of all
    processes are gathered, each process computes the scores of its own outputs for all of these
    samples, and the gradients of the inputs go back to the processes that brought them (An et al.
    2022, "Killing two birds with one stone: efficient and robust training of face recognition CNNs
    by partial FC", section 3). No gradient of an output's weight is sent. The layer's parameters
    are different on each process (``rows.shares.ids`` are the outputs of this one): keep the layer
    outside of ``DistributedDataParallel``.

    Args:
        in_features: H.
        out_features: N, on all processes together.
        sampler: see `ShardedOutputLinear`.
        group: None: all processes that ``torch.distributed`` knows.
        counts: ``(N,)``, how often each output is a label, the same on all processes; see `Shares`.
        seed: of the first weights, the same on all processes.
        options: ``init_scale``, ``bias``, ``precision`` and ``sparse_grad`` of
            `slide.SampledLinear`.

    Raises:
        ValueError: for more processes than outputs, or as in `slide.SampledLinear`.
        RuntimeError: if ``torch.distributed.init_process_group`` was not called.

    Example:
        >>> import slide, torch
        >>> from slide.distributed import Group, ShardedSampledLinear
        >>> layer = ShardedSampledLinear(16, 1000, group=Group.alone())
        >>> x = torch.randn(2, 16, requires_grad=True)  # From an encoder, in fact.
        >>> loss, _ = layer.loss(x, [[3], [5, 7]], slide.ActiveLoss("softmax"))
        >>> loss.backward()
        >>> x.grad.shape
        torch.Size([2, 16])
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sampler: SamplerFactory | None = None,
        group: Group | None = None,
        *,
        counts: np.ndarray | None = None,
        seed: int = 0,
        **options: Any,
    ):
        super().__init__()
        self.group = group or Group()
        shares = Shares("outputs", out_features, self.group.rank, self.group.size, counts)
        self.rows = ShardedOutputLinear(
            in_features, shares, self.group, sampler, seed=seed, **options
        )

    @untraced
    def loss(
        self, x: Tensor, labels: Any, loss: ActiveLoss, weights: Any = None
    ) -> tuple[Tensor, ActiveSet]:
        """The mean loss over the samples of all processes, and the active set of this process.

        The gradient of ``x`` is that of the loss times the number of processes, since
        ``DistributedDataParallel`` divides by it.

        x (b, H), the inputs of this process; labels: b rows as `slide.as_pattern` takes them;
        weights (b,) of the samples, on all processes or on none.
        """
        pattern, factors, wrong = None, None, None
        try:
            self._check_input(x)
            pattern = as_pattern(labels, self.rows.out_features)
            check_labels("labels", pattern, len(x), self.rows.out_features)
            factors = checks.row_weights("weights", weights, len(x))
        except (TypeError, ValueError) as error:
            wrong = error
        learns = wrong is None and x.requires_grad and torch.is_grad_enabled()
        entries = 0 if pattern is None else len(pattern.indices)
        found = self._exchanged(x, wrong, entries, factors is not None, learns)
        assert pattern is not None
        if len({weighed for _, _, weighed, _ in found}) > 1:
            raise ValueError("weights are needed on all processes or on none")
        sizes = [[samples, entries] for samples, entries, _, _ in found]
        counts = [samples for samples, _ in sizes]
        inputs = _OfAllRanks.apply(x, counts, self.group)
        if factors is not None:
            parts = self.group.all_gather(torch.from_numpy(factors), counts)
            factors = torch.cat(parts).numpy()
        labels = self._labels(pattern, sizes)
        if learns or not any(rank_learns for *_, rank_learns in found):
            return self.rows.loss(inputs, labels, loss, factors)  # type: ignore[arg-type]
        # The others add up gradients, to which this process has a part.
        with torch.enable_grad():
            inputs = inputs.detach().requires_grad_()
            mean, active = self.rows.loss(inputs, labels, loss, factors)
        return mean if torch.is_grad_enabled() else mean.detach(), active

    def _check_input(self, x: Any) -> None:
        """Raise an error unless inputs of this process fit the layer."""
        local = self.rows.local
        cast, _, _ = outside_autocast(x, local.weight, local.precision)
        check_linear(cast, local.weight, local.bias)

    def _exchanged(self, x: Tensor, wrong: Exception | None, *more: int) -> list[list[int]]:
        """The number of samples of each rank, and ``more`` numbers of it."""
        own = [len(x), x.shape[1], _DTYPES.index(x.dtype)] if wrong is None else [0, 0, 0]
        numbers = torch.tensor([[int(wrong is not None), *own, *map(int, more)]])
        found = torch.cat(self.group.all_gather(numbers, [1] * self.group.size)).tolist()
        if wrong is not None:
            raise wrong
        for rank, (error, *_) in enumerate(found):
            if error:
                raise ValueError(f"the samples of rank {rank} have an error, which it tells")
        self._check_equal("inputs must have one width", [each[2] for each in found])
        self._check_equal("inputs must have one type", [_DTYPES[each[3]] for each in found])
        return [[samples, *rest] for _, samples, _, _, *rest in found]

    @staticmethod
    def _check_equal(what: str, values: list[Any]) -> None:
        if len(set(values)) > 1:
            raise ValueError(f"{what} on all processes, not {', '.join(map(str, values))}")

    def _labels(self, own: Pattern, sizes: list[list[int]]) -> Pattern:
        """The labels of the samples of all ranks; ``sizes`` are numbers of samples and labels."""
        numbers = np.concatenate([np.diff(own.indptr), own.indices]).astype(np.int32)
        parts = self.group.all_gather(torch.from_numpy(numbers), [sum(pair) for pair in sizes])
        lengths = [part[:samples] for part, (samples, _) in zip(parts, sizes, strict=True)]
        indices = [part[samples:] for part, (samples, _) in zip(parts, sizes, strict=True)]
        indptr = row_bounds(torch.cat(lengths).numpy())
        return Pattern(indptr, torch.cat(indices).numpy())

    @untraced
    @torch.no_grad()
    def top_k(self, x: Tensor, k: int, search: str = "exact") -> tuple[Tensor, Tensor]:
        """`ShardedOutputLinear.top_k` for the inputs ``(b, H)`` of this process."""
        wrong, number = None, 0
        try:
            self._check_input(x)
            number = min(max(index(k), 0), self.rows.out_features + 1)  # So that it can be sent.
        except (TypeError, ValueError) as error:
            wrong = error
        found = self._exchanged(x, wrong, number)
        self._check_equal("k must be the same", [number for _, number in found])
        counts = [samples for samples, _ in found]
        scores, ids = self.rows.top_k(torch.cat(self.group.all_gather(x, counts)), k, search)
        begin = sum(counts[: self.group.rank])
        return scores[begin : begin + len(x)], ids[begin : begin + len(x)]


class _OfAllRanks(torch.autograd.Function):
    """The samples of all ranks. Each gets its part of the gradient, times the number of ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, counts: list[int], group: Group):
        ctx.begin, ctx.count, ctx.size = sum(counts[: group.rank]), len(x), group.size
        return torch.cat(group.all_gather(x.detach(), counts))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        own = grads[0][ctx.begin : ctx.begin + ctx.count]
        return own * ctx.size, None, None
