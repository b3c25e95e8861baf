"""Lists of near rows: the inverted lists of an index for inner products."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from slide.backend import has_bfloat16
from slide.utils.quantized import QuantizedRows, weight_rows

# A range of lengths has so many times the rows of the next longer one, and the longest at least
# LEAST_ROWS.
GROWTH, LEAST_ROWS = 3, 1_024
# Each other range has as many lists as the root of the number of all rows, if they have so many
# rows in the mean.
_LEAST_LIST = 4
# Rows of the sample for each list, and passes over it.
_SAMPLE, _PASSES = 20, 4
# Rows that are read at a time, or of which the mean is taken; rows that are multiplied at a time.
READ_AT_ONCE, _MULTIPLIED = 16_384, 2_048


class WeightRows:
    """The rows ``[weight, bias]`` as float32, block by block, since a copy of all is large.

    Args:
        weight: ``(N, D)`` floats, or stored rows.
        bias: ``(N,)`` or None.
    """

    def __init__(self, weight: Tensor | QuantizedRows, bias: Tensor | None):
        self.stored, self.bias = weight_rows(weight), None if bias is None else bias.detach()

    def __len__(self) -> int:
        return self.stored.shape[0]

    def take(self, numbers: Tensor) -> Tensor:
        """Rows ``(n, D + 1)``, or ``(n, D)`` without a bias.

        A row with a number that is not finite, such as a bias of -inf, is read as zeros: it would
        be in the mean of its list, and in that of all.
        """
        rows = self.stored.take(numbers)
        if self.bias is not None:
            rows = torch.cat([rows, self.bias[numbers].float()[:, None]], 1)
        if rows.sum().isfinite():
            return rows
        return torch.where(rows.isfinite().all(1, keepdim=True), rows, 0)

    def some(self, numbers: np.ndarray) -> tuple[Tensor, Tensor, np.ndarray]:
        """Arrays with these rows, and where they are in them, without a copy if possible.

        Returns:
            Rows ``(r, D)`` float32, their entries of the bias ``(r,)`` or ``(0,)``, numbers
            ``(n,)``.
        """
        rows, bias, places = self.stored.some(numbers, self.bias)
        read = (rows,) if bias is None else (rows, bias)
        if not all(each.dtype == torch.float32 and each.is_contiguous() for each in read):
            at = torch.from_numpy(places).long()
            rows, places = rows[at].float().contiguous(), np.arange(len(at))
            bias = None if bias is None else bias[at].float()
        return rows, rows.new_empty(0) if bias is None else bias, places


class Lists(NamedTuple):
    """L lists that hold each of n rows once.

    Attributes:
        starts: ``(L + 1,)`` int64, where each list begins in ``order``. The last list holds the
            longest rows.
        order: ``(n,)`` int64, numbers of rows.
    """

    starts: Tensor
    order: Tensor


def near_rows(rows: WeightRows, numbers: Tensor, seed: int) -> Lists:
    """Lists of near rows of about the same length, and one of the longest rows.

    Inner products follow the lengths of rows. Among the rows of a trained layer some are many times
    as long as most. In lists of all rows these would hide among short ones, and the mean of a list
    would say nothing about them. So rows are ranked by length, and each of some ranges of this
    ranking has lists of its own (the idea of norm ranges: Yan et al. 2018, "Norm-ranging LSH for
    maximum inner product search"). The longest rows are far from each other and are the best ones
    of most queries: they are one list. A length is the distance from the mean of a sample of the
    rows: subtracting the same row from all of them changes no order of scores.

    Args:
        rows: N rows.
        numbers: ``(n,)`` int64, the rows to put into lists, n >= 1.
        seed: of the draws.
    """
    generator = torch.Generator().manual_seed(int(seed))
    mean = rows.take(_some(numbers, READ_AT_ONCE, generator)).double().mean(0).float()

    def centred(part: Tensor) -> Iterator[Tensor]:
        return (rows.take(block).sub_(mean) for block in part.split(READ_AT_ONCE))

    lengths = torch.cat([block.norm(dim=1) for block in centred(numbers)])
    *ranges, longest = _ranges(numbers[lengths.argsort(descending=True)])
    counts, orders = [], []
    for part in ranges:
        number = min(round(len(numbers) ** 0.5), len(part) // _LEAST_LIST)
        sample = torch.cat([*centred(_some(part, _SAMPLE * number, generator))])
        centroids = _k_means(sample, number, generator)
        owner = torch.cat([_nearest(block, centroids) for block in centred(part)])
        count = torch.bincount(owner, minlength=number)
        counts.append(count[count > 0])
        orders.append(part[owner.argsort(stable=True)])
    counts.append(torch.tensor([len(longest)]))
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cat(counts).cumsum(0)])
    return Lists(starts, torch.cat([*orders, longest]))


def _ranges(ranked: Tensor) -> list[Tensor]:
    """Parts of a ranking, the last places first, and the first ones last."""
    parts, end = [], len(ranked)
    while end >= GROWTH * LEAST_ROWS:
        parts.append(ranked[end // GROWTH : end])
        end //= GROWTH
    return [*parts, ranked[:end]]


def _some(numbers: Tensor, most: int, generator: torch.Generator) -> Tensor:
    return numbers[torch.randperm(len(numbers), generator=generator)[:most]]


def _k_means(sample: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Centroids ``(number, D)`` of rows in random order, by Lloyd's method."""
    centroids = sample[:number].clone()
    for _ in range(_PASSES):
        owner = _nearest(sample, centroids)
        count = torch.bincount(owner, minlength=number)
        centroids.zero_().index_add_(0, owner, sample)
        centroids /= count.clamp(min=1)[:, None]
        empty = (count == 0).nonzero().ravel()
        again = torch.randint(len(sample), (len(empty),), generator=generator)
        centroids[empty] = sample[again]
    return centroids


def _nearest(rows: Tensor, centroids: Tensor) -> Tensor:
    """The number of the nearest centroid of each row; of nearly equal ones, any.

    Rows whose mean is zero lose little by being rounded to bfloat16.
    """
    halves = centroids.square().sum(1).mul_(-0.5)
    if has_bfloat16():
        rows, centroids, halves = rows.bfloat16(), centroids.bfloat16(), halves.bfloat16()
    parts = [
        torch.addmm(halves, part, centroids.T).float().argmax(1) for part in rows.split(_MULTIPLIED)
    ]
    return torch.cat(parts)
