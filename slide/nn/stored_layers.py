"""Layers whose weights stay in a file as quantized rows; they predict, and do not learn."""

from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from slide.active_set import ActiveSet
from slide.functional import active_linear, sparse_linear
from slide.nn.network import SlideNetwork
from slide.nn.sampled_linear import (
    SEARCHES,
    Activation,
    EveryOutput,
    SampledLinear,
    at_ids,
    check_has_index,
    every_output,
    new_linear,
)
from slide.nn.sparse_linear import SparseInputLinear
from slide.sampling import FullSampler, Sampler
from slide.search import RowIndex, exact_top_k, index_top_k
from slide.search.row_index import LazyRowIndex
from slide.sparse import CSR, as_csr, check_pattern
from slide.utils import checks
from slide.utils.quantized import QuantizedRows

_Layer = TypeVar("_Layer", SparseInputLinear, SampledLinear)


class _StoredLayer(nn.Module):
    """A weight as `QuantizedRows`, and a bias ``(number of outputs,)``."""

    codes: Tensor
    scales: Tensor | None
    _rows: QuantizedRows | None = None

    def __init__(self, rows: QuantizedRows, bias: Tensor, in_features: int):
        super().__init__()
        self.in_features, self.out_features = in_features, len(bias)
        self.register_buffer("codes", rows.codes, persistent=False)
        self.register_buffer("scales", rows.scales, persistent=False)
        self.bias = nn.Parameter(bias, requires_grad=False)
        self.sampler: Sampler = FullSampler(in_features, len(bias))

    @property
    def rows(self) -> QuantizedRows:
        """The weight as it is stored; the same object in each call, by which an index knows it."""
        rows = self._rows
        if rows is None or rows.codes is not self.codes or rows.scales is not self.scales:
            rows = self._rows = QuantizedRows(self.codes, self.scales)
        return rows

    @property
    def weight(self) -> Tensor:
        """A copy of the weight as float32."""
        return self.rows.float()

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self.codes.dtype}"

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """A state that `trainable` layers take: the weight is float32."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = self.weight


class StoredInputLinear(_StoredLayer):
    """`slide.SparseInputLinear` of stored rows: it reads the rows of the features of its inputs."""

    def __init__(self, rows: QuantizedRows, bias: Tensor):
        super().__init__(rows, bias, rows.shape[0])

    def forward(self, x: Any) -> EveryOutput:
        """See `slide.SparseInputLinear.forward`."""
        x = as_csr(x, self.in_features)
        check_pattern("features", x, None, self.in_features)
        weight, _, columns = self.rows.some(x.indices, None)
        values = sparse_linear(CSR(x.indptr, columns, x.values), weight, self.bias)
        return every_output(values, self.sampler.select(x, None), (x.num_rows,))

    def trainable(self) -> SparseInputLinear:
        """The layer with float32 weights."""
        # Made with one feature: drawing the first weights of all takes seconds.
        return _with_weight(SparseInputLinear(1, self.out_features), self)


class StoredLinear(_StoredLayer):
    """`slide.SampledLinear` of stored rows, for search: it reads rows block by block, or some."""

    precision = "float32"

    def __init__(self, rows: QuantizedRows, bias: Tensor):
        super().__init__(rows, bias, rows.shape[1])
        self._index = LazyRowIndex()
        self._whole: list[Tensor] = []  # The weight as float32, once a search needs it.

    def forward(self, x: Tensor, labels: Any = None) -> Activation | EveryOutput:
        """All outputs of ``x`` ``(B, D)``; ``labels`` do not change them."""
        step = self.rows.at_once(2**14)
        starts = range(0, self.out_features, step)
        parts = [x @ self.rows.block(begin, begin + step).T for begin in starts]
        values = torch.cat(parts, 1) + self.bias
        active = FullSampler(self.in_features, self.out_features).select(x, labels)
        if labels is None:
            return every_output(values, active, (len(x),))
        return Activation(values, active, len(x))

    @torch.no_grad()
    def scores_of(self, x: Tensor, ids: np.ndarray) -> np.ndarray:
        """See `slide.SampledLinear.scores_of`."""

        def scores(active: ActiveSet) -> Tensor:
            weight, bias, ids = self.rows.some(active.ids, self.bias)
            return active_linear(x, weight, bias, ActiveSet(len(weight), ids, active.indptr))

        return at_ids(ids, self.out_features, scores)

    @torch.no_grad()
    def top_k(self, x: Tensor, k: int, search: str = "exact") -> tuple[Tensor, Tensor]:
        """See `slide.SampledLinear.top_k`; ``"sampler"`` converts all rows in its first call."""
        checks.one_of("search", search, SEARCHES)
        if x.ndim != 2 or x.shape[1] != self.in_features:
            raise ValueError(f"input {tuple(x.shape)} does not fit weight {tuple(self.rows.shape)}")
        x = x.float()
        if search == "exact":
            return exact_top_k(x, self.rows, self.bias, k)
        if search == "index":
            return self.row_index().top_k(x, k)
        check_has_index(self.sampler)
        self._whole = self._whole or [self.weight]
        weight = self._whole[0]
        self.sampler.update(weight, self.bias, None)
        return index_top_k(x, weight, self.bias, self.sampler.candidates(x), k)

    def row_index(self) -> RowIndex:
        """See `slide.SampledLinear.row_index`."""
        return self._index.of(self.rows, self.bias)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_whole": []}

    def to_linear(self) -> nn.Linear:
        """An ``nn.Linear`` with float32 copies of weight and bias."""
        return new_linear(self.weight, self.bias)

    def kept(self, numbers: Tensor) -> "StoredLinear":
        """A layer with some of the outputs."""
        found = StoredLinear(self.rows.kept(numbers), self.bias.detach()[numbers])
        found.precision = self.precision
        return found.train(self.training)

    def trainable(self) -> SampledLinear:
        """The layer with float32 weights."""
        return _with_weight(SampledLinear(self.in_features, 1, precision=self.precision), self)


def make_float32(network: SlideNetwork) -> None:
    """Replace layers of quantized rows by float32 layers, so that a network can be trained."""
    for name in ("first", "output"):
        layer: Any = getattr(network, name)
        if isinstance(layer, StoredInputLinear | StoredLinear):
            setattr(network, name, layer.trainable())


def _with_weight(layer: _Layer, stored: Any) -> _Layer:
    layer.in_features, layer.out_features = stored.in_features, stored.out_features
    layer.weight, layer.bias = nn.Parameter(stored.weight, requires_grad=False), stored.bias
    layer.sampler = stored.sampler
    return layer.train(stored.training)
