"""A network whose first and last layers are shared out among processes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from slide.distributed.first_rows import uniform_rows
from slide.distributed.group import Group
from slide.distributed.input_linear import ShardedInputLinear
from slide.distributed.output_linear import ShardedOutputLinear
from slide.distributed.shares import Shares
from slide.nn import SlideNetwork
from slide.nn.network import SamplerFactory
from slide.sampling import FullSampler
from slide.utils.random_keys import random_key

# What the keys of draws are for.
_FIRST, _OUTPUT, _HIDDEN, _DROPOUT = range(4)
# The layer of a rank's own outputs, in the layer of outputs.
_LOCAL = "output.local."


class ShardedNetwork(SlideNetwork):
    """`slide.SlideNetwork` on several processes, each with a share of the features and labels.

    All ranks see the same batches. A training step sends one ``(B, H)`` tensor for the first layer
    and one for the gradients of the last one, however many features and labels there are. Hidden
    layers are the same on all ranks. Dropout draws from a counter, so all ranks draw the same. With
    a complete set of outputs, the results do not depend on the number of processes, but for
    rounding.

    Args:
        in_features: number of features.
        hidden: widths of the hidden layers, at least one.
        out_features: number of outputs (labels).
        sampler: makes the sampler of a rank's outputs; see `ShardedOutputLinear`.
        group: the processes.
        feature_counts: ``(in_features,)``, how often each feature occurs, the same on all ranks;
            see `Shares`.
        label_counts: ``(out_features,)``, how often each label occurs.
        seed: seed of first weights and dropout, the same on all ranks.
        options: ``dropout``, ``precision``, ``init_scale``, ``output_scale``, ``input_dropout`` and
            ``hidden_samplers`` of `slide.SlideNetwork`. These draw uniformly, and the first one is
            None.

    Raises:
        ValueError: for more processes than features or labels, another hidden sampler, or as in
            `slide.SlideNetwork`.

    Attributes:
        draws: number of passes that have drawn for dropout; part of ``state_dict``.

    Example:
        >>> import torch, slide
        >>> from slide.distributed import Group, ShardedNetwork
        >>> network = ShardedNetwork(100, [16], 1000, slide.FullSampler, Group.alone())
        >>> scores, ids = network.predict(torch.ones(1, 100), k=5)
        >>> ids.shape
        torch.Size([1, 5])
    """

    draws: torch.Tensor

    def __init__(
        self,
        in_features: int,
        hidden: Sequence[int],
        out_features: int,
        sampler: SamplerFactory,
        group: Group,
        *,
        feature_counts: np.ndarray | None = None,
        label_counts: np.ndarray | None = None,
        seed: int = 0,
        **options: Any,
    ):
        if any(list(options.get("hidden_samplers", ()))[:1]):
            raise ValueError(
                "on several processes the first hidden layer computes all its neurons: its sampler "
                "must be None"
            )
        place = group.rank, group.size
        features = Shares("features", in_features, *place, feature_counts)
        labels = Shares("labels", out_features, *place, label_counts)
        # Made with one feature and one output; the layers with the rows of this rank follow.
        with torch.random.fork_rng(devices=[]):
            super().__init__(1, hidden, 1, FullSampler, **options)
        self.group, self.seed = group, seed
        scale, key = options.get("init_scale", 1.0), self._key(_FIRST)
        self.first = ShardedInputLinear(features, hidden[0], group, scale, key)  # type: ignore[assignment]
        scale, key = options.get("output_scale", 1.0), self._key(_OUTPUT)
        self.output = ShardedOutputLinear(  # type: ignore[assignment]
            *(hidden[-1], labels, group, sampler, scale, key),
            precision=options.get("precision", "float32"),
        )
        for layer in self.hidden:
            if getattr(layer.sampler, "has_index", False):
                raise ValueError(
                    "on several processes hidden neurons can be drawn uniformly, and not looked "
                    f"up: a rounding could let the processes choose otherwise; not {layer.sampler}"
                )
        for number, layer in enumerate(self.layers()[1:-1]):
            size, width = layer.weight.shape
            key = self._key(_HIDDEN, number)
            layer.weight.data.copy_(uniform_rows(key, np.arange(size), width, width**-0.5))
        self.register_buffer("draws", torch.zeros((), dtype=torch.int64))

    def _apply(self, fn: Any, recurse: bool = True) -> "ShardedNetwork":
        draws = self.draws
        super()._apply(fn, recurse)
        self.draws = draws  # It stays on the host, which counts.
        return self

    def _key(self, *what: int) -> int:
        return int(random_key(self.seed, *what))

    def _generator(self) -> torch.Generator | None:
        """What dropout draws from: the draws of a pass follow from its number, on all ranks."""
        self.draws += 1
        return torch.Generator().manual_seed(self._key(_DROPOUT, int(self.draws)))

    def shared_rows(self) -> dict[str, Shares]:
        """The parameters that have the rows of this rank only, by name, and which rows these are.

        All other parameters are the same on all ranks.
        """
        output = {
            f"output.local.{name}": self.output.shares  # type: ignore[attr-defined]
            for name, _ in self.output.local.named_parameters()  # type: ignore[attr-defined]
        }
        return {"first.weight": self.first.shares, **output}  # type: ignore[dict-item]


def plain_name(name: str) -> str:
    """The name of a parameter or buffer in the network of one process.

    Example:
        >>> from slide.distributed.network import plain_name
        >>> plain_name("output.local.bias")
        'output.bias'
    """
    return f"output.{name.removeprefix(_LOCAL)}" if name.startswith(_LOCAL) else name
