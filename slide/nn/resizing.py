"""Layers that get more or fewer outputs, or features, while they are trained."""

import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np
import torch

from slide.nn.sampled_linear import SampledLinear
from slide.nn.sparse_linear import SparseInputLinear
from slide.optim import resize_rows
from slide.optim.row_sparse_adam import check_has
from slide.runtime import generator
from slide.utils import checks

# New outputs begin with a bias that this share of the outputs is below: that of rare labels.
_RARE = 0.1
# Of each layer, for the thread that trains or resizes it; `_LOOK_UP` is held to find one.
_CHANGED: WeakKeyDictionary[torch.nn.Module, checks.Alone] = WeakKeyDictionary()
_LOOK_UP = Lock()


@contextmanager
def changing(*layers: torch.nn.Module) -> Iterator[None]:
    """A block that trains or resizes layers; RuntimeError while another thread does so.

    Weights that it makes can be trained, and gradients are computed, wherever it is entered.
    """
    with ExitStack() as held:
        held.enter_context(torch.inference_mode(False))
        held.enter_context(torch.enable_grad())
        for layer in layers:
            with _LOOK_UP:
                alone = _CHANGED.setdefault(
                    layer,
                    checks.Alone(
                        "another thread is training or resizing this model now: hold a lock around "
                        "what changes a model"
                    ),
                )
            held.enter_context(alone)
        yield


def add_outputs(
    layer: SampledLinear,
    count: int,
    optimizer: torch.optim.Optimizer | None = None,
    init_scale: float = 1.0,
    bias: float | None = None,
) -> None:
    """Append outputs to a layer; its sampler, and the state of its optimizer, follow.

    The other outputs keep their numbers, weights and moments. The index of the sampler is built
    again before the next set, and that of `slide.SampledLinear.row_index` at the next search. All
    rows are copied, so add many outputs at a time.

    Args:
        count: number of new outputs.
        optimizer: of weight and bias; None: no state follows.
        init_scale: scale of the first weights; see `slide.SampledLinear`.
        bias: the first bias of all new outputs; None: a low one of the layer (a tenth of its biases
            is lower), since a new label is rare.

    Raises:
        ValueError: for a number below 1, or an optimizer of other parameters.

    Example:
        >>> import slide, torch
        >>> from slide.nn import add_outputs
        >>> layer = slide.SampledLinear(8, 100, slide.ActiveSampler(8, 100, active=20))
        >>> optimizer = slide.RowSparseAdam(layer.parameters())
        >>> add_outputs(layer, 3, optimizer)
        >>> layer.weight.shape, len(layer(torch.randn(2, 8), [[101], [5]]).active.ids)
        (torch.Size([103, 8]), 20)
    """
    checks.whole("count", count, 1)
    checks.positive("init_scale", init_scale)
    check_has(optimizer, layer.weight, layer.bias)  # Before one of them changes.
    with changing(layer):
        bound = init_scale / math.sqrt(layer.in_features)
        weight = layer.weight.detach()
        added = weight.new_empty(count, layer.in_features)
        added.uniform_(-bound, bound, generator=generator(weight.device))
        if layer.bias is not None:
            known = layer.bias.detach().float()
            low = float(known.kthvalue(max(1, round(_RARE * len(known)))).values)
            first = layer.bias.new_full((count,), low if bias is None else bias)
            resize_rows(layer.bias, None, first, optimizer)
        resize_rows(layer.weight, None, added, optimizer)
        _take_outputs(layer)


def remove_outputs(
    layer: SampledLinear, outputs: Iterable[int], optimizer: torch.optim.Optimizer | None = None
) -> np.ndarray:
    """Remove outputs of a layer; its sampler, and the state of its optimizer, follow.

    The outputs that stay are numbered anew, in their order.

    Args:
        outputs: numbers of outputs in [0, N); at least one output must stay.
        optimizer: of weight and bias; None: no state follows.

    Returns:
        ``(n,)`` int64, the old numbers of the outputs that stay.

    Raises:
        ValueError: for a number out of range, if none would stay, or an optimizer of other
            parameters.

    Example:
        >>> import slide
        >>> from slide.nn import remove_outputs
        >>> layer = slide.SampledLinear(8, 5)
        >>> remove_outputs(layer, [1, 3]), layer.out_features
        (array([0, 2, 4]), 3)
    """
    gone = np.array(sorted(set(outputs)), np.int64)
    if len(gone) and not 0 <= gone[0] <= gone[-1] < layer.out_features:
        raise ValueError(f"outputs must lie in [0, {layer.out_features}), not {gone.tolist()}")
    kept = np.setdiff1d(np.arange(layer.out_features), gone)
    if not len(kept):
        raise ValueError(f"one of the {layer.out_features} outputs must stay")
    check_has(optimizer, layer.weight, layer.bias)  # Before one of them changes.
    with changing(layer):
        at = torch.from_numpy(kept)
        for p in (layer.weight, layer.bias):
            if p is not None:
                resize_rows(p, at, p.detach()[:0], optimizer)
        _take_outputs(layer)
    return kept


def add_features(
    layer: SparseInputLinear,
    count: int,
    optimizer: torch.optim.Optimizer | None = None,
    init_scale: float = 1.0,
) -> None:
    """Append features to a layer with sparse input; the state of its optimizer follows.

    Args:
        count: number of new features.
        optimizer: of the weight; None: no state follows.
        init_scale: scale of the first weights; see `slide.SparseInputLinear`.

    Raises:
        ValueError: for a number below 1, an optimizer of other parameters, or a sampler with an
            index over the features.

    Example:
        >>> import slide
        >>> from slide.nn import add_features
        >>> layer = slide.SparseInputLinear(100, 8)
        >>> add_features(layer, 5)
        >>> layer.weight.shape
        torch.Size([105, 8])
    """
    checks.whole("count", count, 1)
    checks.positive("init_scale", init_scale)
    if getattr(layer.sampler, "proposer", None) is not None:
        raise ValueError("the sampler of the layer hashes its features, so they cannot become more")
    scale = init_scale / math.sqrt(layer.out_features)
    added = layer.weight.detach().new_empty(count, layer.out_features)
    added.normal_(0, scale, generator=generator(added.device))
    with changing(layer):
        resize_rows(layer.weight, None, added, optimizer)
        layer.in_features += count


def _take_outputs(layer: SampledLinear) -> None:
    layer.out_features = len(layer.weight)
    layer.sampler.resize(layer.out_features)
