"""Hashing for inner products: weights and inputs are transformed before they are hashed.

A hash family responds to the angle (or the order) of vectors, but a layer needs the rows with the
largest ``<w, h> + b``. Three steps turn the second question into the first:

* The bias becomes a coordinate: rows are ``[w, b]``, inputs are ``[h, 1]``.
* With ``center``, the mean row is subtracted from the rows, and the mean input is subtracted from
  the inputs. The first changes all scores of an input by the same number. The second removes from
  the score of each row a part that is the same for all inputs. Inputs after a ReLU have nearly the
  same direction. Without this step they all fall into the same few buckets.
* With ``norm="simple_lsh"``, each row gets one more coordinate, so that rows have the same length.
  Inputs get a zero as this coordinate. Then the angle falls as the inner product grows (Neyshabur
  and Srebro 2015, "On symmetric and asymmetric LSHs for inner product search", section 4). The
  common length is the `LENGTH_QUANTILE` of the lengths of the rows; longer rows get a zero. If the
  common length were the length of the longest row, the extra coordinate would be the largest part
  of most other rows, and their codes would be nearly equal. With ``norm="cosine"``, rows are
  compared by angle, and their length has no effect.
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide import checks
from slide.backend import native, on_device, on_host
from slide.bars import Bar
from slide.hashing.family import HashFamily
from slide.plain.random import random_rows
from slide.runtime import profiled, random_key
from slide.sparse import CSR

# Rows hashed at a time. Their copy with the extra coordinates fits into the second-level cache.
_BLOCK = 4_096
_DEVICE_BLOCK = 2**16
# Blocks from which on hashing may take seconds, so that a bar is worth its own time.
_LONG = 16
NORMS = ("cosine", "simple_lsh")
LENGTH_QUANTILE = 0.99
# The mean row and the length are computed from at most this many rows.
SAMPLE = 2**16
# What a family that learns is shown: so many of the last inputs, and a sample of so many rows.
RECENT, SHOWN = 2_048, 2**14
# Weight of a new batch in the running mean of inputs, after the first 50 batches.
_NEWEST = 0.02


class InnerProductHash:
    """Codes of weight rows and inputs that agree where the inner product is large.

    Args:
        family: a hash family over ``in_features + 2`` coordinates.
        norm: ``"cosine"`` (angle) or ``"simple_lsh"`` (inner product); see the module.
        center: whether to subtract the mean row and the mean input.

    Raises:
        ValueError: for an unknown norm.

    Attributes:
        in_features: D, length of the inputs.

    Example:
        >>> import torch
        >>> from slide.hashing import InnerProductHash, SimHash
        >>> hashed = InnerProductHash(SimHash(in_features=8 + 2, num_tables=4))
        >>> weight, bias = torch.randn(100, 8), torch.zeros(100)
        >>> hashed.fit(weight, bias)
        >>> hashed.row_codes(weight, bias).shape, hashed.query_codes(torch.randn(5, 8)).shape
        ((4, 100), (4, 5))
    """

    def __init__(self, family: HashFamily, norm: str = "simple_lsh", center: bool = True):
        checks.one_of("norm", norm, NORMS)
        checks.flag("center", center)
        self.family = family
        self.norm = norm
        self.center = center
        self.in_features = family.in_features - 2
        self.mean = torch.zeros(family.in_features)
        self.length: float | Tensor = 0.0
        self.mean_input = torch.zeros(self.in_features)
        self.batches = 0
        self.learns = hasattr(family, "learn")
        self.recent: list[Tensor] = []  # The last batches of inputs, for a family that learns.

    @profiled("hash")
    def observe(self, queries: Tensor | CSR) -> None:
        """Add a batch of dense inputs ``(B, D)`` to the running mean of inputs."""
        if isinstance(queries, CSR) or not len(queries):
            return
        if self.learns:
            self.recent.append(queries.detach().float().clone())
            while sum(map(len, self.recent[1:])) >= RECENT:
                del self.recent[0]
        if not self.center:
            return
        self.batches += 1
        self._follow(queries.device)
        old, mean = self.mean_input, queries.detach().mean(0).to(self.mean_input.dtype)
        new = old.lerp(mean, max(_NEWEST, 1 / self.batches))
        # One batch with a NaN would stay in the mean for good. No device is waited for.
        old.copy_(torch.where(new.isfinite(), new, old))

    def fit(self, weight: Tensor, bias: Tensor | None) -> None:
        """Compute the mean row and the common length from the present weight.

        If there are more than `SAMPLE` rows, the computation uses some of them, at equal distances.

        Args:
            weight: ``(N, D)`` floats.
            bias: ``(N,)`` or None.
        """
        self._follow(weight.device)
        step = -(-len(weight) // SAMPLE)
        self.mean.zero_()
        rows = self._centered(weight[::step], None if bias is None else bias[::step])
        # Of all columns together: torch adds one alone up in as many parts as it has threads.
        total, known = rows.sum(0), torch.ones(len(rows), 1, dtype=torch.bool, device=rows.device)
        if rows.device.type != "cpu" or not total.isfinite().all():
            # A row with a NaN, or a mask of -inf as its bias, must not be in all codes.
            known = rows.isfinite().all(1, keepdim=True)
            rows = torch.where(known, rows, 0)
            total = rows.sum(0)
        if self.center:
            self.mean.copy_(total / known.sum().clamp(min=1))
            rows -= self.mean.to(rows.dtype)
        if self.norm == "simple_lsh":
            lengths = rows.norm(dim=1) * known[:, 0]
            place = math.ceil(LENGTH_QUANTILE * len(lengths))
            length = lengths.sort().values[place - 1]  # On GPUs, kthvalue is not deterministic.
            # To read it from another device would wait for that.
            self.length = float(length) if length.device.type == "cpu" else length

    @profiled("learn")
    def learn(self, weight: Tensor, bias: Tensor | None, key: np.uint64) -> None:
        """Show recent inputs and a sample of the rows to a family that learns, after `fit`.

        Rows and inputs with a NaN or an infinite number, such as a bias of -inf, are left out.

        Args:
            weight: ``(N, D)`` floats.
            bias: ``(N,)`` or None.
            key: of all draws.
        """
        if not self.recent:
            return
        learner: Any = self.family
        some = random_rows(int(key), SHOWN, len(weight), weight.device)
        rows = self._prepared(weight[some], None if bias is None else bias[some])
        inputs = self._augmented(self._inputs().to(weight.device))
        rows, inputs = (each[each.isfinite().all(1)] for each in (rows, inputs))
        learner.learn(rows, inputs, int(random_key(int(key), 1)))

    def take_over(self, old: "InnerProductHash") -> None:
        """Keep what inputs have taught the functions for another number of rows.

        What a family has learnt fits one whose codes have the same shape; others begin anew.
        """
        self.mean_input, self.batches, self.recent = old.mean_input, old.batches, old.recent
        new: Any = self.family
        known: Any = old.family
        shapes = [(each.num_tables, each.num_buckets) for each in (new, known)]
        if self.learns and shapes[0] == shapes[1]:
            new.load_state_dict(known.state_dict())

    def _inputs(self) -> Tensor:
        """The last inputs ``(m, D)``."""
        return torch.cat([each.to(self.recent[-1].device) for each in self.recent])[-RECENT:]

    def _follow(self, device: torch.device) -> None:
        """Move the means to the device of the vectors."""
        if self.mean.device != device or self.mean_input.device != device:
            self.mean, self.mean_input = self.mean.to(device), self.mean_input.to(device)
            if isinstance(self.length, Tensor):
                self.length = self.length.to(device)

    def row_codes(self, weight: Tensor, bias: Tensor | None) -> Any:
        """Codes ``(L, N)`` int32 of weight rows: an array, or a tensor as `HashFamily` makes it.

        Args:
            weight: ``(N, D)`` floats, any strides.
            bias: ``(N,)`` or None.
        """
        self._follow(weight.device)
        parts, size = [], _BLOCK if weight.device.type == "cpu" else _DEVICE_BLOCK
        starts: Iterable[int] = range(0, len(weight), size)
        if len(starts) > _LONG:
            starts = Bar(starts, "hashing rows", leave=False)
        for start in starts:
            part = slice(start, start + size)
            block = self._prepared(weight[part], None if bias is None else bias[part])
            parts.append(self.family.codes(block))
        if not parts:
            return np.empty((self.family.num_tables, 0), np.int32)
        join = torch.cat if isinstance(parts[0], Tensor) else np.concatenate
        return join(parts, 1)

    @profiled("hash")
    def query_codes(self, queries: Tensor | CSR, probes: int = 0) -> Any:
        """Codes ``(L, B)`` int32 of inputs, dense ``(B, D)`` or sparse; see `row_codes`.

        With ``probes``, codes ``((1 + probes) L, B)`` of dense inputs; see `HashFamily`.
        """
        if isinstance(queries, CSR):
            ends = queries.indptr[1:]
            augmented = CSR(
                queries.indptr + np.arange(len(queries.indptr)),
                np.insert(queries.indices, ends, np.int32(self.in_features)),
                np.insert(queries.values, ends, queries.values.dtype.type(1)),
            )
            return native(on_device(self.family.sparse_codes(augmented), self.mean.device))
        self._follow(queries.device)
        family: Any = self.family  # Further codes are an optional method.
        augmented = self._augmented(queries)
        return family.probe_codes(augmented, probes) if probes else family.codes(augmented)

    def _augmented(self, queries: Tensor) -> Tensor:
        """Dense inputs ``(B, D + 2)``, as they are hashed."""
        augmented = _zeros(queries, self.in_features + 2)
        augmented[:, : self.in_features] = queries.detach() - self.mean_input.to(augmented.dtype)
        augmented[:, self.in_features] = 1
        return augmented

    def _prepared(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        """Rows ``(n, D + 2)``, as they are hashed."""
        block = self._centered(rows, bias)
        if self.norm == "simple_lsh":
            # A longer row gets a zero. Its codes depend only on its direction.
            missing = self.length**2 - block.square().sum(1)
            block[:, -1] = missing.clamp_(min=0).sqrt_()
        return block

    def _centered(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        block = _zeros(rows, self.in_features + 2)
        block[:, : self.in_features] = rows
        if bias is not None:
            block[:, self.in_features] = bias
        return block.sub_(self.mean.to(block.dtype))

    def state_dict(self) -> dict[str, Any]:
        """Mean row, mean input, number of batches seen, and common length; what was learnt."""
        learner: Any = self.family
        learnt = {"family": learner.state_dict()} if self.learns else {}
        if self.recent:
            learnt["recent"] = on_host(self._inputs()).copy()
        return {
            "mean": on_host(self.mean).copy(),
            "mean_input": on_host(self.mean_input).copy(),
            "batches": self.batches,
            "length": float(self.length),
            **learnt,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.mean.copy_(torch.from_numpy(state["mean"]))
        self.mean_input.copy_(torch.from_numpy(state["mean_input"]))
        self.batches, self.length = int(state["batches"]), float(state["length"])
        if self.learns:
            learner: Any = self.family
            learner.load_state_dict(state["family"])
            self.recent = [torch.from_numpy(state["recent"].copy())] if "recent" in state else []


def _zeros(vectors: Tensor, width: int) -> Tensor:
    """Zeros ``(n, width)`` of the type of ``vectors``; float32 if their type is bfloat16."""
    dtype = torch.float32 if vectors.dtype == torch.bfloat16 else vectors.dtype
    return vectors.new_zeros(len(vectors), width, dtype=dtype)
