"""The processes of a run: here one; `slide.distributed` has groups of several."""

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from slide.utils import checks

OPERATIONS = ("sum", "max")
_G = TypeVar("_G", bound="Group")


class LostProcessError(RuntimeError):
    """Another process of the run has ended, or does not answer."""


class Group:
    """The processes of a run, as this one sees them; in this class it is alone.

    Its operations return what they are given, and cost nothing. `slide.distributed.Group` overrides
    them.

    Attributes:
        rank: number of this process, in [0, size).
        size: number of processes.
        seconds: time spent in the operations so far.
        bytes_sent: bytes that this process sent so far.
        patient: the same processes, for waits of any length; else the group itself.
        calls: how often each operation was called so far, by its name.

    Example:
        >>> import torch
        >>> from slide.training.group import Group
        >>> group = Group.alone()
        >>> group.rank, group.size, group.all_reduce(torch.ones(2)), group.gather("here")
        (0, 1, tensor([1., 1.]), ['here'])
    """

    def __init__(self) -> None:
        self.rank, self.size = 0, 1
        self._reset()

    @classmethod
    def alone(cls: type[_G]) -> _G:
        """A group of this process only."""
        group = cls.__new__(cls)
        Group.__init__(group)
        return group

    def _reset(self) -> None:
        self.seconds, self.bytes_sent = 0.0, 0
        self.calls: Counter[str] = Counter()
        self.patient: Group = self

    def __deepcopy__(self: _G, memo: dict[int, Any]) -> _G:
        return self  # Copies of a network talk to the same processes.

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0, which writes what the processes leave, and shows progress."""
        return self.rank == 0

    def all_reduce(self, tensor: Tensor, operation: str = "sum") -> Tensor:
        """The sum, or the maximum (``operation="max"``), of the tensors of all ranks."""
        checks.one_of("operation", operation, OPERATIONS)
        return tensor

    def begin_all_reduce(self, tensor: Tensor) -> Callable[[], Tensor]:
        """A function that waits for the sum of the tensors of all ranks, and returns it."""
        return lambda: tensor

    def all_gather(self, tensor: Tensor, lengths: list[int] | None = None) -> list[Tensor]:
        """The tensors of all ranks, by rank."""
        return [tensor]

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank: numbers, texts, and lists and dicts of them."""
        return [value]

    def broadcast(self, value: Any) -> Any:
        """The value of rank 0."""
        return value

    def broadcast_tensor(self, tensor: Tensor, root: int = 0) -> Tensor:
        """The tensor of rank ``root``."""
        return tensor

    def barrier(self) -> None:
        """Wait until all ranks are here."""
