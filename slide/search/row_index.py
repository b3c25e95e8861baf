"""An index over weight rows that finds large inner products without scoring all rows."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide import ops
from slide.backend import KERNEL_DTYPES, array_view, check_on_cpu, has_bfloat16
from slide.ops.largest import ChangedRows, RowLists, put_rows, scan_lists
from slide.utils import checks
from slide.utils.quantized import QuantizedRows, weight_rows

# The defaults of `RowIndex.top_k`.
SHARE, DEVIATIONS = 0.022, 4.5
# Rows that a query may see in any case, and how many for each candidate.
_LEAST_SEEN, _SEEN_EACH = 4_096, 128
# Queries whose bounds are computed at a time, and numbers that are gathered at a time.
_QUERIES, _GATHERED = 512, 2**24
# A range of lengths has 3 times the rows of the next longer one, and the longest at least 1,024.
GROWTH, LEAST_ROWS = 3, 1_024
# A list has at least 4 rows on average, and a range at most sqrt(N) lists.
_LEAST_LIST = 4
# k-means: rows of the sample for each list, and passes over it.
_SAMPLE, _PASSES = 20, 4
# Rows that are read at a time, or of which the mean is taken; rows that are multiplied at a time.
_READ_AT_ONCE, _MULTIPLIED = 16_384, 2_048
# Integers of the sizes of floats.
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Rows that `unchanged` compares, and numbers of each: they are read anew in each call.
_WITNESSES, _NUMBERS = 64, 16


class RowIndex:
    """Finds the rows with the largest ``<query, row> + bias`` among a small part of all rows.

    Inverted lists hold the rows, with the bias as one more coordinate, rounded to 8 bits with a
    scale for each row. A query reads the longest rows first, then the lists by the largest likely
    score of their rows: that of the mean row plus a number of standard deviations. It ends when no
    other list is likely to contain one of the best rows, or when it has read its share of the rows.
    The weight itself scores the best rows again, so scores are exact, but a row far from the other
    rows of its list can be missed. Of up to 4,096 rows, all are read.

    The index keeps the weight, not a copy. After a change of the weight, make another index
    (`fits`).

    Args:
        weight: ``(N, D)`` floats, or stored rows, on the CPU.
        bias: ``(N,)`` or None.
        seed: of the draws of k-means.

    Raises:
        ValueError: for tensors of other shapes, without a row, or on another device.

    Attributes:
        lists: the inverted lists, that of the longest rows last; see `slide.ops.largest.RowLists`.
        seen: mean number of rows that a query of the last `top_k` has seen.

    Example:
        >>> import torch
        >>> from slide.search import RowIndex
        >>> weight = torch.randn(5_000, 16, generator=torch.Generator().manual_seed(0))
        >>> index = RowIndex(weight, None)
        >>> scores, ids = index.top_k(10 * weight[:3], k=2)
        >>> ids[:, 0].tolist(), ids.shape
        ([0, 1, 2], torch.Size([3, 2]))
    """

    def __init__(self, weight: Tensor | QuantizedRows, bias: Tensor | None, seed: int = 0):
        check_on_cpu("search by an index", *_tensors_of(weight, bias))
        shape, dtype = weight.shape, weight.dtype
        if len(shape) != 2 or not shape.numel() or not dtype.is_floating_point:
            raise ValueError(f"weight must be (N, D) floats, not {dtype} {shape}")
        if bias is not None and bias.shape != shape[:1]:
            raise ValueError(f"a bias of shape {bias.shape} does not fit {shape[0]} rows")
        self.weight, self.bias = weight, bias
        self._state = kept_state(weight, bias)  # Before the rows are read, not after.
        self.lists, self.seen = _make_lists(_WeightRows(weight, bias), seed), 0.0
        means = torch.from_numpy(self.lists.means)
        # A bound need not be exact.
        self._centres = means.bfloat16() if has_bfloat16() else means

    def fits(self, weight: Tensor | QuantizedRows, bias: Tensor | None) -> bool:
        """Whether the index belongs to the present values of this weight and bias.

        It compares the tensors, the counters that PyTorch and slide's optimizers increase with each
        change, and some rows. It does not detect a change of a few rows through ``weight.data`` or
        through an array on the same memory.
        """
        same = weight is self.weight and bias is self.bias
        return same and unchanged(self._state, weight, bias)

    @torch.no_grad()
    def top_k(
        self,
        queries: Tensor,
        k: int,
        share: float = SHARE,
        most_seen: int | None = None,
        deviations: float = DEVIATIONS,
    ) -> tuple[Tensor, Tensor]:
        """The k best rows of each query that the index finds.

        Args:
            queries: ``(B, D)``, of the type of the weight.
            k: in [1, N].
            share: in (0, 1]; a query begins no further list when it has read this share of all
                rows. It may always read 4,096 rows, and 128 for each exact score.
            most_seen: the same as a number of rows, instead of ``share``.
            deviations: at least 0; the largest likely score of a list is its mean plus this many
                standard deviations. With more of them a query reads more lists.

        Returns:
            Scores ``(B, k)`` of the type of the weight and ids ``(B, k)`` int64, best first; -inf
            and -1 where no finite scores are left.
        """
        rows, width = self.weight.shape
        k = checks.whole_within("k", k, 1, rows)
        if not 0 < share <= 1:
            raise ValueError(f"share must be in (0, 1], not {share}")
        checks.not_negative("deviations", deviations)
        if queries.ndim != 2 or queries.shape[1] != width:
            raise ValueError(f"queries must be (B, {width}), not {tuple(queries.shape)}")
        count = min(rows, k + k // 2 + 16)
        limit = most_seen or max(_LEAST_SEEN, _SEEN_EACH * count, math.ceil(share * rows))
        scores = torch.empty(len(queries), k, dtype=self.weight.dtype)
        ids = torch.empty(len(queries), k, dtype=torch.int64)
        seen = np.zeros(len(queries), np.int64)
        step = max(1, min(_QUERIES, _GATHERED // (count * width)))
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            x = queries[part].detach().float().contiguous()
            found = self._scan(x, self._bounds(x, deviations), count, limit, seen[part])
            scores[part], ids[part] = self._best(queries[part], found, k)
        self.seen = float(seen.mean()) if len(seen) else 0.0
        return scores, ids

    def _scan(self, x: Tensor, bounds: Tensor, count: int, limit: int, seen: np.ndarray) -> Tensor:
        """The ids ``(B, count)`` of the best rounded rows; -1: there are no more."""
        best = np.full((len(x), count), -np.inf, np.float32)
        positions = np.full((len(x), count), -1, np.int32)
        starts, ids, codes, scales, biases, *_ = self.lists
        if limit >= len(ids):
            bounds.fill_(torch.inf)
        lists = starts, codes, scales, biases
        scan_lists(array_view(x), array_view(bounds), *lists, limit, best, positions, seen)
        return torch.from_numpy(np.where(positions < 0, -1, ids[positions]).astype(np.int64))

    def _bounds(self, x: Tensor, deviations: float) -> Tensor:
        """What a row of each list may score, ``(B, L)``: its deviation is spread / sqrt(D)."""
        if self.bias is not None:
            x = torch.nn.functional.pad(x, (0, 1), value=1.0)
        scores = (x.to(self._centres.dtype) @ self._centres.T).float()
        spreads = torch.from_numpy(self.lists.spreads)
        scores.addr_(x.norm(dim=1), spreads, alpha=deviations / x.shape[1] ** 0.5)
        scores[:, -1] = torch.inf  # The longest rows are seen by all.
        return scores

    def _best(self, queries: Tensor, found: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best of the ids that were found, by their exact scores."""
        known, queries = found.clamp(min=0), queries.to(self.weight.dtype)
        weight, bias, positions = weight_rows(self.weight).some(known.numpy(), self.bias)
        known, bias = torch.from_numpy(positions), None if bias is None else bias.detach()
        if weight.dtype in KERNEL_DTYPES and weight.is_contiguous():
            indptr = np.arange(len(known) + 1) * known.shape[1]
            numbers = known.int().view(-1).numpy()
            added = None if bias is None else bias.contiguous()
            scores = ops.entry_products(indptr, numbers, queries.contiguous(), weight, added)
            scores = scores.view(known.shape)
        else:
            scores = torch.bmm(weight[known], queries[:, :, None])[:, :, 0]
            if bias is not None:
                scores += bias[known]
        scores.masked_fill_(found < 0, -torch.inf)
        scores, order = scores.topk(k, 1)
        return scores, found.gather(1, order)


class LazyRowIndex:
    """The `RowIndex` of a layer: made at its first use, and no part of states or copies."""

    def __init__(self) -> None:
        self._index: RowIndex | None = None

    def of(self, weight: Tensor | QuantizedRows, bias: Tensor | None) -> RowIndex:
        """The index over the present rows; a change of the rows makes a new one."""
        index = self._index  # Another thread may replace the index.
        if index is None or not index.fits(weight, bias):
            index = self._index = None  # Two at a time would take twice the memory.
            index = self._index = RowIndex(weight, bias)
        return index

    def __getstate__(self) -> dict[str, Any]:
        return {"_index": None}


class _WeightRows:
    """The rows ``[weight, bias]`` as float32, block by block, since a copy of all is large."""

    def __init__(self, weight: Tensor | QuantizedRows, bias: Tensor | None):
        self.stored, self.bias = weight_rows(weight), None if bias is None else bias.detach()

    def __len__(self) -> int:
        return self.stored.shape[0]

    def take(self, numbers: Tensor) -> Tensor:
        """Rows ``(n, D + 1)``, or ``(n, D)`` without a bias; zeros for a row that is not finite."""
        rows = self.stored.take(numbers)
        if self.bias is not None:
            rows = torch.cat([rows, self.bias[numbers].float()[:, None]], 1)
        if rows.sum().isfinite():
            return rows
        return torch.where(rows.isfinite().all(1, keepdim=True), rows, 0)

    def some(self, numbers: np.ndarray) -> tuple[Tensor, Tensor, np.ndarray]:
        """Rows, biases, and positions ``(n,)`` in them; without a copy if possible."""
        rows, bias, positions = self.stored.some(numbers, self.bias)
        read = (rows,) if bias is None else (rows, bias)
        if not all(each.dtype == torch.float32 and each.is_contiguous() for each in read):
            at = torch.from_numpy(positions).long()
            # Of the type that numbers have: another one would be compiled for, too.
            positions = np.arange(len(at), dtype=np.int32)
            rows = rows[at].float().contiguous()
            bias = None if bias is None else bias[at].float()
        return rows, rows.new_empty(0) if bias is None else bias, positions


def _make_lists(rows: _WeightRows, seed: int) -> RowLists:
    """Lists of all rows, with all that they hold."""
    starts, order = _inverted_lists(rows, torch.arange(len(rows)), seed)
    count, (size, width), biased = len(starts) - 1, rows.stored.shape, rows.bias is not None
    lists = RowLists(
        *(starts.numpy(), order.numpy().astype(np.int32), np.empty((size, width), np.int8)),
        scales=np.zeros(size, np.float32),
        biases=np.zeros(size, np.float32),
        means=np.zeros((count, width + biased), np.float32),
        spreads=np.zeros(count, np.float32),
    )
    for begin in range(0, size, _READ_AT_ONCE):
        _put_rows_into(
            lists, rows, np.arange(begin, min(begin + _READ_AT_ONCE, size), dtype=np.int32)
        )
    return lists


def _put_rows_into(lists: RowLists, rows: _WeightRows, positions: np.ndarray) -> None:
    """Round the rows at these ascending positions; means and spreads of their lists follow."""
    owner = np.searchsorted(lists.starts, positions, side="right") - 1
    numbers, begins = np.unique(owner, return_index=True)
    taken, biases, ids = rows.some(lists.ids[positions])
    block = array_view(taken)
    changed = ChangedRows(block, block.view(np.int32), array_view(biases), ids, positions)
    put_rows(changed, np.append(begins, len(positions)), numbers, lists)


def _inverted_lists(rows: _WeightRows, numbers: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Inverted lists of about the same length, and one of the longest rows, which all queries see.

    Inner products follow the lengths of rows, so rows are ranked by length, their distance from the
    mean of a sample, and each of some ranges has lists of its own (Yan et al. 2018, "Norm-ranging
    LSH for maximum inner product search"). Returns where lists begin, ``(L + 1,)`` int64, the
    longest rows last, and the rows in this order.
    """
    generator = torch.Generator().manual_seed(int(seed))
    mean = rows.take(_some(numbers, _READ_AT_ONCE, generator)).double().mean(0).float()

    def centred(part: Tensor) -> Iterator[Tensor]:
        return (rows.take(block).sub_(mean) for block in part.split(_READ_AT_ONCE))

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
    return starts, torch.cat([*orders, longest])


def _ranges(ranked: Tensor) -> list[Tensor]:
    """Parts of a ranking, the last positions first, and the first ones last."""
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
    """The number of the nearest centroid of each row, perhaps by products in bfloat16."""
    halves = centroids.square().sum(1).mul_(-0.5)
    if has_bfloat16():
        rows, centroids, halves = rows.bfloat16(), centroids.bfloat16(), halves.bfloat16()
    parts = [
        torch.addmm(halves, part, centroids.T).float().argmax(1) for part in rows.split(_MULTIPLIED)
    ]
    return torch.cat(parts)


def _tensors_of(weight: Tensor | QuantizedRows, bias: Tensor | None) -> tuple[Tensor, ...]:
    """What weight and bias are stored in."""
    return (*weight_rows(weight).tensors, *(() if bias is None else (bias.detach(),)))


def _state(weight: Tensor | QuantizedRows, bias: Tensor | None) -> tuple[list[tuple], list[Tensor]]:
    """Marks of two tensors, and views of some of their rows, which change when the tensors do."""
    marks, rows = [], []
    for tensor in _tensors_of(weight, bias):
        version = None if tensor.is_inference() else tensor._version
        marks.append((tensor.data_ptr(), version, tensor.shape, tensor.dtype))
        # As integers, since a NaN does not equal itself.
        some = tensor[:: max(1, len(tensor) // _WITNESSES)]
        if some.ndim > 1:
            some = some[:, :: -(-some.shape[1] // _NUMBERS)]
        rows.append(some.view(_BITS[tensor.element_size()]))
    return marks, rows


def kept_state(
    weight: Tensor | QuantizedRows, bias: Tensor | None
) -> tuple[list[tuple], list[Tensor]]:
    """The same, with copies of the rows."""
    marks, rows = _state(weight, bias)
    return marks, [each.clone() for each in rows]


def unchanged(
    kept: tuple[list[tuple], list[Tensor]], weight: Tensor | QuantizedRows, bias: Tensor | None
) -> bool:
    """Whether weight and bias are as they were when this was their `kept_state`."""
    marks, rows = _state(weight, bias)
    return marks == kept[0] and all(map(torch.equal, rows, kept[1]))
