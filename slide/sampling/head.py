"""The head of an index: rows that every input scans, by products of 8-bit matrices."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from slide.backend import array_view, has_int8
from slide.ops.sketches import (
    FIRST,
    PRIOR,
    SCALE,
    Rows,
    at_least,
    is_no_row,
    no_keys,
    rank_rows,
    rounded_queries,
)
from slide.sparse import Pattern

# Products in a block: 4 MB, which stay in the caches of a core.
_PRODUCTS = 2**20
# A large head is ranked in two passes: this many sampled rows give a threshold that enough rows
# exceed, with 4 standard deviations of safety. A large head has at least 8 times these rows.
_SAMPLE, _UNSURE, _TIMES = 2048, 4, 8
# Number of rows is padded to a multiple of this: oneDNN generates code for each new shape.
_UNIT = 512


def bound_of(scores: np.ndarray, most: int) -> np.float32:
    """The score ``(N,)`` float32 above which there are ``most`` rows; -inf does not count."""
    scores = np.append(np.float32(-np.inf), scores[scores > -np.inf])
    at = max(0, len(scores) - 1 - most)
    return np.partition(scores, at)[at]


class Head:
    """The sketches of some rows in one matrix, for matrix products.

    The order of the rows has no effect on which of them are the best.

    Args:
        ids: ``(n,)`` int32, the rows.
        sketches: ``(N, W)`` int8, of all rows; see `slide.ops.sketches`.
    """

    def __init__(self, ids: np.ndarray, sketches: Tensor):
        self._at = np.full(len(sketches), -1, np.int32)
        self._ids = np.empty(0, np.int32)
        self._scales, self._priors = np.empty(0, np.float32), np.empty(0, np.float32)
        self._sketches, self._size = sketches[:0], 0
        self._append(ids, records(sketches)[ids])

    def __len__(self) -> int:
        return self._size

    @property
    def ids(self) -> np.ndarray:
        """The rows, ascending."""
        return np.sort(self._ids[: self._size])

    def move(self, rows: np.ndarray, sketches: Tensor, inside: np.ndarray) -> None:
        """Take the new sketches of some rows, of which those ``inside`` belong to the head."""
        at, given = self._at[rows], records(sketches)
        stay, new = inside & (at >= 0), inside & (at < 0)
        self._put(at[stay], given[stay])
        # The last rows move to the slots of those that leave.
        gone = at[~inside & (at >= 0)]
        size = self._size - len(gone)
        last = np.setdiff1d(np.arange(size, self._size, dtype=np.int32), gone)
        slots = gone[gone < size]
        self._at[self._ids[gone]] = -1
        self._assign(slots, self._ids[last])
        self._put(slots, records(self._sketches)[last])
        self._size = size
        self._append(rows[new], given[new])

    def _append(self, ids: np.ndarray, given: np.ndarray) -> None:
        size = self._size + len(ids)
        if size > len(self._ids):  # With room for the next steps.
            room = _padded(min(len(self._at), size + size // 4))
            self._ids = np.resize(self._ids, room)
            self._scales = np.resize(self._scales, room)
            self._priors = np.resize(self._priors, room)
            kept = self._sketches
            self._sketches = torch.zeros(room, kept.shape[1], dtype=torch.int8)
            self._sketches[: self._size] = kept[: self._size]
        slots = np.arange(self._size, size, dtype=np.int32)
        self._assign(slots, ids)
        self._put(slots, given)
        self._size = size

    def _assign(self, slots: np.ndarray, ids: np.ndarray) -> None:
        self._ids[slots], self._at[ids] = ids, slots

    def _put(self, slots: np.ndarray, given: np.ndarray) -> None:
        records(self._sketches)[slots] = given
        floats = given[:, None].view(np.float32)
        self._scales[slots], self._priors[slots] = floats[:, SCALE], floats[:, PRIOR]

    def best(self, queries: Tensor, left_out: Pattern, most: int) -> np.ndarray:
        """Heaps ``(B, most)`` of the best rows of inputs ``(B, k)``, without those left out."""
        numbers, factors = rounded_queries(queries)
        # Padded to the width of a sketch: its other bytes then count nothing.
        numbers = F.pad(numbers, (FIRST, self._sketches.shape[1] - FIRST - queries.shape[1]))
        end, none = _padded(self._size), no_keys((len(numbers), most))
        self._priors[self._size : end] = -np.inf  # The padding is no row.
        every = slice(0, end)
        # A sample of the rows gives a threshold that a few times `most` rows exceed. Without it,
        # most of the time would go into rows that are among the best only for a while.
        expected = most * _SAMPLE / max(1, self._size)
        least = math.ceil(expected + _UNSURE * math.sqrt(expected)) + 1
        if self._size < _SAMPLE * _TIMES or _TIMES * least > _SAMPLE:
            return self._rank(numbers, factors, left_out, every, none)
        part = slice(0, self._size, self._size // _SAMPLE)
        some = self._rank(numbers, factors, left_out, part, no_keys((len(numbers), least)))
        first = np.repeat(at_least(some[:, :1]), most, axis=1)
        keys = self._rank(numbers, factors, left_out, every, first)
        short = np.flatnonzero(is_no_row(keys[:, 0]))
        if len(short):  # Too few rows exceed the threshold.
            at, known = torch.from_numpy(short), left_out.padded()[short]
            known = Pattern.from_padded(known)
            keys[short] = self._rank(numbers[at], factors[at], known, every, none[short])
        return keys

    def _rank(
        self, numbers: Tensor, factors: Tensor, left_out: Pattern, part: slice, keys: np.ndarray
    ) -> np.ndarray:
        """`rank_rows` for some of the rows, as many at a time as products fit into the caches."""
        step, every = (part.step or 1) * max(1, _PRODUCTS // len(numbers)), part.stop
        for start in range(0, every, step):
            some = slice(start, min(start + step, every), part.step)
            sketches = self._sketches[some]
            if has_int8():
                multiply = torch._int_mm  # pyright: ignore[reportPrivateImportUsage]
                found = multiply(numbers, sketches.T)
            else:  # The sums are whole numbers below 2^24, so they are the same.
                found = (numbers.float() @ sketches.float().T).int()
            rows = Rows(
                ids=np.ascontiguousarray(self._ids[some]),
                scales=np.ascontiguousarray(self._scales[some]),
                priors=np.ascontiguousarray(self._priors[some]),
            )
            rank_rows(array_view(found), array_view(factors), rows, left_out, keys)
        return keys


def _padded(size: int) -> int:
    return -(-size // _UNIT) * _UNIT


def records(sketches: Tensor) -> np.ndarray:
    """The same memory with a sketch as one item, which NumPy copies much faster."""
    return array_view(sketches).view(f"V{sketches.shape[1]}")[:, 0]
