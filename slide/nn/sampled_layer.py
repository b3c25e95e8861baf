"""The base class of sampled layers: a sampler, which is part of the state of the layer."""

from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from slide.active_set import ActiveSet
from slide.backend import CPU, on_host
from slide.functional.averaged_weights import check_not_averaged
from slide.nn.predicting import learns
from slide.sampling import ActiveSampler, FullSampler, Sampler
from slide.sparse import CSR, as_pattern
from slide.utils import checks

# The living layer that a sampler was given to, by the sampler's id.
_OWNERS: WeakValueDictionary[int, "SampledLayer"] = WeakValueDictionary()


class SampledLayer(nn.Module):
    """A layer with a sampler.

    Args:
        in_features: length of the inputs that the sampler sees.
        out_features: N, number of outputs.
        sampler: chooses among N outputs; None chooses all.
        sparse_grad: whether gradients of the weight are sparse tensors in its ``grad``.

    Raises:
        ValueError: for a number out of range, or a sampler with another number of outputs.
        TypeError: for an object that is no sampler.
    """

    bias: nn.Parameter | None
    host_rows = False
    # What has row gradients, and stays on the host with ``host_rows``.
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
        self._take_sampler()

    def _take_sampler(self) -> None:
        """Raise ValueError if the sampler has another layer, whose rows its index holds."""
        sampler = self.sampler
        if not isinstance(sampler, ActiveSampler):
            return
        width = getattr(sampler.proposer, "in_features", None)
        if width not in (None, self.in_features):
            raise ValueError(
                f"a sampler for inputs of {width} numbers does not fit a layer with inputs of "
                f"{self.in_features}"
            )
        owner = _OWNERS.get(id(sampler))
        if owner not in (None, self) and owner.sampler is sampler:
            raise ValueError(
                f"this sampler chooses for another layer, {owner}: its index and its counters "
                "belong to that layer; make a sampler for each layer"
            )
        _OWNERS[id(sampler)] = self

    def _own_sampler(self) -> Sampler:
        """The sampler, for use: it may have been assigned, or copied together with the layer."""
        if _OWNERS.get(id(self.sampler)) is not self:
            self._take_sampler()
        return self.sampler

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

    def keep_rows_on_host(self) -> None:
        """Set ``host_rows``, before the layer is moved to another device.

        Raises:
            ValueError: for a layer with ``sparse_grad``, or on another device than the CPU.
        """
        weight = getattr(self, "weight", None)  # The constructor has none yet.
        if weight is not None and weight.device != CPU:
            raise ValueError(
                f"the rows of this layer are on {weight.device}: call keep_rows_on_host before "
                "the layer is moved"
            )
        if self.sparse_grad:
            raise ValueError(
                "host_rows=True leaves the gradients of its rows to slide.RowSparseAdam: set "
                "sparse_grad=False"
            )
        self.host_rows = True

    def _on_host(self, x: Tensor) -> Tensor:
        """Inputs as the sampler of rows of the host sees them."""
        if not self.host_rows or not isinstance(x, Tensor) or x.device == CPU:
            return x
        sampler = self.sampler
        if isinstance(sampler, FullSampler) or getattr(sampler, "proposer", self) is None:
            return torch.empty_like(x, device=CPU)  # Their number is enough, and none waits.
        return x.detach().to(CPU)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Moves to other devices leave rows of the host where they are."""
        if not self.host_rows:
            return super()._apply(fn, recurse)
        rows = [p for name in self._of_rows if (p := getattr(self, name)) is not None]
        own = {id(each) for p in rows for each in (p, p.grad)}

        def stay(tensor: Tensor) -> Tensor:
            if id(tensor) not in own:
                return fn(tensor)
            probe = fn(torch.empty(0, dtype=tensor.dtype))
            return fn(tensor) if probe.device == CPU else tensor.to(probe.dtype)

        return super()._apply(stay, recurse)

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, sampler={type(self.sampler).__name__}"

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
