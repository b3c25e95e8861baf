"""The sampler that always chooses all outputs: a dense layer."""

from typing import Any

import numpy as np
from torch import Tensor

from slide.active_set import ActiveSet, Scratch
from slide.sampling.protocol import Queries, Sampler, num_queries
from slide.sparse import Pattern, check_labels


class FullSampler(Sampler):
    """Chooses all outputs.

    Args:
        in_features: D, not used; other samplers have this argument, too.
        out_features: N, number of outputs.

    Example:
        >>> import slide, torch
        >>> slide.FullSampler(8, 5).select(torch.randn(2, 8), None).ids
        array([0, 1, 2, 3, 4], dtype=int32)
    """

    def __init__(self, in_features: int, out_features: int):
        self.resize(out_features)

    def resize(self, out_features: int) -> None:
        """See `Sampler.resize`."""
        self.out_features = out_features
        self._ids = np.arange(out_features, dtype=np.int32)
        self._scratch = Scratch(out_features)

    def update(self, weight: Tensor, bias: Tensor | None, inputs: Queries | None) -> None:
        """Does nothing."""

    def select(self, queries: Queries, labels: Pattern | None) -> ActiveSet:
        """All outputs, in order."""
        if labels is not None:
            check_labels("labels", labels, num_queries(queries), self.out_features)
        return ActiveSet(self.out_features, self._ids, None, labels, None, self._scratch)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Does nothing: all outputs are computed, whatever sampler the state is of."""
