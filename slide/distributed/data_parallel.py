"""A sampled output layer for data-parallel training: each process brings its own samples."""

from operator import index
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slide.active_set import ActiveSet
from slide.distributed.group import Group
from slide.distributed.output_linear import ShardedOutputLinear
from slide.distributed.shares import Shares
from slide.functional.autograd import outside_autocast
from slide.functional.linear import DTYPES, check_linear
from slide.nn import ActiveLoss
from slide.nn.network import SamplerFactory
from slide.sparse import Pattern, as_pattern, check_labels, row_bounds
from slide.utils import checks
from slide.utils.profiling import untraced

# Types of inputs, by the numbers that processes tell each other; under autocast there are more.
_DTYPES = (*DTYPES, torch.float16)


class ShardedSampledLinear(nn.Module):
    """An output layer after an encoder in ``DistributedDataParallel``, for very many outputs.

    Each process has its own samples, and owns some of the outputs. Inputs and labels of all
    processes are gathered, each process computes the scores of its own outputs for all of these
    samples, and the gradients of the inputs go back to the processes that brought them (An et al.
    2022, "Killing two birds with one stone: efficient and robust training of face recognition CNNs
    by partial FC", section 3). No gradient of an output's weight is sent. The layer's parameters
    are different on each process: keep the layer outside of ``DistributedDataParallel``.

    Args:
        in_features: H, length of the inputs.
        out_features: N, number of outputs on all processes together.
        sampler: makes the sampler of a process's own outputs; see `ShardedOutputLinear`.
        group: the processes; None: all that ``torch.distributed`` knows.
        counts: ``(N,)``, how often each output is a label, the same on all processes; see `Shares`.
        seed: seed of the first weights, the same on all processes.
        options: ``init_scale``, ``bias``, ``precision`` and ``sparse_grad`` of
            `slide.SampledLinear`.

    Raises:
        ValueError: for more processes than outputs, or as in `slide.SampledLinear`.
        RuntimeError: if ``torch.distributed.init_process_group`` was not called.

    Attributes:
        rows: the layer of the outputs; ``rows.shares.ids`` are those of this process.

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

        The loss is the same on all processes. The gradient of ``x`` is that of the loss times the
        number of processes, since ``DistributedDataParallel`` divides by it: so the encoder gets
        the gradient that it would get from all samples in one process.

        Args:
            x: ``(b, H)``, the inputs of this process; b may differ between processes.
            labels: their targets, b rows in any form that `slide.as_pattern` takes.
            loss: see `ShardedOutputLinear.loss`.
            weights: ``(b,)`` factors of the losses of the samples, on all processes or on none.

        Raises:
            ValueError: see `ShardedOutputLinear.loss`; also if widths of inputs differ.
            TypeError: see `ShardedOutputLinear.loss`.
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
        """The number of samples of each rank, and more numbers of it.

        Errors are raised on all ranks: of one that raised alone the others would wait, or abort.

        Args:
            x: the inputs of this process.
            wrong: an error that this process has found.
            more: numbers to exchange.
        """
        own = [len(x), x.shape[1], _DTYPES.index(x.dtype)] if wrong is None else [0, 0, 0]
        numbers = torch.tensor([[int(wrong is not None), *own, *map(int, more)]])
        found = torch.cat(self.group.all_gather(numbers, [1] * self.group.size)).tolist()
        if wrong is not None:
            raise wrong
        failed = [rank for rank, (error, *_) in enumerate(found) if error]
        if failed:
            raise ValueError(f"the samples of rank {failed[0]} have an error, which it tells")
        widths, types = [each[2] for each in found], [str(_DTYPES[each[3]]) for each in found]
        for name, values in (("width", widths), ("type", types)):
            if len(set(values)) > 1:
                said = ", ".join(map(str, values))
                raise ValueError(f"inputs must have one {name} on all processes, not {said}")
        return [[samples, *rest] for _, samples, _, _, *rest in found]

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
        """The k best outputs of each input of this process, out of all N.

        Args:
            x: ``(b, H)``, the inputs of this process; b may differ between processes.
            k: number of outputs to return for each input, in [1, N].
            search: see `slide.SampledLinear.top_k`.

        Returns:
            Scores and ids (int64), both ``(b, k)``; see `ShardedOutputLinear.top_k`.

        Raises:
            ValueError: see `slide.SampledLinear.top_k`; also if k differs between processes.
            TypeError: for an input of another type than the layer, or a k that is no whole number.
        """
        wrong, number = None, 0
        try:
            self._check_input(x)
            number = min(max(index(k), 0), self.rows.out_features + 1)  # So that it can be sent.
        except (TypeError, ValueError) as error:
            wrong = error
        found = self._exchanged(x, wrong, number)
        if len({number for _, number in found}) > 1:
            said = ", ".join(str(number) for _, number in found)
            raise ValueError(f"k must be the same on all processes, not {said}")
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
