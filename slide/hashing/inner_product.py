"""Hashing for inner products: weight rows and inputs made comparable before they are hashed.

A hash family answers to the angle (or the order) of vectors, but a layer wants the rows with the
largest ``<w, h> + b``. Three steps lead from one to the other:

* The bias joins in: rows become ``[w, b]``, inputs ``[h, 1]``.
* With ``center`` rows lose their mean row, and inputs their mean input. The first moves all scores
  of an input by the same number. The second leaves out of each score what the row gets from the
  mean input, the same whatever the input is. Inputs after a ReLU share most of their direction;
  without it they all fall into the same few buckets.
* With ``norm="simple_lsh"`` rows get one more coordinate that brings them all to the same length,
  and inputs a zero there, so that the angle falls as the inner product grows (Neyshabur and Srebro
  2015, "On symmetric and asymmetric LSHs for inner product search", section 4). That length is the
  `LENGTH_QUANTILE` of the rows' lengths, and the few longer rows count as no longer: measured by
  the longest row, all others would look alike. With ``norm="cosine"`` rows are compared by angle,
  whatever their length.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide import checks
from slide.hashing.family import HashFamily
from slide.runtime import profiled
from slide.sparse import CSR

# Rows hashed at a time: the copy with the extra coordinates stays in the second-level cache.
_BLOCK = 4_096
NORMS = ("cosine", "simple_lsh")
LENGTH_QUANTILE = 0.99
# Rows that mean and length are taken from.
SAMPLE = 2**16
# Weight of a new batch in the running mean of inputs, once there have been enough of them.
_NEWEST = 0.02


class InnerProductHash:
    """A hash family over rows ``[w, b]`` and inputs ``[h, 1]``.

    Args:
        family: of ``in_features + 2`` coordinates.
        norm: ``"cosine"`` or ``"simple_lsh"``.
        center: whether to take off the mean row and the mean input.

    Raises:
        ValueError: for an unknown norm.
    """

    def __init__(self, family: HashFamily, norm: str = "simple_lsh", center: bool = True):
        checks.one_of("norm", norm, NORMS)
        checks.flag("center", center)
        self.family = family
        self.norm = norm
        self.center = center
        self.in_features = family.in_features - 2
        self.mean = torch.zeros(family.in_features)
        self.length = 0.0
        self.mean_input = torch.zeros(self.in_features)
        self.batches = 0

    @profiled("hash")
    def observe(self, queries: Tensor | CSR) -> None:
        """Let dense inputs ``(B, D)`` into the running mean of inputs."""
        if not self.center or isinstance(queries, CSR) or not len(queries):
            return
        self.batches += 1
        mean = queries.detach().mean(0).to(self.mean_input.dtype)
        self.mean_input.lerp_(mean, max(_NEWEST, 1 / self.batches))

    def fit(self, weight: Tensor, bias: Tensor | None) -> None:
        """Take the mean row, and the length to compare by, from the weight as it is now.

        Both from `SAMPLE` rows at equal distances, if there are more.
        """
        d, step = self.in_features, -(-len(weight) // SAMPLE)
        rows, biases = weight[::step], None if bias is None else bias[::step]
        self.mean.zero_()
        if self.center:
            self.mean[:d] = rows.mean(0)
            self.mean[d] = biases.mean() if biases is not None else 0.0
        if self.norm == "simple_lsh":
            lengths = self._centered(rows, biases).norm(dim=1)
            place = math.ceil(LENGTH_QUANTILE * len(lengths))
            self.length = float(lengths.kthvalue(place).values)

    def row_codes(self, weight: Tensor, bias: Tensor | None) -> np.ndarray:
        """Codes ``(L, N)`` int32 of rows.

        Args:
            weight: ``(N, D)`` floats, any strides.
            bias: ``(N,)`` or None.
        """
        out = np.empty((self.family.num_tables, len(weight)), np.int32)
        for start in range(0, len(weight), _BLOCK):
            part = slice(start, start + _BLOCK)
            block = self._centered(weight[part], None if bias is None else bias[part])
            if self.norm == "simple_lsh":
                # A longer row keeps a zero there: hashes do not see its length anyway.
                missing = self.length**2 - block.square().sum(1)
                block[:, -1] = missing.clamp_(min=0).sqrt_()
            out[:, part] = self.family.codes(block)
        return out

    @profiled("hash")
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
        augmented = _zeros(queries, self.in_features + 2)
        augmented[:, : self.in_features] = queries.detach() - self.mean_input.to(augmented.dtype)
        augmented[:, self.in_features] = 1
        return self.family.codes(augmented)

    def _centered(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        block = _zeros(rows, self.in_features + 2)
        block[:, : self.in_features] = rows
        if bias is not None:
            block[:, self.in_features] = bias
        return block.sub_(self.mean.to(block.dtype))

    def state_dict(self) -> dict[str, Any]:
        """Mean row, mean input, and the length that rows are compared by."""
        return {
            "mean": self.mean.numpy().copy(),
            "mean_input": self.mean_input.numpy().copy(),
            "batches": self.batches,
            "length": self.length,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        self.mean.copy_(torch.from_numpy(state["mean"]))
        self.mean_input.copy_(torch.from_numpy(state["mean_input"]))
        self.batches, self.length = int(state["batches"]), float(state["length"])


def _zeros(vectors: Tensor, width: int) -> Tensor:
    """``(n, width)``, one row a vector, of a type that is hashed: bfloat16 becomes float32."""
    dtype = torch.float32 if vectors.dtype == torch.bfloat16 else vectors.dtype
    return vectors.new_zeros(len(vectors), width, dtype=dtype)
