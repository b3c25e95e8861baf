"""Scratch arrays that a layer keeps from step to step."""

import math

import numpy as np
import torch

from slide.kernels.votes import PARTS, SharedScratch
from slide.runtime import num_threads


class Scratch:
    """Arrays with one entry an output, made once and handed from step to step.

    Every kernel that borrows one gives it back as it was (all -1, or all 0), so no step clears or
    allocates anything of length N.

    Args:
        out_features: N.
    """

    def __init__(self, out_features: int):
        self.out_features = out_features
        self._arrays: dict[str, np.ndarray] = {}
        self._tensors: dict[str, torch.Tensor] = {}

    def slots(self) -> np.ndarray:
        """``(N,)`` int32, all -1."""
        return self._get("slots", (self.out_features,), np.int32, -1)

    def marks(self, runs: int) -> np.ndarray:
        """``(runs, N)`` uint8, all 0."""
        return self._get(f"marks{runs}", (runs, self.out_features), np.uint8, 0)

    def ballot_box(
        self, num_tables: int, num_samples: int, num_buckets: int, capacity: int
    ) -> SharedScratch:
        """For `slide.kernels.votes.vote_shared`."""
        runs, span = num_threads(), 1 << (-(-self.out_features // PARTS) - 1).bit_length()
        # A table holds an id once.
        room = num_tables * min(min(num_samples, num_buckets) * capacity, self.out_features)
        return SharedScratch(
            hits=self._get("hits", (num_tables, num_buckets), np.int32, 0),
            votes=self._get(f"votes{runs}", (runs, span), np.int32, 0),
            buckets=self._get("buckets", (num_tables, num_samples), np.int32, 0),
            weights=self._get("weights", (num_tables, num_samples), np.int32, 0),
            cursors=self._get("cursors", (num_tables, PARTS), np.int64, 0),
            ids=self._get("ids", (room,), np.int32, 0),
            ballots=self._get("ballots", (room,), np.int32, 0),
            histogram=self._get("histogram", (runs, num_tables * num_samples + 1), np.int64, 0),
        )

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Uninitialised; for use within one call. Large fresh memory has to be zeroed first."""
        found = self._tensors.get(name)
        if found is None or found.dtype != dtype or found.numel() < math.prod(shape):
            with torch.inference_mode(False):
                found = self._tensors[name] = torch.empty(math.prod(shape), dtype=dtype)
        return found[: math.prod(shape)].view(shape)

    def _get(self, name: str, shape: tuple[int, ...], dtype: type, fill: int) -> np.ndarray:
        found = self._arrays.get(name)
        if found is None or found.shape != shape:
            found = self._arrays[name] = np.full(shape, fill, dtype)
        return found

    def __deepcopy__(self, memo: dict) -> "Scratch":
        return Scratch(self.out_features)

    def __getstate__(self) -> dict:
        return {"out_features": self.out_features, "_arrays": {}, "_tensors": {}}
