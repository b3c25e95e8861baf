"""What sampled layers share: the base class, the output on an active set, and prediction.

Predictions of a network in training mode do not call ``eval()`` and ``train()``: these would change
modules that other threads may use at the same time, and would forget that some of them were in
``eval()`` before. So the thread that predicts says it by `predicting`.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from slide import functional as F
from slide.active_set import ActiveSet
from slide.backend import on_host
from slide.functional.autograd import check_not_averaged
from slide.sampling import ActiveSampler, FullSampler, Sampler
from slide.sparse import CSR, as_pattern
from slide.utils import checks
from slide.utils.checks import ScoresNotFinite

# The living layer that a sampler was given to, by the sampler's id.
_OWNERS: WeakValueDictionary[int, "SampledLayer"] = WeakValueDictionary()
_thread = threading.local()


class Activation(NamedTuple):
    """The outputs of a layer on its active set.

    Attributes:
        values: ``(nnz,)`` in the order of ``active.ids``; for a shared set ``(B, A)``, or
            ``(B, A, H, W)`` from a convolution.
        active: the active set, out of N outputs.
        num_samples: B.

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

    def to_dense(self) -> Tensor:
        """``(B, N)`` with zeros outside of the set.

        This is for hidden layers, where N is some thousands: it takes B x N numbers.
        """
        return F.scatter_active(self.values, self.active, self.num_samples)

    @classmethod
    def __torch_function__(cls, function: Any, *_: Any) -> Any:
        """Functions of PyTorch take tensors: the message names the ways on."""
        name = getattr(function, "__name__", function)
        raise TypeError(
            f"{name} takes a tensor, not the Activation of a sampled layer. For a loss call "
            "layer.loss(x, labels, 'softmax'), or slide.ActiveLoss('softmax')(out.values, "
            "out.active); out.values are the scores of the active set, and out.to_dense() has "
            "zeros for the other outputs"
        )


class ToDense(nn.Module):
    """Turns an `Activation` into a tensor with zeros, for the next module of an ``nn.Sequential``.

    Example:
        >>> import slide, torch
        >>> sampler = slide.ActiveSampler(4, 100, active=10)
        >>> stack = torch.nn.Sequential(slide.SampledLinear(4, 100, sampler), slide.ToDense())
        >>> stack(torch.randn(2, 4)).shape
        torch.Size([2, 100])
    """

    def forward(self, x: Activation) -> Tensor:
        """``(B, N)``; see `Activation.to_dense`."""
        return x.to_dense()


@contextmanager
def predicting() -> Iterator[None]:
    """Networks and layers of slide compute as in ``eval()`` in this thread.

    Example:
        >>> import slide
        >>> from slide.nn.sampled_layer import learns, predicting
        >>> layer = slide.SampledLinear(4, 9)
        >>> with predicting():
        ...     learns(layer), layer.training
        (False, True)
    """
    before, _thread.predicts = getattr(_thread, "predicts", False), True
    try:
        yield
    finally:
        _thread.predicts = before


def learns(module: nn.Module) -> bool:
    """Whether a module computes as in training mode."""
    return module.training and not getattr(_thread, "predicts", False)


def check_finite(scores: Tensor) -> None:
    """Raise `slide.utils.checks.ScoresNotFinite` for a row of ``(B, n)`` that is not finite.

    These are scores, or the hidden layer that they follow from: a search finds no output whose
    score is NaN, so the scores that it found do not show it.
    """
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
        in_features = checks.whole("in_features", in_features, 1)
        out_features = checks.whole("out_features", out_features, 1)
        checks.flag("sparse_grad", sparse_grad)
        self.in_features = in_features
        self.out_features = out_features
        self.sparse_grad = sparse_grad
        self.sampler = sampler or FullSampler(in_features, out_features)
        if isinstance(sampler, type) or not hasattr(self.sampler, "select"):
            raise TypeError(f"sampler must be a slide.Sampler, not {sampler!r}")
        if self.sampler.out_features != out_features:
            raise ValueError(
                f"a sampler of {self.sampler.out_features} outputs does not fit a layer of "
                f"{out_features}"
            )
        self._own_sampler()

    def _own_sampler(self) -> Sampler:
        """The sampler, for use: it may have been assigned, or copied together with the layer.

        Raises:
            ValueError: if it is the sampler of another layer, whose rows its index holds.
        """
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
        """The active set of inputs ``x``; ``rows`` ``(N, D)`` holds the weights of the outputs.

        Prediction computes all outputs, because it must not depend on draws or on the batch.
        """
        check_not_averaged(*(getattr(self, name) for name in self._of_rows))
        training = learns(self)
        if not training and labels is None:
            return FullSampler(rows.shape[1], rows.shape[0]).select(x, None)
        if labels is not None:
            labels = as_pattern(labels, self.out_features)
        sampler = self._own_sampler()
        sampler.update(rows, self.bias, x if training else None)
        return sampler.select(x, labels)

    def extra_repr(self) -> str:
        bias = ", bias=False" if self.bias is None else ""
        return f"{self.in_features}, {self.out_features}{bias}, sampler={self.sampler!r}"

    def get_extra_state(self) -> dict[str, Any]:
        """The state of the sampler; part of ``state_dict``."""
        return _to_tensors(self.sampler.state_dict())

    def _load_from_state_dict(self, *arguments: Any, **keywords: Any) -> None:
        """Take also the state of a layer of PyTorch, which has no sampler.

        The sampler then keeps its seeds and counters, and indexes the new rows before it is used.
        """
        super()._load_from_state_dict(*arguments, **keywords)
        state, prefix, _, _, missing, *_ = arguments  # As `nn.Module` passes them.
        key = f"{prefix}_extra_state"
        if key not in state and f"{prefix}weight" in state:
            self.sampler.forget_index()
            if key in missing:
                missing.remove(key)

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_extra_state` returned."""
        self.sampler.load_state_dict(_to_arrays(state))


def _to_tensors(state: Any) -> Any:
    """Nested dicts with tensors in place of arrays; ``torch.load`` reads tensors safely."""
    if isinstance(state, dict):
        return {key: _to_tensors(value) for key, value in state.items()}
    return torch.from_numpy(state) if hasattr(state, "__array_interface__") else state


def _to_arrays(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _to_arrays(value) for key, value in state.items()}
    return on_host(state) if isinstance(state, Tensor) else state


def check_dtype(dtype: Any, dtypes: Sequence[torch.dtype]) -> None:
    """Raise TypeError for a type that a layer does not compute with; None: PyTorch's default."""
    if dtype is not None and dtype not in dtypes:
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
