"""A linear layer that computes only the outputs which its sampler chooses, and searches them."""

import functools
import math
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor, nn

from slide import functional as F
from slide.active_set import ActiveSet, check_active
from slide.backend import on_host
from slide.functional.autograd import check_takes_rows, in_eval, outside_autocast
from slide.functional.linear import (
    DTYPES,
    PRECISIONS,
    active_linear,
    check_linear,
    linear_loss_on_set,
    linear_on_set,
)
from slide.functional.losses import ActiveLoss
from slide.runtime import generator
from slide.sampling import ActiveSampler, FullSampler, Sampler
from slide.search import RowIndex, exact_top_k, index_top_k
from slide.search.row_index import LazyRowIndex
from slide.sparse import CSR, Pattern, as_pattern
from slide.utils import checks
from slide.utils.array_checks import is_plain
from slide.utils.checks import ScoresNotFinite
from slide.utils.profiling import untraced

SEARCHES = ("exact", "index", "sampler")
# The living layer that a sampler was given to, by the sampler's id.
_OWNERS: WeakValueDictionary[int, "SampledLayer"] = WeakValueDictionary()
_thread = threading.local()
# Where a state dict has the state of a sampler: in the metadata of the layer.
_SAMPLER = "sampler"
# The losses that `SampledLinear.loss` is asked for by name, checked and made once.
_named_loss = functools.cache(ActiveLoss)
# 16,384 outputs: 16 times as many as the sets of an `ActiveSampler` have by default.
_MANY_OUTPUTS = 2**14


_WAYS_ON = (
    "For a loss call layer.loss(x, labels, 'softmax'), or slide.ActiveLoss('softmax')(out.values, "
    "out.active); out.values are the scores of the active set, and out.to_dense() has zeros for "
    "the other outputs; in eval() the layer gives a tensor of all of them"
)


class Activation(NamedTuple):
    """The outputs of a layer on its active set.

    Attributes:
        values: ``(nnz,)`` in the order of ``active.ids``; for a shared set ``(B, A)``, or
            ``(B, A, H, W)`` from a convolution.
        active: the active set, out of N outputs.
        num_samples: B.
        lead: the leading dimensions of the inputs, whose product is B; None: ``(B,)``.

    Example:
        >>> import slide, torch
        >>> layer = slide.SampledLinear(4, 100, slide.ActiveSampler(4, 100, active=10))
        >>> out = layer(torch.randn(2, 4))
        >>> out.values.shape, out.to_dense().shape
        (torch.Size([2, 10]), torch.Size([2, 100]))
    """

    values: Tensor
    active: ActiveSet
    num_samples: int
    lead: tuple[int, ...] | None = None

    def to_dense(self) -> Tensor:
        """``(..., N)`` with zeros outside of the set, for inputs ``(..., D)``.

        This is for hidden layers, where N is some thousands: it takes B x N numbers.
        """
        dense = F.scatter_active(self.values, self.active, self.num_samples)
        return dense if self.lead is None else dense.view(*self.lead, *dense.shape[1:])

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> Any:
        """Functions of PyTorch take tensors: the message names the ways on."""
        name = getattr(function, "__name__", function)
        raise TypeError(f"{name} takes a tensor, not the Activation of a sampled layer. {_WAYS_ON}")

    if not TYPE_CHECKING:  # Else checkers of types would let every name pass.

        def __getattr__(self, name: str) -> Any:
            """What only tensors have: the message names the ways on."""
            more = f": a tensor has it. {_WAYS_ON}" if hasattr(Tensor, name) else ""
            raise AttributeError(f"the Activation of a sampled layer has no {name}{more}")


class EveryOutput(Tensor):
    """The outputs of a layer in ``eval()``: a tensor of all N, which has what `Activation` has.

    Inputs ``(..., D)`` give ``(..., N)``. What PyTorch computes from it is an ordinary tensor.

    Example:
        >>> import slide, torch
        >>> layer = slide.SampledLinear(4, 6, slide.ActiveSampler(4, 6, active=3)).eval()
        >>> outputs = layer(torch.ones(2, 4))
        >>> tuple(outputs.shape), outputs.active.ids.tolist()
        ((2, 6), [0, 1, 2, 3, 4, 5])
    """

    active: ActiveSet
    num_samples: int
    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    @property
    def values(self) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The same as an ordinary tensor."""
        return self.as_subclass(Tensor)

    def to_dense(self, *_: Any, **__: Any) -> Tensor:
        """The same as an ordinary tensor; see `Activation.to_dense`."""
        return self.values

    def _replace(self, **changes: Any) -> Activation:
        return Activation(self.values, self.active, self.num_samples)._replace(**changes)


def every_output(values: Tensor, active: ActiveSet, lead: Sequence[int]) -> EveryOutput:
    """Values of all samples on a complete set; ``lead``: the leading dimensions of the inputs."""
    found = values.view(*lead, *values.shape[1:]).as_subclass(EveryOutput)
    found.active, found.num_samples = active, math.prod(lead)
    return found


class ToDense(nn.Module):
    """Turns an `Activation` into a tensor with zeros, for the next module of an ``nn.Sequential``.

    Example:
        >>> import slide, torch
        >>> sampler = slide.ActiveSampler(4, 100, active=10)
        >>> stack = torch.nn.Sequential(slide.SampledLinear(4, 100, sampler), slide.ToDense())
        >>> stack(torch.randn(2, 4)).shape
        torch.Size([2, 100])
    """

    def forward(self, x: Activation | EveryOutput) -> Tensor:
        """``(..., N)``; see `Activation.to_dense`."""
        return x.to_dense()


@contextmanager
def predicting() -> Iterator[None]:
    """Compute as in ``eval()`` in this thread alone; others may use the same modules."""
    before, _thread.predicts = getattr(_thread, "predicts", False), True
    try:
        yield
    finally:
        _thread.predicts = before


def learns(module: nn.Module) -> bool:
    """Whether a module computes as in training mode."""
    return module.training and not getattr(_thread, "predicts", False)


def check_finite(scores: Tensor) -> None:
    """Raise `ScoresNotFinite` for a row of ``(B, n)`` that is not finite: a search finds no NaN."""
    fine = scores.isfinite().all(1)
    if not fine.all():
        raise ScoresNotFinite(int(fine.logical_not().nonzero()[0]))


class SampledLayer(nn.Module):
    """A layer with a sampler, which chooses among its outputs and is part of its state."""

    bias: nn.Parameter | None
    # What has row gradients.
    _of_rows: tuple[str, ...] = ("weight", "bias")

    def __init__(
        self, in_features: int, out_features: int, sampler: Sampler | None, sparse_grad: bool
    ):
        super().__init__()
        self.in_features = checks.whole("in_features", in_features, 1)
        self.out_features = checks.whole("out_features", out_features, 1)
        checks.flag("sparse_grad", sparse_grad)
        self.sparse_grad = sparse_grad
        self.sampler = FullSampler(in_features, out_features) if sampler is None else sampler
        self._by_default = self.sampler if sampler is None else None
        if isinstance(sampler, type) or not hasattr(self.sampler, "select"):
            such = f"slide.ActiveSampler({in_features}, {out_features})"
            raise TypeError(f"sampler must be a slide.Sampler, such as {such}, not {sampler!r}")
        if self.sampler.out_features != out_features:
            raise ValueError(
                f"a sampler of {self.sampler.out_features} outputs does not fit a layer of "
                f"{out_features}"
            )
        self._own_sampler()

    def _own_sampler(self) -> Sampler:
        """The sampler, for use: it may have been assigned, or copied together with the layer."""
        sampler = self.sampler
        owner = _OWNERS.get(id(sampler))
        if owner is self or not isinstance(sampler, ActiveSampler):
            return sampler
        width = getattr(sampler.proposer, "in_features", None)
        if width not in (None, self.in_features):
            raise ValueError(
                f"a sampler for inputs of {width} numbers does not fit a layer with inputs of "
                f"{self.in_features}"
            )
        if owner is not None and owner.sampler is sampler:
            raise ValueError(
                f"this sampler chooses for another layer, {owner}: its index and its counters "
                "belong to that layer; make a sampler for each layer"
            )
        _OWNERS[id(sampler)] = self
        return sampler

    def _choose(self, x: Tensor | CSR, rows: Tensor, labels: Any) -> ActiveSet:
        """The active set of inputs, for weights ``rows`` ``(N, D)``; of prediction, all."""
        if torch.compiler.is_compiling():  # `untraced` hides it from all others than exporters.
            raise TypeError("a sampled layer cannot be exported: export what its to_linear() gives")
        training, sampler = learns(self), self.sampler
        draws = training and torch.is_grad_enabled() and isinstance(sampler, ActiveSampler)
        check_takes_rows(*[getattr(self, name) for name in self._of_rows], draws=draws)
        if not training and labels is None:
            return FullSampler(rows.shape[1], rows.shape[0]).select(x, None)
        if labels is not None:
            labels = as_pattern(labels, self.out_features)
        sampler = self._own_sampler()
        if sampler is self._by_default and training and torch.is_grad_enabled():
            self._warn_of_all_outputs()
        sampler.update(rows, self.bias, x if training else None)
        return sampler.select(x, labels)

    def _check_computed(self) -> None:
        """Raise TypeError where a hook of `forward` computes the weight, which may be outdated."""
        computed = (isinstance(vars(self).get(name), Tensor) for name in self._of_rows)
        if self._forward_pre_hooks and any(computed):
            raise TypeError(
                "a hook computes the weight before each forward pass, as that of "
                "torch.nn.utils.prune, weight_norm or spectral_norm does, and only layer(x, labels)"
                " runs it: take slide.ActiveLoss of its values, remove the hook, or compute the "
                "weight by torch.nn.utils.parametrize"
            )

    def _warn_of_all_outputs(self) -> None:
        """Warn once of a large layer that has no sampler."""
        if self.out_features >= _MANY_OUTPUTS:
            self._by_default = None
            warnings.warn(
                f"{type(self).__name__}({self.in_features}, {self.out_features}) has no sampler, so"
                " each step computes all its outputs, as nn.Linear does: give it a sampler, such as"
                f" slide.ActiveSampler({self.in_features}, {self.out_features}), or "
                "slide.FullSampler of the same sizes if it is to compute all",
                stacklevel=2,
            )

    def _activation(
        self, values: Tensor, active: ActiveSet, lead: Sequence[int]
    ) -> Activation | EveryOutput:
        """The outputs for inputs of leading dimensions; in ``eval()`` without labels, a tensor."""
        if learns(self) or active.targets is not None or not active.complete:
            return Activation(values, active, math.prod(lead), tuple(lead))
        return every_output(values, active, lead)

    def extra_repr(self) -> str:
        bias = ", bias=False" if self.bias is None else ""
        return f"{self.in_features}, {self.out_features}{bias}, sampler={self.sampler!r}"

    def sampler_state(self) -> dict[str, Any]:
        """The state of the sampler, as tensors, numbers and dicts of them."""
        return _to_tensors(self.sampler.state_dict())

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Put the state of the sampler beside the weights, where an ``nn.Linear`` ignores it."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]][_SAMPLER] = self.sampler_state()

    def _load_from_state_dict(self, *arguments: Any, **keywords: Any) -> None:
        """Take also a state without that of a sampler, which then indexes the new rows."""
        super()._load_from_state_dict(*arguments, **keywords)
        state, prefix, beside, _, missing, *_ = arguments  # As `nn.Module` passes them.
        key = f"{prefix}_extra_state"
        if key in missing:
            missing.remove(key)
        if key in state:  # Of earlier versions; `nn.Module` has loaded it.
            return
        if _SAMPLER in beside:
            self.set_extra_state(beside[_SAMPLER])
        elif f"{prefix}weight" in state:
            self.sampler.forget_index()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what `sampler_state` returned."""
        self.sampler.load_state_dict(_to_arrays(state))


def _to_tensors(state: Any) -> Any:
    """Nested dicts with tensors in place of arrays; ``torch.load`` reads tensors safely."""
    if isinstance(state, dict):
        return {key: _to_tensors(value) for key, value in state.items()}
    return torch.from_numpy(state) if hasattr(state, "__array_interface__") else state


def _to_arrays(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _to_arrays(value) for key, value in state.items()}
    if not isinstance(state, Tensor):
        return state
    try:
        if is_plain(state):
            return on_host(state)
    except (RuntimeError, TypeError):  # NumPy has no such type.
        pass
    raise ValueError(f"a state of a sampler has a tensor {tuple(state.shape)} that is no plain one")


def check_dtype(dtype: Any, dtypes: Sequence[torch.dtype]) -> None:
    """Raise TypeError for a type that a layer does not compute with; None: PyTorch's default."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if dtype not in dtypes:
        raise TypeError(f"dtype must be one of {', '.join(map(str, dtypes))}, not {dtype}")


def new_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """An ``nn.Linear`` with copies of a weight ``(N, D)`` and a bias ``(N,)``."""
    linear = nn.Linear(1, 1, bias is not None)  # Drawing N x D first weights would take seconds.
    linear.out_features, linear.in_features = weight.shape
    for name, values in (("weight", weight), ("bias", bias)):
        if values is not None:
            setattr(linear, name, nn.Parameter(values.detach().clone().contiguous()))
    return linear


def check_module(module: Any, kind: type[nn.Module], dtypes: Sequence[torch.dtype]) -> None:
    """Raise TypeError unless a layer can take the weights of a module of PyTorch."""
    if not isinstance(module, kind):
        raise TypeError(f"weights come from an nn.{kind.__name__}, not {type(module).__name__}")
    for parameter in module.parameters():
        check_dtype(parameter.dtype, dtypes)


class SampledLinear(SampledLayer):
    """``nn.Linear`` that computes only the outputs which its sampler chooses.

    The gradients of weight and bias have rows (see `slide.functional`), for
    `slide.RowSparseAdam`. With ``sparse_grad`` they are sparse tensors, like the gradients of
    ``nn.Embedding(sparse=True)``, for ``torch.optim.SparseAdam``, ``SGD`` and ``Adagrad``.

    Args:
        in_features: D.
        out_features: N.
        sampler: chooses among N outputs; None computes all.
        precision: precision of the products with a shared set; see `slide.active_linear`.
        sparse_grad: whether gradients of weight and bias are sparse tensors in their ``grad``.
        init_scale: small first weights help if most outputs are rarely learnt: such outputs then
            add less noise to the gradients of other layers.
        device: as in PyTorch.
        dtype: float32, bfloat16 or float64.

    Raises:
        ValueError: for a number or name out of range, or a sampler with another number of outputs.
        TypeError: for another dtype.

    Attributes:
        weight: ``(N, D)`` float32. It begins uniform in +-init_scale/sqrt(D); with a scale of 1,
            this is the range of ``nn.Linear``.
        bias: ``(N,)`` float32, or None. It begins at zero.

    Example:
        >>> import slide, torch
        >>> sampler = slide.ActiveSampler(16, 1000, slide.LSHProposer, active=64)
        >>> layer = slide.SampledLinear(16, 1000, sampler)
        >>> x, labels = torch.randn(2, 16), slide.Pattern.from_lists([[3], [5, 7]])
        >>> layer(x, labels).values.shape
        torch.Size([2, 64])
        >>> scores, ids = layer.top_k(x, k=5)
        >>> ids.shape
        torch.Size([2, 5])
    """

    weight: nn.Parameter

    def __init__(
        self,
        in_features: int,
        out_features: int,
        sampler: Sampler | None = None,
        bias: bool = True,
        precision: str = "float32",
        sparse_grad: bool = False,
        init_scale: float = 1.0,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(in_features, out_features, sampler, sparse_grad)
        checks.one_of("precision", precision, PRECISIONS)
        checks.positive("init_scale", init_scale)
        check_dtype(dtype, DTYPES)
        self.precision = precision
        bound = init_scale / math.sqrt(in_features)
        weight = torch.empty(out_features, in_features, dtype=dtype, device=device)
        self.weight = nn.Parameter(
            weight.uniform_(-bound, bound, generator=generator(weight.device))
        )
        zeros = torch.zeros(out_features, dtype=dtype, device=device) if bias else None
        self.bias = None if zeros is None else nn.Parameter(zeros)
        self._index = LazyRowIndex()

    @classmethod
    def from_linear(
        cls, linear: nn.Linear, sampler: Sampler | None = None, **options: Any
    ) -> "SampledLinear":
        """A layer with copies of the weight and the bias of an ``nn.Linear``, in their type.

        ``sampler``, and ``precision`` and ``sparse_grad`` as ``options``, belong to the new layer.
        TypeError for another module, or weights of another type.

        Example:
            >>> import slide, torch
            >>> linear = torch.nn.Linear(16, 1000)
            >>> layer = slide.SampledLinear.from_linear(linear, slide.ActiveSampler(16, 1000))
            >>> torch.equal(layer.to_linear().weight, linear.weight)
            True
        """
        check_module(linear, nn.Linear, DTYPES)
        layer = cls(
            *(linear.in_features, linear.out_features, sampler, linear.bias is not None),
            device=linear.weight.device,
            dtype=linear.weight.dtype,
            **options,
        )
        layer.load_state_dict(linear.state_dict())
        return layer

    def to_linear(self) -> nn.Linear:
        """An ``nn.Linear`` with copies of weight and bias, in their type."""
        self._check_computed()
        return new_linear(self.weight, self.bias)

    @untraced
    def forward(self, x: Tensor, labels: Any = None) -> Activation | EveryOutput:
        """The outputs of the active set of ``x`` ``(B, D)``; in ``eval()`` without labels, all N.

        Args:
            x: inputs, also ``(..., D)``: the leading dimensions count samples.
            labels: outputs that must be in the set of each sample, in any form that
                `slide.as_pattern` takes, or one for each in the shape of the leading dimensions; a
                loss takes them as targets.

        Returns:
            The values, ``(B, A)`` for a shared set, else ``(nnz,)``, and the active set. In
            ``eval()`` without labels it is a tensor ``(..., N)`` that has the same attributes.

        Errors: see `slide.active_linear`.
        """
        x, precision, outside = outside_autocast(x, self.weight, self.precision)
        x, lead = _in_rows(x)
        labels = _flat(labels, lead)
        with outside, in_eval(not learns(self)):
            active = self._active_set(x, labels)
            values = linear_on_set(x, self.weight, self.bias, active, precision, self.sparse_grad)
        return self._activation(values, active, lead)

    @untraced
    def loss(
        self,
        x: Tensor,
        labels: Any,
        loss: str | Callable[[Tensor, ActiveSet], Tensor],
        weights: Any = None,
        ignore_index: int = -100,
    ) -> tuple[Tensor, ActiveSet]:
        """The loss of `forward`, a scalar, and the active set.

        With `slide.ActiveLoss` and a shared set this takes less time and memory than the loss of
        the values that `forward` returns; see `slide.functional.active_linear_loss`.

        Args:
            x: ``(B, D)`` inputs, or ``(..., D)``, such as ``(B, T, D)`` of a language model: the
                leading dimensions count samples.
            labels: the targets, B rows in any form that `slide.as_pattern` takes; or one label for
                each sample in the shape of the leading dimensions.
            loss: the name of a loss, such as ``"softmax"``, an `slide.ActiveLoss`, or a function
                of scores ``(B, A)`` or ``(nnz,)`` and the set, which returns a scalar.
            weights: ``(B,)`` factors of the losses of the samples, at least 0, for the first two;
                None: all are 1.
            ignore_index: samples with this label are left out, as in ``nn.CrossEntropyLoss``, if
                labels are one for each sample. The mean is over the others.

        Errors: see `slide.functional.active_linear_loss`.
        """
        self._check_computed()
        loss = _named_loss(loss) if isinstance(loss, str) else loss
        of_torch = getattr(loss, "__module__", "") == "torch.nn.functional"
        if not callable(loss) or of_torch or isinstance(loss, nn.modules.loss._Loss):
            raise TypeError(
                "loss must be a name such as 'softmax' (cross-entropy), an ActiveLoss, which has "
                "label_smoothing, class_weights and temperature, or a function of scores and "
                f"active set, not {getattr(loss, '__name__', loss)}"
            )
        if weights is not None and not isinstance(loss, ActiveLoss):
            raise TypeError("weights of samples need an ActiveLoss")
        x, labels, weights = _as_samples(x, labels, weights, ignore_index)
        x, precision, outside = outside_autocast(x, self.weight, self.precision)
        with outside, in_eval(not learns(self)):
            active = self._active_set(x, labels, targets=isinstance(loss, ActiveLoss))
            if not isinstance(loss, ActiveLoss):
                values = linear_on_set(
                    x, self.weight, self.bias, active, precision, self.sparse_grad
                )
                return loss(values, active), active
            mean = linear_loss_on_set(
                x,
                self.weight,
                self.bias,
                active,
                loss.record,
                loss.hard_fraction,
                precision=precision,
                sparse_grad=self.sparse_grad,
                weights=loss.sample_weights(active, weights),
            )
        return mean, active

    def _active_set(self, x: Tensor, labels: Any, targets: bool = False) -> ActiveSet:
        """The active set of inputs; inputs, set and targets are checked here, and not again."""
        check_linear(x, self.weight, self.bias)
        active = self._choose(x, self.weight, labels)
        check_active(active, len(x), len(self.weight), targets)
        return active

    @untraced
    @torch.no_grad()
    def top_k(self, x: Tensor, k: int, search: str = "exact") -> tuple[Tensor, Tensor]:
        """The k best outputs of each input ``(B, D)``, or ``(..., D)``.

        Args:
            k: in [1, N].
            search: ``"exact"`` scores all outputs, in blocks. ``"index"`` scores the few that
                `row_index` brings up; it may miss some of the best. ``"sampler"`` scores the
                candidates of the sampler's index, which was made for training.

        Returns:
            Scores and ids (int64), both ``(..., k)``, best first. If an input has fewer than k
            candidates, the remaining scores are -inf and the ids are -1.

        Raises:
            ValueError: for a k out of range, an unknown ``search``, or ``"sampler"`` with a sampler
                that has no index.
        """
        self._check_computed()
        checks.one_of("search", search, SEARCHES)
        x, _, outside = outside_autocast(x, self.weight)
        x, lead = _in_rows(x)
        check_linear(x, self.weight, self.bias)
        with outside:
            if search == "exact":
                scores, ids = exact_top_k(x, self.weight, self.bias, k)
            elif search == "index":
                scores, ids = self.row_index().top_k(x, k)
            else:
                scores, ids = index_top_k(x, self.weight, self.bias, self.candidates(x), k)
        return scores.view(*lead, k), ids.view(*lead, k)

    @untraced
    @torch.no_grad()
    def scores_of(self, x: Tensor, ids: np.ndarray) -> np.ndarray:
        """The scores ``(B, K)`` float32 of some outputs of each input ``(B, D)``.

        ``ids`` ``(B, K)`` are distinct in a row; below 0 there is no output, and the score is 0.
        """
        self._check_computed()
        x = x.to(self.weight.device)
        scored = functools.partial(active_linear, x, self.weight.detach(), self.bias)
        return at_ids(ids, self.out_features, scored)

    def row_index(self) -> RowIndex:
        """The index of `top_k` over the rows of the weight as they are now.

        The first call makes it, and so does each call after weight or bias changed
        (`slide.search.RowIndex.fits`): that takes a few seconds for some 100,000 outputs. It is no
        part of the state of the layer, and copies of the layer make their own.
        """
        self._check_computed()
        return self._index.of(self.weight, self.bias)

    def candidates(self, x: Tensor) -> Pattern:
        """The candidates of the sampler's index for inputs ``(B, D)``; ValueError without one."""
        check_has_index(self.sampler)
        self._check_computed()
        sampler = self._own_sampler()
        sampler.update(self.weight, self.bias, None)
        return sampler.candidates(x)


def _in_rows(x: Any) -> tuple[Any, tuple[int, ...]]:
    """Inputs ``(..., D)`` as ``(B, D)``, and their leading dimensions."""
    if not isinstance(x, Tensor) or x.ndim in (0, 2):
        return x, tuple(x.shape[:1]) if isinstance(x, Tensor) else ()
    return x[None] if x.ndim == 1 else x.flatten(0, -2), tuple(x.shape[:-1])


def _flat(each: Any, lead: tuple[int, ...]) -> Any:
    """What has a number for each sample, in the shape of the leading dimensions, as ``(B,)``."""
    if getattr(each, "shape", None) != lead:
        return each
    return (each if isinstance(each, Tensor) else np.asarray(each)).reshape(-1)


def _as_samples(x: Any, labels: Any, weights: Any, ignored: int) -> tuple[Any, Any, Any]:
    """Inputs ``(B, D)``, labels and weights of samples, without samples of an ignored label."""
    if not isinstance(x, Tensor):
        return x, labels, weights  # Which is an error.
    x, lead = _in_rows(x)
    labels, weights = _flat(labels, lead), _flat(weights, lead)
    dense = getattr(labels, "layout", None) == torch.strided or isinstance(labels, np.ndarray)
    if dense and labels.ndim == 2 and "float" in str(labels.dtype) and (labels % 1 > 0).any():
        raise ValueError("labels have fractions: probabilities of labels are no targets here")
    if isinstance(labels, list) and labels and all(isinstance(i, int) for i in labels):
        labels = np.array(labels)
    if not isinstance(labels, np.ndarray | Tensor) or labels.shape != (len(x),):
        return x, labels, weights
    if labels.dtype in (bool, object, torch.bool, torch.bfloat16):
        return x, labels, weights
    known = on_host(labels)
    kept = np.flatnonzero(known != ignored)
    if len(kept) < len(known):
        at = torch.from_numpy(kept)
        x, labels = x.index_select(0, at.to(x.device)), known[kept]
        weights = None if weights is None else checks.row_weights("weights", weights, len(known))
        weights = None if weights is None else weights[kept]
    return x, labels, weights


def check_has_index(sampler: Sampler) -> None:
    """Raise ValueError for a sampler without an index."""
    if not sampler.has_index:
        raise ValueError(
            "search=sampler needs a sampler with an index, such as "
            f"ActiveSampler(..., LSHProposer); this {type(sampler).__name__} has none"
        )


def at_ids(ids: np.ndarray, out_features: int, scored: Callable[[ActiveSet], Tensor]) -> np.ndarray:
    """The scores of the outputs ``ids`` ``(B, K)`` of each input; see `SampledLinear.scores_of`."""
    known, pattern = ids >= 0, Pattern.from_padded(ids)
    active = ActiveSet(out_features, pattern.indices, pattern.indptr)
    out = np.zeros(ids.shape, np.float32)
    out[known] = on_host(scored(active).float())
    return out
