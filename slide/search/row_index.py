"""An index over weight rows that finds large inner products without scoring all rows."""

import math

import numpy as np
import torch
from torch import Tensor

from slide.kernels.largest import scan_lists
from slide.runtime import array_view, check_on_cpu
from slide.search.clusters import WeightRows, near_rows

# How many standard deviations above the mean of a list the score of a row may lie. See `_bounds`.
_DEVIATIONS = 7.0
# Rows that a query may see in any case, and how many for each candidate.
_LEAST_SEEN, _SEEN_EACH = 4_096, 128
# Queries whose bounds are computed at a time, numbers that are gathered at a time, rows compared to
# find changes, and rows that are rounded at a time.
_QUERIES, _GATHERED, _WITNESSES, _BLOCK = 512, 2**24, 64, 16_384


class RowIndex:
    """Finds the rows with the largest ``<query, row> + bias`` among a small part of all rows.

    The rows, with the bias as one more coordinate, are put into lists of near rows
    (`slide.search.clusters`), and kept in the order of these lists, rounded to 8 bits with a scale
    for each row. A query sees the longest rows first, then lists in the order of the score that
    their rows may have: that of the mean row, and a number of standard deviations more. It ends
    where no other list may hold one of the best, or when it has seen its share of the rows. The
    best of the rounded rows are scored again with the weight itself. So scores are exact, and which
    rows are found is not: a row far from the others of its list can be missed. Up to 4,096 rows are
    all seen.

    The index keeps the weight, not a copy of it. It does not follow changes: see `fits`.

    Args:
        weight: ``(N, D)`` floats, on the CPU.
        bias: ``(N,)`` or None.
        seed: of the draws of k-means.

    Raises:
        ValueError: for tensors of other shapes, without a row, or on another device.

    Attributes:
        num_lists: number of lists.
        nbytes: memory of the index, in bytes, without weight and bias.
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

    def __init__(self, weight: Tensor, bias: Tensor | None, seed: int = 0):
        check_on_cpu("search by an index", weight, *(() if bias is None else (bias,)))
        if weight.ndim != 2 or not weight.numel() or not weight.is_floating_point():
            raise ValueError(f"weight must be (N, D) floats, not {weight.dtype} {weight.shape}")
        if bias is not None and bias.shape != weight.shape[:1]:
            raise ValueError(f"a bias of shape {bias.shape} does not fit {len(weight)} rows")
        self.weight, self.bias = weight, bias
        self._state = _state(weight, bias)  # Before the rows are read, not after.
        rows = WeightRows(weight, bias)
        lists = near_rows(rows, seed)
        self._starts, self._ids = lists.starts.numpy(), lists.order.int().numpy()
        self._means, self._spreads = lists.means, lists.spreads
        self._codes = np.empty(tuple(weight.shape), np.int8)
        self._scales, self._biases = (np.zeros(len(weight), np.float32) for _ in range(2))
        for start, block in zip(range(0, len(rows), _BLOCK), rows.blocks(lists.order), strict=True):
            part = slice(start, start + _BLOCK)
            if bias is not None:
                self._biases[part] = block[:, -1]
                block = block[:, :-1]
            scales = block.abs().amax(1) / 127
            self._scales[part] = scales
            # A row with a NaN gets a scale of NaN, so any codes do.
            codes = (block / scales.clamp(min=1e-30)[:, None]).round_().nan_to_num_(0, 0, 0)
            self._codes[part] = codes.numpy()
        self.num_lists, self.seen = len(lists.means), 0.0
        kept = self._starts, self._ids, self._codes, self._scales, self._biases
        own = self._means.numpy(), self._spreads.numpy()
        self.nbytes = sum(array.nbytes for array in (*kept, *own))

    def fits(self, weight: Tensor, bias: Tensor | None) -> bool:
        """Whether the index is one of this weight and bias as they are now.

        It compares the tensors themselves, the counters that PyTorch and the optimizers of slide
        increase with each change, and some rows. What escapes it is a change of a few rows by way
        of ``weight.data``, or of an array on the same memory.
        """
        own, now = self._state, _state(weight, bias)
        same = weight is self.weight and bias is self.bias and own[0] == now[0]
        return same and all(torch.equal(a, b) for a, b in zip(own[1], now[1], strict=True))

    @torch.no_grad()
    def top_k(self, queries: Tensor, k: int, share: float = 0.02) -> tuple[Tensor, Tensor]:
        """The k best rows of each query, of those that the index finds.

        Args:
            queries: ``(B, D)``, of the type of the weight.
            k: number of rows to return for each query, in [1, N].
            share: in (0, 1]; a query begins no further list when it has seen this share of all
                rows. It may always see 4,096 rows, and 128 for each one that it compares exactly.
                A query that may see all rows does so.

        Returns:
            Scores ``(B, k)`` of the type of the weight and ids ``(B, k)`` int64, best first. A
            score that is no number is not found: where there are no more, the score is -inf and
            the id is -1.

        Raises:
            ValueError: for a k or a share out of range, or queries of another width.
        """
        rows, width = self.weight.shape
        if not 1 <= k <= rows:
            raise ValueError(f"k must be in [1, {rows}], not {k}")
        if not 0 < share <= 1:
            raise ValueError(f"share must be in (0, 1], not {share}")
        if queries.ndim != 2 or queries.shape[1] != width:
            raise ValueError(f"queries must be (B, {width}), not {tuple(queries.shape)}")
        count = min(rows, k + k // 2 + 8)
        limit = max(_LEAST_SEEN, _SEEN_EACH * count, math.ceil(share * rows))
        scores = torch.empty(len(queries), k, dtype=self.weight.dtype)
        ids = torch.empty(len(queries), k, dtype=torch.int64)
        seen = np.zeros(len(queries), np.int64)
        step = max(1, min(_QUERIES, _GATHERED // (count * width)))
        for start in range(0, len(queries), step):
            part = slice(start, start + step)
            found = self._scan(queries[part], count, limit, seen[part])
            scores[part], ids[part] = self._best(queries[part], found, k)
        self.seen = float(seen.mean()) if len(seen) else 0.0
        return scores, ids

    def _scan(self, queries: Tensor, count: int, limit: int, seen: np.ndarray) -> Tensor:
        """The ids ``(B, count)`` of the best rounded rows; -1: there are no more."""
        x = queries.detach().float().contiguous()
        best = np.full((len(x), count), -np.inf, np.float32)
        places = np.full((len(x), count), -1, np.int32)
        lists = self._starts, self._codes, self._scales, self._biases
        bounds = self._bounds(x)
        if limit >= len(self._ids):
            bounds.fill_(torch.inf)
        scan_lists(array_view(x), array_view(bounds), *lists, limit, best, places, seen)
        return torch.from_numpy(np.where(places < 0, -1, self._ids[places]).astype(np.int64))

    def _bounds(self, x: Tensor) -> Tensor:
        """What a row of each list may score, ``(B, L)``.

        Distances from the mean in a random direction would have a standard deviation of spread /
        sqrt(D), multiplied by the length of the query.
        """
        width = x.shape[1]
        squares = x.square().sum(1)
        if self.bias is None:
            scores = x @ self._means.T
        else:
            scores = torch.addmm(self._means[:, width], x, self._means[:, :width].T)
            squares += 1
        deviations = _DEVIATIONS / self._means.shape[1] ** 0.5
        scores.addr_(squares.sqrt(), self._spreads, alpha=deviations)
        scores[:, -1] = torch.inf  # The longest rows are seen by all.
        return scores

    def _best(self, queries: Tensor, found: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best of the ids that were found, by their exact scores."""
        known = found.clamp(min=0)
        scores = torch.bmm(self.weight[known], queries[:, :, None].to(self.weight.dtype))[:, :, 0]
        if self.bias is not None:
            scores += self.bias[known]
        scores.masked_fill_(found < 0, -torch.inf)
        scores, order = scores.topk(k, 1)
        return scores, found.gather(1, order)


def _state(weight: Tensor, bias: Tensor | None) -> tuple[list[tuple], list[Tensor]]:
    """Marks of two tensors, and some of their rows, which change when the tensors do."""
    marks, rows = [], []
    for tensor in (weight,) if bias is None else (weight, bias):
        tensor = tensor.detach()
        version = None if tensor.is_inference() else tensor._version
        marks.append((tensor.data_ptr(), version, tensor.shape, tensor.dtype))
        some = tensor[:: max(1, len(tensor) // _WITNESSES)].contiguous()
        # As bytes, since a NaN does not equal itself. Of a short tensor it could be the tensor.
        rows.append(some.view(torch.uint8).clone())
    return marks, rows
