"""Search among the outputs of a layer: the best ones of an input, or the scores of given ones."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slide.active_set import ActiveSet
from slide.backend import CPU, on_host
from slide.functional.autocast import outside_autocast
from slide.functional.linear import active_linear, check_linear
from slide.nn.sampled_layer import SampledLayer
from slide.sampling import Sampler
from slide.search import RowIndex, exact_top_k, index_top_k
from slide.sparse import Pattern
from slide.utils import checks
from slide.utils.profiling import untraced
from slide.utils.quantized import QuantizedRows

SEARCHES = ("exact", "index", "sampler")


class IndexedRows:
    """The index over the rows of a layer: it is made at its first use, and is no part of a state.

    A class before ``nn.Module`` among the bases of a layer.
    """

    _index: RowIndex | None = None

    def _searched(self) -> tuple[Tensor | QuantizedRows, Tensor | None]:
        """The rows ``(N, D)`` and the bias: the same objects as long as these are the same."""
        raise NotImplementedError

    def row_index(self) -> RowIndex:
        """The index of `top_k` over the rows of the weight as they are now.

        The first call makes it, and so does each call after weight or bias changed
        (`slide.search.RowIndex.fits`): that takes a few seconds for some 100,000 outputs. It is no
        part of the state of the layer, and copies of the layer make their own.
        """
        index, searched = self._index, self._searched()  # Another thread may replace the index.
        if index is None or not index.fits(*searched):
            index = self._index = None  # Two at a time would take twice the memory.
            index = self._index = RowIndex(*searched)
        return index

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_index": None}


class SearchedLayer(IndexedRows, SampledLayer):
    """A sampled layer with a weight ``(N, D)``, whose outputs are inner products with its rows."""

    weight: nn.Parameter

    @untraced
    @torch.no_grad()
    def top_k(self, x: Tensor, k: int, search: str = "exact") -> tuple[Tensor, Tensor]:
        """The k best outputs of each input.

        Args:
            x: ``(B, D)``.
            k: number of outputs to return for each input, in [1, N].
            search: ``"exact"`` scores all outputs, in blocks. ``"index"`` scores the few that
                `row_index` brings up; it may miss some of the best. ``"sampler"`` scores the
                candidates of the sampler's index, which was made for training.

        Returns:
            Scores and ids (int64), both ``(B, k)``, best first. If an input has fewer than k
            candidates, the remaining scores are -inf and the ids are -1.

        Raises:
            ValueError: for a k out of range, an unknown ``search``, or ``"sampler"`` with a sampler
                that has no index.
        """
        checks.one_of("search", search, SEARCHES)
        x, _, outside = outside_autocast(x, self._like(x))
        if search != "exact" and self.host_rows and x.device != CPU:
            scores, ids = self.top_k(x.to(CPU), k, search)
            return scores.to(x.device), ids.to(x.device)
        check_linear(self._on_host(x), self.weight, self.bias)
        with outside:
            if search == "exact":
                return exact_top_k(x, self.weight, self.bias, k)
            if search == "index":
                return self.row_index().top_k(x, k)
            return index_top_k(x, self.weight, self.bias, self.candidates(x), k)

    @untraced
    @torch.no_grad()
    def scores_of(self, x: Tensor, ids: np.ndarray) -> np.ndarray:
        """The scores of some outputs of each input.

        Args:
            x: ``(B, D)``.
            ids: ``(B, K)`` integers below N, each output at most once in a row; below 0: none.

        Returns:
            ``(B, K)`` float32, 0 where there is no output.
        """
        x = x.to(self.weight.device)  # Rows of the host are scored there.
        scored = partial(active_linear, x, self.weight.detach(), self.bias)
        return at_ids(ids, self.out_features, scored)

    def _searched(self) -> tuple[Tensor, Tensor | None]:
        return self.weight, self.bias

    def candidates(self, x: Tensor) -> Pattern:
        """The candidates of the sampler's index for inputs ``(B, D)``.

        Raises:
            ValueError: for a sampler without an index.
        """
        check_has_index(self.sampler)
        sampler = self._own_sampler()
        sampler.update(self.weight, self.bias, None)
        return sampler.candidates(x)

    def _like(self, x: Any) -> Tensor:
        """A tensor of the type of the weight, on the device where the layer computes."""
        if not self.host_rows or not isinstance(x, Tensor):
            return self.weight
        return torch.empty(0, dtype=self.weight.dtype, device=x.device)


def check_has_index(sampler: Sampler) -> None:
    """Raise ValueError for a sampler without an index."""
    if not sampler.has_index:
        raise ValueError(
            "search=sampler needs a sampler with an index, such as "
            f"ActiveSampler(..., LSHProposer); this {type(sampler).__name__} has none"
        )


def at_ids(ids: np.ndarray, out_features: int, scored: Callable[[ActiveSet], Tensor]) -> np.ndarray:
    """The scores of some outputs of each input; see `SearchedLayer.scores_of`.

    Args:
        ids: ``(B, K)``.
        out_features: N.
        scored: the scores of an active set.

    Returns:
        ``(B, K)`` float32, 0 where there is no output.
    """
    known, pattern = ids >= 0, Pattern.from_padded(ids)
    active = ActiveSet(out_features, pattern.indices, pattern.indptr)
    out = np.zeros(ids.shape, np.float32)
    out[known] = on_host(scored(active).float())
    return out
