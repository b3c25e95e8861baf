"""An index over weight rows that finds large inner products without scoring all rows."""

import math

import numpy as np
import torch
from torch import Tensor

from slide.backend import KERNEL_DTYPES, array_view, check_on_cpu, has_bfloat16
from slide.kernels.largest import scan_lists
from slide.kernels.pattern_products import sampled_product
from slide.kernels.row_lists import RowLists
from slide.search.changes import kept_state, tensors_of, unchanged
from slide.search.clusters import WeightRows
from slide.search.row_lists import check_lists_fit, explained, make_lists, put_rows_into, regrouped
from slide.utils import checks
from slide.utils.quantized import QuantizedRows, weight_rows

# The defaults of `RowIndex.top_k`.
SHARE, DEVIATIONS = 0.022, 4.5
# Rows that a query may see in any case, and how many for each candidate.
_LEAST_SEEN, _SEEN_EACH = 4_096, 128
# All rows are grouped again if lists explain a smaller share of what they explained at best.
_LEAST_EXPLAINED = 0.5
# Queries whose bounds are computed at a time, and numbers that are gathered at a time.
_QUERIES, _GATHERED = 512, 2**24


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

    def __init__(self, weight: Tensor | QuantizedRows, bias: Tensor | None, seed: int = 0):
        check_on_cpu("search by an index", *tensors_of(weight, bias))
        shape, dtype = weight.shape, weight.dtype
        if len(shape) != 2 or not shape.numel() or not dtype.is_floating_point:
            raise ValueError(f"weight must be (N, D) floats, not {dtype} {shape}")
        if bias is not None and bias.shape != shape[:1]:
            raise ValueError(f"a bias of shape {bias.shape} does not fit {shape[0]} rows")
        self.weight, self.bias = weight, bias
        self._state = kept_state(weight, bias)  # Before the rows are read, not after.
        self._take(*make_lists(WeightRows(weight, bias), seed))
        self._explained, self.seen = explained(self._lists), 0.0

    def _take(self, lists: RowLists, levels: np.ndarray) -> None:
        self._lists, self._levels = lists, levels
        means = torch.from_numpy(lists.means)
        # A bound need not be exact.
        self._centres = means.bfloat16() if has_bfloat16() else means
        self._places: np.ndarray | None = None

    @classmethod
    def restored(
        cls, weight: Tensor | QuantizedRows, bias: Tensor | None, state: dict[str, np.ndarray]
    ) -> "RowIndex":
        """The index of this weight that had this `state_dict`.

        Raises:
            ValueError: for the state of an index over rows of another shape.
        """
        index = cls.__new__(cls)
        lists = RowLists(*(state[name].copy() for name in RowLists._fields))
        check_lists_fit(lists, WeightRows(weight, bias))
        index.weight, index.bias, index._state = weight, bias, kept_state(weight, bias)
        # Earlier states have neither levels nor what lists explained.
        index._take(lists, np.array(state.get("levels", [0]), np.int64))
        index._explained, index.seen = float(state.get("explained", 0.0)), 0.0
        return index

    def state_dict(self) -> dict[str, np.ndarray]:
        """The index without weight and bias, for `restored`."""
        arrays = self._lists._asdict() | {"levels": self._levels}
        copies = {name: array.copy() for name, array in arrays.items()}
        return copies | {"explained": np.array(self._explained)}

    @property
    def num_lists(self) -> int:
        """Number of lists."""
        return len(self._lists.means)

    @property
    def nbytes(self) -> int:
        """Memory of the index, in bytes, without weight and bias."""
        copied = self._centres.dtype != torch.float32
        every = (*self._lists, self._levels, np.array(self._explained))
        return sum(each.nbytes for each in every) + copied * self._centres.nbytes

    def read_from(self, weight: Tensor | QuantizedRows, bias: Tensor | None) -> None:
        """Read rows from other tensors; `update` or `regroup` follows the changes in them.

        Raises:
            ValueError: for rows of another shape.
        """
        check_lists_fit(self._lists, WeightRows(weight, bias))
        self.weight, self.bias = weight, bias

    def _places_of(self, numbers: np.ndarray) -> np.ndarray:
        """Where rows are in the lists, sorted."""
        ids = self._lists.ids
        if self._places is None:
            self._places = np.empty(len(ids), np.int32)
            self._places[ids] = np.arange(len(ids), dtype=np.int32)
        return np.sort(self._places[numbers])

    @torch.no_grad()
    def update(self, numbers: np.ndarray) -> None:
        """Follow the changes of some rows.

        They stay in their lists, whose means and spreads follow. So the scores of these rows are
        right again, while a row that went far away makes its list less tight until `regroup`. The
        time is about proportional to the number of these rows, and otherwise to that of lists.

        Args:
            numbers: of the rows, distinct.
        """
        rows = WeightRows(self.weight, self.bias)
        put_rows_into(self._lists, rows, self._places_of(numbers))
        if self._centres.dtype != torch.float32:
            self._centres.copy_(torch.from_numpy(self._lists.means))

    @torch.no_grad()
    def regroup(self, moved: np.ndarray, seed: int = 0) -> None:
        """Put rows that moved into new lists of near rows, and follow the changes of all rows.

        The time of grouping is about proportional to the number of rows that moved: see
        `slide.search.row_lists.regrouped`. If the lists then say far less about their rows than
        they did, other rows have moved than these, and all are grouped again. An error midway
        leaves an index that must not be used.

        Args:
            moved: numbers of rows, distinct. The longest rows are regrouped in any case.
            seed: of the draws of k-means.

        Raises:
            ValueError: for a weight or a bias of another shape.
        """
        self._state = kept_state(self.weight, self.bias)
        places, rows = self._places_of(moved), WeightRows(self.weight, self.bias)
        self._take(*regrouped(self._lists, self._levels, places, rows, seed))
        if explained(self._lists) < _LEAST_EXPLAINED * self._explained:
            self._take(*make_lists(rows, seed))
            self._explained = 0.0
        self._explained = max(self._explained, explained(self._lists))

    def fits(self, weight: Tensor | QuantizedRows, bias: Tensor | None) -> bool:
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
        starts, ids, codes, scales, biases, *_ = self._lists
        if limit >= len(ids):
            bounds.fill_(torch.inf)
        lists = starts, codes, scales, biases
        scan_lists(array_view(x), array_view(bounds), *lists, limit, best, places, seen)
        return torch.from_numpy(np.where(places < 0, -1, ids[places]).astype(np.int64))

    def _bounds(self, x: Tensor, deviations: float) -> Tensor:
        """What a row of each list may score, ``(B, L)``.

        Distances from the mean in a random direction would have a standard deviation of spread /
        sqrt(D), multiplied by the length of the query.
        """
        if self.bias is not None:
            x = torch.nn.functional.pad(x, (0, 1), value=1.0)
        scores = (x.to(self._centres.dtype) @ self._centres.T).float()
        spreads = torch.from_numpy(self._lists.spreads)
        scores.addr_(x.norm(dim=1), spreads, alpha=deviations / x.shape[1] ** 0.5)
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
