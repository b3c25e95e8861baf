"""An index over weight rows that finds large inner products without scoring all rows."""

import math

import numpy as np
import torch
from torch import Tensor

from slide import checks
from slide.backend import KERNEL_DTYPES
from slide.kernels.largest import scan_lists
from slide.kernels.pattern_products import sampled_product
from slide.runtime import array_view, check_on_cpu, has_bfloat16
from slide.search.changes import kept_state, tensors_of, unchanged
from slide.search.clusters import WeightRows, finite_rows, near_rows
from slide.stored_rows import StoredRows, weight_rows

# The defaults of `RowIndex.top_k`.
SHARE, DEVIATIONS = 0.022, 4.5
# Rows that a query may see in any case, and how many for each candidate.
_LEAST_SEEN, _SEEN_EACH = 4_096, 128
# Queries whose bounds are computed at a time, numbers that are gathered at a time, and rows that
# are rounded at a time.
_QUERIES, _GATHERED, _BLOCK = 512, 2**24, 16_384
# What an index holds, beside weight and bias.
_ARRAYS, _TENSORS = ("starts", "ids", "codes", "scales", "biases"), ("means", "spreads")


class RowIndex:
    """Finds the rows with the largest ``<query, row> + bias`` among a small part of all rows.

    The rows, with the bias as one more coordinate, are put into lists of near rows
    (`slide.search.clusters`), and kept in the order of these lists, rounded to 8 bits with a scale
    for each row. A query sees the longest rows first, then lists in the order of the score that
    their rows may have: that of the mean row, and a number of standard deviations more. It ends
    where no other list is likely to hold one of the best, or when it has seen its share of the
    rows. The best of the rounded rows are scored again with the weight itself. So scores are exact,
    and which rows are found is not: a row far from the others of its list can be missed. Up to
    4,096 rows are all seen.

    The index keeps the weight, not a copy of it. It follows the changes of those rows that `update`
    is told of, and no others: see `fits`.

    Args:
        weight: ``(N, D)`` floats, or stored rows, on the CPU.
        bias: ``(N,)`` or None.
        seed: of the draws of k-means.

    Raises:
        ValueError: for tensors of other shapes, without a row, or on another device.

    Attributes:
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

    def __init__(self, weight: Tensor | StoredRows, bias: Tensor | None, seed: int = 0):
        check_on_cpu("search by an index", *tensors_of(weight, bias))
        shape, dtype = weight.shape, weight.dtype
        if len(shape) != 2 or not shape.numel() or not dtype.is_floating_point:
            raise ValueError(f"weight must be (N, D) floats, not {dtype} {shape}")
        if bias is not None and bias.shape != shape[:1]:
            raise ValueError(f"a bias of shape {bias.shape} does not fit {shape[0]} rows")
        self.weight, self.bias = weight, bias
        self._state = kept_state(weight, bias)  # Before the rows are read, not after.
        rows = WeightRows(weight, bias)
        lists = near_rows(WeightRows(weight, bias, finite=True), seed)
        self._starts, self._ids = lists.starts.numpy(), lists.order.int().numpy()
        self._means, self._spreads = lists.means, lists.spreads
        self._centres = _multiplied(self._means)
        self._codes = np.empty(tuple(shape), np.int8)
        self._scales, self._biases = (np.zeros(shape[0], np.float32) for _ in range(2))
        for start, block in zip(range(0, len(rows), _BLOCK), rows.blocks(lists.order), strict=True):
            self._round(slice(start, start + _BLOCK), block)
        self._places: np.ndarray | None = None
        self.seen = 0.0

    @classmethod
    def restored(
        cls, weight: Tensor | StoredRows, bias: Tensor | None, state: dict[str, np.ndarray]
    ) -> "RowIndex":
        """The index of this weight that had this `state_dict`.

        Raises:
            ValueError: for the state of an index over rows of another shape.
        """
        if state["codes"].shape != tuple(weight.shape):
            shape = state["codes"].shape
            raise ValueError(f"an index of {shape} does not fit rows of {tuple(weight.shape)}")
        index = cls.__new__(cls)
        index.weight, index.bias, index._state = weight, bias, kept_state(weight, bias)
        for name in _ARRAYS:
            setattr(index, f"_{name}", state[name].copy())
        for name in _TENSORS:
            setattr(index, f"_{name}", torch.from_numpy(state[name].copy()))
        index._centres = _multiplied(index._means)
        index._places, index.seen = None, 0.0
        return index

    def state_dict(self) -> dict[str, np.ndarray]:
        """The index without weight and bias, for `restored`."""
        arrays = {name: getattr(self, f"_{name}").copy() for name in _ARRAYS}
        return arrays | {name: getattr(self, f"_{name}").numpy().copy() for name in _TENSORS}

    @property
    def num_lists(self) -> int:
        """Number of lists."""
        return len(self._means)

    @property
    def nbytes(self) -> int:
        """Memory of the index, in bytes, without weight and bias."""
        every = [getattr(self, f"_{name}") for name in (*_ARRAYS, *_TENSORS)]
        copies = [] if self._centres is self._means else [self._centres]
        return sum(each.nbytes for each in (*every, *copies))

    def _round(self, places: slice | np.ndarray, block: Tensor) -> None:
        """Put rows, with their biases, into these places of the lists."""
        if self.bias is not None:
            self._biases[places] = block[:, -1]
            block = block[:, :-1]
        scales = block.abs().amax(1) / 127
        self._scales[places] = scales
        # A row with a NaN gets a scale of NaN, so any codes do.
        codes = (block / scales.clamp(min=1e-30)[:, None]).round_().nan_to_num_(0, 0, 0)
        self._codes[places] = codes.numpy()

    @torch.no_grad()
    def update(self, numbers: np.ndarray) -> None:
        """Follow the changes of some rows.

        They stay in their lists, whose means and spreads follow. So the scores of these rows are
        right again, while a row that went far away makes its list less tight until the next build.
        The time is proportional to the number of these rows.

        Args:
            numbers: of the rows, distinct.
        """
        if self._places is None:
            self._places = np.empty(len(self._ids), np.int32)
            self._places[self._ids] = np.arange(len(self._ids), dtype=np.int32)
        places = self._places[numbers]
        own = torch.from_numpy(np.searchsorted(self._starts, places, side="right") - 1)
        old = torch.from_numpy(self._codes[places] * self._scales[places, None])
        if self.bias is not None:
            old = torch.cat([old, torch.from_numpy(self._biases[places, None])], 1)
        new = WeightRows(self.weight, self.bias).take(torch.from_numpy(numbers).long())
        self._round(places, new)
        old, new = finite_rows(old), finite_rows(new)
        # The mean square of a list is that of its mean and that of the distances from it.
        lists, own = own.unique(return_inverse=True)
        counts = torch.from_numpy(np.diff(self._starts))[lists].float()
        means = self._means[lists]
        squares = self._spreads[lists].square() + means.square().sum(1)
        change = new.square().sum(1) - old.square().sum(1)
        squares += torch.zeros(len(lists)).index_add_(0, own, change) / counts
        means += torch.zeros_like(means).index_add_(0, own, new - old) / counts[:, None]
        self._means[lists] = means
        self._centres[lists] = means.to(self._centres.dtype)
        self._spreads[lists] = (squares - means.square().sum(1)).clamp(min=0).sqrt()

    def fits(self, weight: Tensor | StoredRows, bias: Tensor | None) -> bool:
        """Whether the index is one of this weight and bias as they are now.

        It compares the tensors themselves, the counters that PyTorch and the optimizers of slide
        increase with each change, and some rows. What escapes it is a change of a few rows by way
        of ``weight.data``, or of an array on the same memory.
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
        """The k best rows of each query, of those that the index finds.

        Args:
            queries: ``(B, D)``, of the type of the weight.
            k: number of rows to return for each query, in [1, N].
            share: in (0, 1]; a query begins no further list when it has seen this share of all
                rows. It may always see 4,096 rows, and 128 for each one that it compares exactly.
                A query that may see all rows does so.
            most_seen: the number of rows after which a query begins no further list, in place of
                ``share``; None: by the share.
            deviations: at least 0; how many standard deviations above the mean of a list the score
                of a row may lie. With more of them a query sees more lists, and of two lists the
                wider one first, so it finds more rows that are far from their list.

        Returns:
            Scores ``(B, k)`` of the type of the weight and ids ``(B, k)`` int64, best first. A
            score that is no number is not found: where there are no more, the score is -inf and
            the id is -1.

        Raises:
            ValueError: for a number out of range, or queries of another width.
        """
        rows, width = self.weight.shape
        if not 1 <= k <= rows:
            raise ValueError(f"k must be in [1, {rows}], not {k}")
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
        places = np.full((len(x), count), -1, np.int32)
        lists = self._starts, self._codes, self._scales, self._biases
        if limit >= len(self._ids):
            bounds.fill_(torch.inf)
        scan_lists(array_view(x), array_view(bounds), *lists, limit, best, places, seen)
        return torch.from_numpy(np.where(places < 0, -1, self._ids[places]).astype(np.int64))

    def _bounds(self, x: Tensor, deviations: float) -> Tensor:
        """What a row of each list may score, ``(B, L)``.

        Distances from the mean in a random direction would have a standard deviation of spread /
        sqrt(D), multiplied by the length of the query.
        """
        if self.bias is not None:
            x = torch.nn.functional.pad(x, (0, 1), value=1.0)
        scores = (x.to(self._centres.dtype) @ self._centres.T).float()
        scores.addr_(x.norm(dim=1), self._spreads, alpha=deviations / x.shape[1] ** 0.5)
        scores[:, -1] = torch.inf  # The longest rows are seen by all.
        return scores

    def _best(self, queries: Tensor, found: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """The k best of the ids that were found, by their exact scores."""
        known, queries = found.clamp(min=0), queries.to(self.weight.dtype)
        weight, bias, places = weight_rows(self.weight).some(known.numpy(), self.bias)
        known, bias = torch.from_numpy(places), None if bias is None else bias.detach()
        if weight.dtype in KERNEL_DTYPES and weight.is_contiguous():
            scores = _products(queries, weight, bias, known)
        else:
            scores = torch.bmm(weight[known], queries[:, :, None])[:, :, 0]
            if bias is not None:
                scores += bias[known]
        scores.masked_fill_(found < 0, -torch.inf)
        scores, order = scores.topk(k, 1)
        return scores, found.gather(1, order)


def _multiplied(means: Tensor) -> Tensor:
    """Means of lists in the type that `RowIndex` multiplies: a bound need not be exact."""
    return means.bfloat16() if has_bfloat16() else means


def _products(queries: Tensor, rows: Tensor, added: Tensor | None, ids: Tensor) -> Tensor:
    """``<query, row> + added`` for the rows ``ids`` ``(B, K)``; rows may be longer than queries."""
    indptr = np.arange(len(ids) + 1) * ids.shape[1]
    out = torch.empty(ids.shape, dtype=queries.dtype)
    none = queries.new_empty(0)
    sampled_product(
        *(indptr, ids.int().view(-1).numpy(), array_view(queries.detach().contiguous())),
        *(array_view(rows), array_view(none if added is None else added.contiguous())),
        array_view(out.view(-1)),
    )
    return out
