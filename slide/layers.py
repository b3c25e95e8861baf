"""Layers for any PyTorch model: sparse input, sampled output."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from slide import checks
from slide import functional as F
from slide.active import ActiveSet, Scratch, transpose
from slide.indexed_sampling import LSHSampler
from slide.losses import ActiveLoss, active_linear_loss
from slide.mips import exact_top_k
from slide.runtime import outside_autocast, untraced
from slide.sampling import FullSampler, Sampler
from slide.sparse import CSR, Pattern, check_pattern


class Activation(NamedTuple):
    """The outputs of a layer on its active set.

    Attributes:
        values: ``(B, A)`` for a shared set, else ``(nnz,)`` in the order of ``active.ids``.
        active: which outputs these are.
        num_samples: B.
    """

    values: Tensor
    active: ActiveSet
    num_samples: int

    def to_dense(self) -> Tensor:
        """``(B, N)`` with zeros off the active set; for hidden layers, as it costs B x N."""
        return F.scatter_active(self.values, self.active, self.num_samples)


class ToDense(nn.Module):
    """An `Activation` as a tensor, zeros and all, for what follows in an ``nn.Sequential``."""

    def forward(self, x: Activation) -> Tensor:
        """``(B, N)``; see `Activation.to_dense`."""
        return x.to_dense()


class SampledLayer(nn.Module):
    """What sampled layers share: a sampler, which is part of the layer's state."""

    bias: nn.Parameter | None

    def __init__(
        self, in_features: int, out_features: int, sampler: Sampler | None, sparse_grad: bool
    ):
        super().__init__()
        checks.whole("in_features", in_features, 1)
        checks.whole("out_features", out_features, 1)
        checks.flag("sparse_grad", sparse_grad)
        self.in_features = in_features
        self.out_features = out_features
        self.sparse_grad = sparse_grad
        self.sampler = sampler or FullSampler(in_features, out_features)
        if self.sampler.out_features != out_features:
            raise ValueError(
                f"a sampler of {self.sampler.out_features} outputs does not fit a layer of "
                f"{out_features}"
            )

    def _choose(self, x: Tensor | CSR, rows: Tensor, labels: Pattern | None) -> ActiveSet:
        """The active set of inputs ``x``; ``rows`` ``(N, D)`` holds the weights of one output each.

        Prediction computes all outputs: it must depend neither on draws nor on the batch.
        """
        if not self.training and labels is None:
            return FullSampler(rows.shape[1], rows.shape[0]).select(x, None)
        self.sampler.update(rows, self.bias, x if self.training else None)
        return self.sampler.select(x, labels)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, sampler={type(self.sampler).__name__}"

    def get_extra_state(self) -> dict[str, Any]:
        """The sampler's state; part of ``state_dict``."""
        return _to_tensors(self.sampler.state_dict())

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Put back what `get_extra_state` gave."""
        self.sampler.load_state_dict(_to_arrays(state))


class LSHLinear(SampledLayer):
    """``nn.Linear`` that computes only the outputs which its sampler chooses.

    The gradients of weight and bias come as rows (see `slide.functional`), for
    `slide.optim.RowSparseAdam`; with ``sparse_grad`` as sparse tensors, as ``nn.Embedding`` gives
    them, for ``torch.optim.SparseAdam``, ``SGD`` and ``Adagrad``.

    Args:
        in_features: D.
        out_features: N.
        sampler: chooses among N outputs; None computes all.
        bias: whether to add one.
        precision: of the products with a shared set; see `slide.functional.active_linear`.
        sparse_grad: whether gradients of weight and bias are sparse tensors in their ``grad``.
        init_scale: of the first weights. Where most outputs are hardly ever learnt, small ones are
            less noise for the rest of the network to fight.

    Raises:
        ValueError: where the sampler has another number of outputs, or a scale is not above 0.

    Attributes:
        weight: ``(N, D)``, uniform in +-init_scale/sqrt(D) at first; 1 is as in ``nn.Linear``.
        bias: ``(N,)``, zero at first, or None.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sampler: Sampler | None = None,
        bias: bool = True,
        precision: str = "float32",
        sparse_grad: bool = False,
        init_scale: float = 1.0,
    ):
        super().__init__(in_features, out_features, sampler, sparse_grad)
        checks.one_of("precision", precision, F.PRECISIONS)
        checks.positive("init_scale", init_scale)
        self.precision = precision
        bound = init_scale / math.sqrt(in_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None

    @untraced
    def forward(self, x: Tensor, labels: Pattern | None = None) -> Activation:
        """The outputs of the active set of ``x`` ``(B, D)``; in ``eval()`` without labels, all N.

        Args:
            x: inputs.
            labels: outputs that must be in each sample's set; the loss takes them as targets.

        Raises:
            ValueError, TypeError: see `slide.functional.active_linear`.
        """
        x, precision, outside = outside_autocast(x, self.weight, self.precision)
        F.check_linear(x, self.weight, self.bias)
        with outside:
            active = self._choose(x, self.weight, labels)
            values = F.active_linear(x, self.weight, self.bias, active, precision, self.sparse_grad)
        return Activation(values, active, len(x))

    @untraced
    def loss(self, x: Tensor, labels: Pattern, loss: ActiveLoss) -> tuple[Tensor, ActiveSet]:
        """The loss of `forward`, a scalar, and the active set.

        With a shared set it takes less time and memory than the loss of the values that `forward`
        gives; see `slide.losses.active_linear_loss`.

        Args:
            x: ``(B, D)`` inputs.
            labels: the targets.
            loss: which one.
        """
        x, precision, outside = outside_autocast(x, self.weight, self.precision)
        F.check_linear(x, self.weight, self.bias)
        with outside:
            active = self._choose(x, self.weight, labels)
            mean = active_linear_loss(
                x,
                self.weight,
                self.bias,
                active,
                loss.name,
                precision,
                loss.hard_fraction,
                self.sparse_grad,
            )
        return mean, active

    @untraced
    @torch.no_grad()
    def top_k(self, x: Tensor, k: int, search: str = "exact") -> tuple[Tensor, Tensor]:
        """The k best outputs of each input.

        Args:
            x: ``(B, D)``.
            k: at most the number of outputs.
            search: ``"exact"`` scores all outputs, in blocks; ``"lsh"`` only those in the hash
                buckets of the input, of which there may be fewer than k: -1 then.

        Returns:
            scores and ids (int64), both ``(B, k)``, best first.

        Raises:
            ValueError: for another ``search``, or ``"lsh"`` without hash tables.
        """
        checks.one_of("search", search, ("exact", "lsh"))
        x, _, outside = outside_autocast(x, self.weight, self.precision)
        F.check_linear(x, self.weight, self.bias)
        with outside:
            return self._top_k(x, k, search)

    def _top_k(self, x: Tensor, k: int, search: str) -> tuple[Tensor, Tensor]:
        if search == "exact":
            return exact_top_k(x, self.weight, self.bias, k)
        if not isinstance(self.sampler, LSHSampler):
            raise ValueError(
                "search='lsh' needs an output layer with hash tables (sampler=lsh), not "
                f"{type(self.sampler).__name__}"
            )
        self.sampler.update(self.weight, self.bias, None)
        found = self.sampler.candidates(x)
        scores = x.new_full((len(x), k), -torch.inf)
        ids = torch.full((len(x), k), -1, dtype=torch.int64)
        for b in range(len(x)):
            own = torch.from_numpy(np.unique(found.indices[found.indptr[b] : found.indptr[b + 1]]))
            if not len(own):
                continue
            own = own.long()
            bias = None if self.bias is None else self.bias[own]
            best, places = exact_top_k(x[b : b + 1], self.weight[own], bias, min(k, len(own)))
            scores[b, : best.shape[1]], ids[b, : best.shape[1]] = best[0], own[places[0]]
        return scores, ids


class SparseLinear(SampledLayer):
    """A linear layer with sparse input: the weighted sum of one weight row a non-zero feature.

    With a sampler only the chosen outputs go on; the others count as zero, and so does their
    gradient. All of them are computed even so: a feature's weights lie side by side, and reading
    a thousand of them in one run costs no more than picking a quarter of them apart.

    Args:
        in_features: D.
        out_features: H.
        sampler: chooses among H outputs; None takes all.
        init_scale: about the length of the output for an input of length 1, at first. Features that
            are seen seldom or never keep what they got then: a small number makes them count less.
        sparse_grad: whether the weight's gradient is a sparse tensor in its ``grad``, rather than
            rows for `slide.optim.RowSparseAdam`. The bias has a dense one.

    Raises:
        ValueError: for a number out of range, or a sampler with another number of outputs.

    Attributes:
        weight: ``(D, H)``, normal with standard deviation init_scale/sqrt(H) at first.
        bias: ``(H,)``, zero at first.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sampler: Sampler | None = None,
        init_scale: float = 1.0,
        sparse_grad: bool = False,
    ):
        super().__init__(in_features, out_features, sampler, sparse_grad)
        checks.positive("init_scale", init_scale)
        weight = torch.empty(in_features, out_features)
        self.weight = nn.Parameter(weight.normal_(0, init_scale / math.sqrt(out_features)))
        self.bias = nn.Parameter(torch.zeros(out_features))
        self._scratch = Scratch(in_features)

    @untraced
    def forward(self, x: CSR) -> Activation:
        """The outputs of the active set of a CSR matrix ``(B, D)``; in ``eval()``, all H.

        Raises:
            ValueError: for a column out of range, or a malformed matrix.
        """
        check_pattern("features", x, None, self.in_features)
        grouped = None
        if torch.is_grad_enabled() and self.weight.requires_grad:
            grouped = transpose(Pattern(x.indptr, x.indices), self._scratch)
        active = self._choose(x, self.weight.T, None)
        values = F.sparse_linear(x, self.weight, self.bias, grouped, self.sparse_grad)
        return Activation(F.gather_active(values, active), active, x.num_rows)


class CSRLinear(nn.Module):
    """``nn.Linear`` whose weight is a large sparse matrix with a fixed pattern.

    Forward and backward stream over the entries; see `slide.functional.csr_matmul`. The entries'
    gradient is an ordinary dense one, for any of PyTorch's optimizers.

    Args:
        matrix: ``(N, D)`` weight.
        bias: whether to add one.
        trainable: whether the entries are a parameter. If they are not, the matrix is used as it
            is, and one matrix may serve several layers.

    Attributes:
        matrix: the pattern, and the entries at first.
        values: ``(nnz,)`` entries; a parameter, or a buffer.
        bias: ``(N,)``, zero at first, or None.
    """

    values: Tensor

    def __init__(self, matrix: F.CSRMatrix, bias: bool = True, trainable: bool = True):
        super().__init__()
        self.matrix = matrix
        self.out_features, self.in_features = matrix.shape
        self.trainable = trainable
        if trainable:
            self.values = nn.Parameter(matrix.values.clone())
        else:
            self.register_buffer("values", matrix.values)
        dtype = matrix.values.dtype
        self.bias = nn.Parameter(torch.zeros(self.out_features, dtype=dtype)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """``x @ matrix.T + bias``: ``(..., D)`` to ``(..., N)``.

        Raises:
            ValueError: for another last dimension; TypeError: where types differ.
        """
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(f"input {tuple(x.shape)} does not fit a matrix {self.matrix.shape}")
        if not self.trainable and self.matrix.values is not self.values:
            # After `double()`, say.
            self.matrix = self.matrix.with_values(self.values)
            self.values = self.matrix.values
        columns = x.reshape(-1, self.in_features).T
        y = F.csr_matmul(self.matrix, columns, self.values if self.trainable else None).T
        y = y.reshape(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, entries={len(self.values)}"

    def get_extra_state(self) -> dict[str, Any]:
        """The pattern; part of ``state_dict``."""
        return {"indptr": self.matrix.indptr, "indices": self.matrix.indices}

    def _load_from_state_dict(self, *arguments: Any, **keywords: Any) -> None:
        if not self.trainable:
            # What is loaded must not get into the matrix, which others may use.
            self.values = self.values.clone()
        super()._load_from_state_dict(*arguments, **keywords)

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Put back what `get_extra_state` gave, around the values loaded before."""
        if len(state["indptr"]) != self.out_features + 1:
            raise ValueError(
                f"a pattern of {len(state['indptr']) - 1} rows does not fit a layer of "
                f"{self.out_features} outputs"
            )
        indptr, indices = state["indptr"].numpy().astype(np.int64), state["indices"].numpy()
        csr = CSR(indptr, indices, self.values.detach().numpy())
        self.matrix = F.CSRMatrix(csr, self.in_features)
        if not self.trainable:
            self.values = self.matrix.values


def _to_tensors(state: Any) -> Any:
    """Nested dicts with arrays turned into tensors, which ``torch.save`` reads back safely."""
    if isinstance(state, dict):
        return {key: _to_tensors(value) for key, value in state.items()}
    return torch.from_numpy(state) if hasattr(state, "__array_interface__") else state


def _to_arrays(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _to_arrays(value) for key, value in state.items()}
    return state.numpy() if isinstance(state, Tensor) else state
