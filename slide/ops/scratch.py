"""Arrays and tensors that the steps of a layer use again."""

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from slide.utils.checks import Alone


class Scratch:
    """Arrays and tensors by name, so that no step clears or allocates one.

    A kernel that changes an array of `filled` restores its content before it returns.
    """

    def __init__(self):
        self._arrays: dict[str, np.ndarray] = {}
        self._tensors: dict[str, torch.Tensor] = {}
        # For a part of a step that must not run in two threads at a time.
        self.alone = Alone(
            "another thread is training this layer now, and a layer has one set of scratch arrays: "
            "give each thread a layer of its own, or hold a lock around forward, backward and step"
        )
        self._turns = threading.Condition()
        self._readers = self._changers = 0  # Threads that search an index; that wait to change it.

    @contextmanager
    def in_turn(self, first: bool = True) -> Iterator[None]:
        """A part that changes an index while none searches; ``first``: before later searches."""
        with self._turns:
            self._changers += first
            try:
                self._turns.wait_for(lambda: not self._readers)
            finally:
                self._changers -= first
            try:
                yield
            finally:
                self._turns.notify_all()

    @contextmanager
    def beside(self) -> Iterator[None]:
        """A part that searches an index beside others; changes that wait come first."""
        with self._turns:
            self._turns.wait_for(lambda: not self._changers)
            self._readers += 1
        try:
            yield
        finally:
            with self._turns:
                self._readers -= 1
                self._turns.notify_all()

    def filled(self, name: str, shape: tuple[int, ...], dtype: type, fill: int = 0) -> np.ndarray:
        """The array of that name, filled at the first call; its first entries for fewer."""
        found = self._arrays.get(name)
        if found is None or found.shape[1:] != shape[1:] or len(found) < shape[0]:
            found = self._arrays[name] = np.full(shape, fill, dtype)
        return found if len(found) == shape[0] else found[: shape[0]]

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """An uninitialised tensor for one call; the system would fill a new one with zeros."""
        found = self._tensors.get(name)
        if found is None or found.dtype != dtype or found.numel() < math.prod(shape):
            with torch.inference_mode(False):
                found = self._tensors[name] = torch.empty(math.prod(shape), dtype=dtype)
        return found[: math.prod(shape)].view(shape)

    def __reduce__(self) -> tuple:
        return Scratch, ()  # Copies and pickles have arrays of their own.
