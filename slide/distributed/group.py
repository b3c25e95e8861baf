"""The processes of a run, and what they exchange, counted."""

import copy
import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from slide.distributed.shared_buffers import SharedBuffers, create, fits, open_created
from slide.training import group as base
from slide.training.group import LostProcessError
from slide.utils import checks
from slide.utils.profiling import clock

# What errors of gloo and NCCL contain when another process is gone.
_LOST = (
    *("closed", "reset", "imed out", "refused", "unreachable", "Broken pipe", "remote process"),
    *("No route to host", "connection abort"),
)
_SENTENCE = "another process of the run has ended, or did not answer in time (runtime.timeout)"


class Group(base.Group):
    """The processes that train one network, over ``torch.distributed``.

    Each process is a rank. All ranks must call the same operations in the same order. A group of
    one process needs no ``torch.distributed``, and its operations cost nothing.

    Args:
        processes: a group of ``torch.distributed`` that takes tensors of the CPU, such as gloo's;
            for layers on GPUs also theirs: the backend ``"cpu:gloo,cuda:nccl"``. None: all
            processes that ``torch.distributed.init_process_group`` has joined.

    Attributes:
        rank: number of this process, in [0, size).
        size: number of processes.
        seconds: time spent in the operations so far, with waiting for others; operations of
            NCCL count until they have begun.
        bytes_sent: bytes that this process sent so far, if the ranks stand in a ring, as with gloo.
        patient: the same processes, for waits of any length; else the group itself.
        calls: how often each collective operation was called so far, by its name.

    Example:
        >>> import torch
        >>> from slide.distributed import Group
        >>> group = Group.alone()
        >>> group.rank, group.size, group.all_reduce(torch.ones(2)), group.bytes_sent
        (0, 1, tensor([1., 1.]), 0)
    """

    _processes: Any = None

    def __init__(self, processes: Any = None):
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError(
                "the processes have not joined yet: start them with torchrun and call "
                "torch.distributed.init_process_group('gloo'), or use Group.alone()"
            )
        self.rank, self.size = dist.get_rank(processes), dist.get_world_size(processes)
        if self.rank < 0:
            raise ValueError("this process is not in the group")
        backends = dist.get_backend_config(processes)
        if "cpu:" not in backends:  # Labels and sizes are exchanged between hosts.
            raise ValueError(
                f"the processes exchange tensors of the CPU, too, and their group has {backends} "
                "only: join them by torch.distributed.init_process_group('cpu:gloo,cuda:nccl')"
            )
        self._processes = processes
        self._reset()
        self._asks = "cpu:gloo" in backends

    def _reset(self) -> None:
        super()._reset()
        self._asks = False  # Whether the next exchange looks for memory that all ranks share.
        self._buffers: SharedBuffers | None = None

    def all_reduce(self, tensor: Tensor, operation: str = "sum") -> Tensor:
        """Replace a tensor by the sum, or the maximum, of the tensors of all ranks.

        The results of all ranks are equal in each bit.

        ``tensor`` is contiguous; ``operation`` is ``"sum"`` or ``"max"``. Returns ``tensor``.
        """
        checks.one_of("operation", operation, base.OPERATIONS)
        if operation == "sum":
            return self.begin_all_reduce(tensor)()
        if self.size > 1:
            self._call("all_reduce", self._bytes_to_reduce(tensor), tensor, op=dist.ReduceOp.MAX)
        return tensor

    def begin_all_reduce(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Begin to replace a tensor by the sum of the tensors of all ranks.

        Returns a function that waits for the end and returns ``tensor``. Until then this process
        can do other work, but no other operation may be called.
        """
        if self.size == 1:
            return lambda: tensor
        sent, buffers = self._bytes_to_reduce(tensor), self._buffers_for(tensor)
        if buffers is None:
            finish = self._call("all_reduce", sent, tensor, async_op=True).wait
        else:
            self._count("all_reduce", sent)
            self._timed(partial(buffers.write, tensor))
            finish = partial(_add_up, buffers, tensor)

        def end() -> Tensor:
            self._timed(finish)
            return tensor

        return end

    def _bytes_to_reduce(self, tensor: Tensor) -> int:
        # In a ring each rank passes on all but its own part, twice: sums, then results.
        return 2 * tensor.nbytes * (self.size - 1) // self.size

    def all_gather(self, tensor: Tensor, lengths: list[int] | None = None) -> list[Tensor]:
        """The tensors of all ranks, by rank.

        ``tensor`` is ``(n, ...)``; ``lengths`` are the n of all ranks, which exchange them if None.
        """
        if self.size == 1:
            return [tensor]
        if lengths is None:
            lengths = [int(n) for n in self._gather(torch.tensor([len(tensor)]))]
        most = max(lengths)
        padded = tensor.contiguous()
        if len(tensor) < most:
            padded = tensor.new_zeros(most, *tensor.shape[1:])
            padded[: len(tensor)] = tensor
        found = self._gather(padded) if most else [padded] * self.size
        return [part[:n] for part, n in zip(found, lengths, strict=True)]

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which have one shape."""
        sent, buffers = tensor.nbytes * (self.size - 1), self._buffers_for(tensor)
        if buffers is None:
            found = [torch.empty_like(tensor) for _ in range(self.size)]
            self._call("all_gather", sent, found, tensor)
            return found
        self._count("all_gather", sent)
        self._timed(partial(buffers.write, tensor))
        return self._timed(lambda: [part.clone() for part in buffers.read(tensor)])

    def _buffers_for(self, tensor: Tensor) -> SharedBuffers | None:
        """The memory through which a tensor is exchanged; None: ``torch.distributed`` does it."""
        if self._asks:
            self._asks = False
            others = copy.copy(self)  # It counts what the ranks ask each other.
            others._reset()
            self._buffers = others._make_buffers()
        return self._buffers if fits(tensor) else None

    def _make_buffers(self) -> SharedBuffers | None:
        """Memory that all ranks share; None if they are on several machines."""
        processes = self._processes or dist.group.WORLD
        assert processes is not None
        timeout = processes._get_backend(torch.device("cpu")).options._timeout.total_seconds()
        made = create(self.size) if self.is_main_process else None
        path, name = self.broadcast(made[1:] if made else (None, None))
        own = None
        if path is not None:
            with suppress(OSError):  # It may be the path of another machine.
                file = made[0] if made else open_created(path, name)
                own = SharedBuffers(file, self.rank, self.size, timeout)
        return own if all(self.gather(own is not None)) else None

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, by rank: numbers, texts, and lists and dicts of them."""
        return [_decoded(part) for part in self.all_gather(_encoded(value))]

    def broadcast(self, value: Any) -> Any:
        """The value of rank 0; the values of the others are ignored."""
        text = _encoded(value if self.is_main_process else None)
        length = self.broadcast_tensor(torch.tensor([len(text)]))
        if not self.is_main_process:
            text = torch.empty(int(length), dtype=torch.uint8)
        return _decoded(self.broadcast_tensor(text))

    def broadcast_tensor(self, tensor: Tensor, root: int = 0) -> Tensor:
        """Replace a tensor by that of rank ``root``."""
        if self.size == 1 or not tensor.numel():
            return tensor
        sender = root if self._processes is None else dist.get_global_rank(self._processes, root)
        sent = tensor.nbytes if self.rank == root else 0
        self._call("broadcast", sent, tensor, src=sender)
        return tensor

    def barrier(self) -> None:
        """Wait until all ranks are here."""
        if self.size > 1:
            self._call("barrier", 0)

    def _call(self, name: str, sent: int, *arguments: Any, **keywords: Any) -> Any:
        """Call a collective operation, and count it."""
        exchange = partial(getattr(dist, name), *arguments, group=self._processes, **keywords)
        found = self._timed(exchange)
        self._count(name, sent)
        return found

    def _count(self, name: str, sent: int) -> None:
        self.bytes_sent += sent
        self.calls[name] += 1

    def _timed(self, exchange: Callable[[], Any]) -> Any:
        """Exchange something, and count the time."""
        begin = clock()
        try:
            found = exchange()
        except RuntimeError as error:
            if not any(word in str(error) for word in _LOST):
                raise
            raise LostProcessError(_SENTENCE) from error
        self.seconds += clock() - begin
        return found


@torch.no_grad()
def _add_up(buffers: SharedBuffers, tensor: Tensor) -> None:
    """Replace a tensor by the sum of those that the ranks have written, in their order."""
    first, second, *others = buffers.read(tensor)
    torch.add(first, second, out=tensor)
    for other in others:
        tensor += other


def _encoded(value: Any) -> Tensor:
    return torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)


def _decoded(text: Tensor) -> Any:
    return json.loads(bytes(text.tolist()))
