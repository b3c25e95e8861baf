"""Weight rows in memory or in a file: floats, bfloat16, or int8 with scales.

Quantized rows stay mapped from their file; a computation turns the rows that it reads into float32.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from slide.utils import checks

DTYPES_OF_FILES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
# Numbers that are converted at a time: as float32 they fit into a cache, and a block of them is
# long enough that its calls do not count.
_NUMBERS = 1 << 20
# Rows that are rounded at a time.
_BLOCK = 16_384


class QuantizedRows(NamedTuple):
    """N rows of bfloat16 or int8, with ``(N,)`` float32 scales, which are read as float32."""

    codes: Tensor
    scales: Tensor | None = None

    @classmethod
    def of(cls, weight: Tensor, dtype: str) -> "QuantizedRows":
        """Round rows; int8 is off by half of a 127th of a row's largest entry at most."""
        checks.one_of("dtype", dtype, ("bfloat16", "int8"))
        if dtype == "bfloat16":
            return cls(weight.bfloat16())
        codes, scales = torch.empty(weight.shape, dtype=torch.int8), []
        for block, out in zip(weight.split(_BLOCK), codes.split(_BLOCK), strict=True):
            largest = block.float().abs().amax(1)
            if not largest.isfinite().all():
                raise ValueError("weights that are not finite cannot be saved as int8")
            scales.append(largest / 127)
            # A subnormal scale would make numbers beyond 127.
            scale = scales[-1].clamp(min=torch.finfo(torch.float32).tiny)[:, None]
            out.copy_((block.float() / scale).round().clamp(-127, 127))
        return cls(codes, torch.cat(scales))

    @property
    def shape(self) -> torch.Size:
        """``(N, D)``."""
        return self.codes.shape

    @property
    def dtype(self) -> torch.dtype:
        """The type in which rows are read."""
        return torch.float32

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What is stored."""
        return (self.codes,) if self.scales is None else (self.codes, self.scales)

    def block(self, begin: int, end: int) -> Tensor:
        """Consecutive rows, float32."""
        return self._floats(slice(begin, end))

    def take(self, numbers: Tensor) -> Tensor:
        """Rows of these numbers, float32."""
        return self._floats(numbers)

    def float(self) -> Tensor:
        """All rows, float32: this takes four bytes for each number."""
        return self._floats(slice(None))

    def kept(self, numbers: Tensor) -> "QuantizedRows":
        """Some of the rows, as they are."""
        scales = None if self.scales is None else self.scales[numbers]
        return QuantizedRows(self.codes[numbers], scales)

    def at_once(self, wanted: int) -> int:
        """How many rows to read at a time, at most ``wanted``."""
        return max(1, min(wanted, _NUMBERS // max(1, self.shape[1])))

    def lengths(self) -> Tensor:
        """``(N,)`` Euclidean lengths."""
        return torch.cat([block.norm(dim=1) for block in self._blocks()])

    def some(
        self, ids: np.ndarray, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None, np.ndarray]:
        """The rows that occur in ``ids``, their biases, and where the ids are among them, int32."""
        distinct, positions = np.unique(ids, return_inverse=True)
        at = torch.from_numpy(distinct.astype(np.int64)).to(self.codes.device)
        positions = positions.reshape(ids.shape).astype(np.int32)
        return self.take(at), None if bias is None else bias.detach()[at], positions

    def _blocks(self) -> Iterator[Tensor]:
        step = self.at_once(_BLOCK)
        return (self.block(begin, begin + step) for begin in range(0, self.shape[0], step))

    def _floats(self, rows: slice | Tensor) -> Tensor:
        found = self.codes[rows].float()
        return found if self.scales is None else found.mul_(self.scales[rows, None])


class TensorRows(NamedTuple):
    """The rows of a tensor, with the members of `QuantizedRows`; they keep their type."""

    weight: Tensor

    @property
    def shape(self) -> torch.Size:
        """``(N, D)``."""
        return self.weight.shape

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What is stored."""
        return (self.weight,)

    def block(self, begin: int, end: int) -> Tensor:
        """Consecutive rows, a view."""
        return self.weight[begin:end]

    def take(self, numbers: Tensor) -> Tensor:
        """Rows of these numbers, float32."""
        return self.weight[numbers].float()

    def at_once(self, wanted: int) -> int:
        """How many rows to read at a time: as many as wanted, since none are converted."""
        return wanted

    def lengths(self) -> Tensor:
        """``(N,)`` Euclidean lengths."""
        return self.weight.norm(dim=1)

    def some(
        self, ids: np.ndarray, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None, np.ndarray]:
        """The weight and the bias themselves; see `QuantizedRows.some`."""
        return self.weight, bias, ids


def weight_rows(weight: Tensor | QuantizedRows) -> TensorRows | QuantizedRows:
    """Rows of either kind, for readers."""
    return weight if isinstance(weight, QuantizedRows) else TensorRows(weight.detach())
