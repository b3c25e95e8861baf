"""Lists of near rows: the inverted lists of an index for inner products."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from slide.stored_rows import StoredRows, weight_rows

# A range of lengths has so many times the rows of the next longer one, and the longest at least
# LEAST_ROWS.
GROWTH, LEAST_ROWS = 3, 1_024
# Each other range has as many lists as the root of the number of all rows, if they have so many
# rows in the mean.
_LEAST_LIST = 4
# Rows of the sample for each list, passes over it, and rows that are multiplied at a time.
_SAMPLE, _PASSES, _BLOCK = 20, 4, 16_384


class WeightRows:
    """The rows ``[weight, bias]`` as float32, block by block, since a copy of all is large.

    Args:
        weight: ``(N, D)`` floats, or stored rows.
        bias: ``(N,)`` or None.
        finite: whether rows are those of `finite_rows`.
    """

    def __init__(self, weight: Tensor | StoredRows, bias: Tensor | None, finite: bool = False):
        self.weight, self.bias = weight_rows(weight), None if bias is None else bias.detach()
        self.finite = finite

    def __len__(self) -> int:
        return self.weight.shape[0]

    def take(self, numbers: Tensor) -> Tensor:
        """Rows ``(n, D + 1)``, or ``(n, D)`` without a bias."""
        rows = self.weight.take(numbers)
        if self.bias is not None:
            rows = torch.cat([rows, self.bias[numbers].float()[:, None]], 1)
        return finite_rows(rows) if self.finite else rows

    def blocks(self, numbers: Tensor) -> Iterator[Tensor]:
        """Rows of all ``numbers``, one block after the other."""
        return (self.take(part) for part in numbers.split(_BLOCK))


class Lists(NamedTuple):
    """L lists that hold each of N rows once.

    Attributes:
        starts: ``(L + 1,)`` int64, where each list begins in ``order``. The last list holds the
            longest rows.
        order: ``(N,)`` int64, numbers of rows.
        means: ``(L, D)`` float32, the mean row of each list.
        spreads: ``(L,)`` float32, the root of the mean squared distance from this mean.
    """

    starts: Tensor
    order: Tensor
    means: Tensor
    spreads: Tensor


def finite_rows(rows: Tensor) -> Tensor:
    """The rows, or zeros for a row with a NaN or an infinite number, such as a bias of -inf.

    It would be in the mean of its list, and in that of all rows.
    """
    if rows.sum().isfinite():
        return rows
    return torch.where(rows.isfinite().all(1, keepdim=True), rows, 0)


def near_rows(rows: WeightRows, seed: int) -> Lists:
    """Lists of near rows of about the same length, and one of the longest rows.

    Inner products follow the lengths of rows. Among the rows of a trained layer some are many times
    as long as most. In lists of all rows these would hide among short ones, and the mean of a list
    would say nothing about them. So rows are ranked by length, and each of some ranges of this
    ranking has lists of its own (the idea of norm ranges: Yan et al. 2018, "Norm-ranging LSH for
    maximum inner product search"). The longest rows are far from each other and are the best ones
    of most queries: they are one list. A length is the distance from the mean row: subtracting the
    same row from all of them changes no order of scores.

    Args:
        rows: N rows.
        seed: of the draws.
    """
    generator = torch.Generator().manual_seed(seed)
    every = torch.arange(len(rows))
    mean = torch.stack([block.double().sum(0) for block in rows.blocks(every)]).sum(0) / len(rows)
    mean = mean.float()
    lengths = torch.cat([(block - mean).norm(dim=1) for block in rows.blocks(every)])
    counts, orders, means, spreads = [], [], [], []
    *ranges, longest = _ranges(lengths.argsort(descending=True))
    for part in [*ranges, longest]:
        number = min(round(len(rows) ** 0.5), len(part) // _LEAST_LIST)
        if part is longest:
            number = 1
        centroids = _k_means(rows.take(_some(part, _SAMPLE * number, generator)), number, generator)
        owners, sums = [], torch.zeros_like(centroids)
        for block in rows.blocks(part):
            owners.append(_nearest(block, centroids))
            sums.index_add_(0, owners[-1], block)
        owner = torch.cat(owners)
        count = torch.bincount(owner, minlength=number)
        kept = count > 0
        sums /= count.clamp(min=1)[:, None]
        pairs = zip(rows.blocks(part), owners, strict=True)
        far = torch.cat([(block - sums[own]).square().sum(1) for block, own in pairs])
        squares = torch.bincount(owner, far, number)[kept]
        counts.append(count[kept])
        orders.append(part[owner.argsort(stable=True)])
        means.append(sums[kept])
        spreads.append((squares / count[kept]).sqrt())
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cat(counts).cumsum(0)])
    return Lists(starts, torch.cat(orders), torch.cat(means), torch.cat(spreads))


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
    """The number of the nearest centroid of each row."""
    halves = centroids.square().sum(1).mul_(-0.5)
    parts = [torch.addmm(halves, part, centroids.T).argmax(1) for part in rows.split(_BLOCK)]
    return torch.cat(parts)
