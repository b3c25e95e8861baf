"""Hashing for inner products: weight rows and inputs made comparable before they are hashed.

A hash family answers to the angle (or the order) of vectors, but a layer wants the rows with the
largest ``<w, h> + b``. Three steps lead from one to the other, none of which changes that order:

* the bias joins in: rows become ``[w, b]``, inputs ``[h, 1]``;
* with ``center`` the mean row is taken off every row: that moves all scores of an input by the same
  number, and turns rows that share a direction apart, so that angles tell more;
* with ``norm="simple_lsh"`` rows get one more coordinate that brings them all to the same length,
  and inputs a zero there, so that the angle falls as the inner product grows (Neyshabur and Srebro
  2015, "On symmetric and asymmetric LSHs for inner product search", section 4). With
  ``norm="cosine"`` rows are compared by angle, whatever their length.
"""

import numpy as np
import torch
from torch import Tensor

from slide import checks
from slide.hashing import HashFamily
from slide.sparse import CSR

# Rows hashed at a time: the copy with the extra coordinates stays in the second-level cache.
_BLOCK = 4_096
NORMS = ("cosine", "simple_lsh")


class InnerProductHash:
    """A hash family over rows ``[w, b]`` and inputs ``[h, 1]``.

    Args:
        family: of ``in_features + 2`` coordinates.
        norm: ``"cosine"`` or ``"simple_lsh"``.
        center: whether to take off the mean row.

    Raises:
        ValueError: for an unknown norm.
    """

    def __init__(self, family: HashFamily, norm: str = "cosine", center: bool = True):
        checks.one_of("norm", norm, NORMS)
        checks.flag("center", center)
        self.family = family
        self.norm = norm
        self.center = center
        self.in_features = family.in_features - 2
        self.mean = torch.zeros(family.in_features)
        self.longest = 0.0

    def fit(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take the mean row, and the length of the longest one, from the weight as it is now."""
        d = self.in_features
        self.mean.zero_()
        if self.center:
            self.mean[:d] = weight.mean(0)
            self.mean[d] = bias.mean() if bias is not None else 0.0
        self.longest = 0.0
        if self.norm == "simple_lsh":
            for start in range(0, len(weight), _BLOCK):
                block = self._centered(weight, bias, start)
                self.longest = max(self.longest, float(block.square().sum(1).max()) ** 0.5)

    def row_codes(self, weight: Tensor, bias: Tensor | None) -> np.ndarray:
        """Codes ``(L, N)`` int32 of rows.

        Args:
            weight: ``(N, D)`` floats, any strides.
            bias: ``(N,)`` or None.
        """
        out = np.empty((self.family.num_tables, len(weight)), np.int32)
        for start in range(0, len(weight), _BLOCK):
            block = self._centered(weight, bias, start)
            if self.norm == "simple_lsh":
                missing = self.longest**2 - block.square().sum(1)
                block[:, -1] = missing.clamp_(min=0).sqrt_()
            out[:, start : start + _BLOCK] = self.family.codes(block)
        return out

    def query_codes(self, queries: Tensor | CSR) -> np.ndarray:
        """Codes ``(L, B)`` int32 of inputs, dense ``(B, D)`` or sparse."""
        if isinstance(queries, CSR):
            ends = queries.indptr[1:]
            return self.family.sparse_codes(
                CSR(
                    queries.indptr + np.arange(len(queries.indptr)),
                    np.insert(queries.indices, ends, np.int32(self.in_features)),
                    np.insert(queries.values, ends, queries.values.dtype.type(1)),
                )
            )
        augmented = queries.new_zeros(len(queries), self.in_features + 2)
        augmented[:, : self.in_features] = queries.detach()
        augmented[:, self.in_features] = 1
        return self.family.codes(augmented)

    def _centered(self, weight: Tensor, bias: Tensor | None, start: int) -> Tensor:
        rows = weight[start : start + _BLOCK]
        block = rows.new_zeros(len(rows), self.in_features + 2)
        block[:, : self.in_features] = rows
        if bias is not None:
            block[:, self.in_features] = bias[start : start + _BLOCK]
        return block.sub_(self.mean.to(block.dtype))

    def state_dict(self) -> dict[str, np.ndarray]:
        """The mean row and the length of the longest one."""
        return {"mean": self.mean.numpy().copy(), "longest": np.array(self.longest)}

    def load_state_dict(self, state: dict[str, np.ndarray]) -> None:
        """Put back what `state_dict` gave."""
        self.mean.copy_(torch.from_numpy(state["mean"]))
        self.longest = float(state["longest"])
