"""A network that several processes share, asked by the first of them alone."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.distributed.group import Group
from slide.distributed.network import ShardedNetwork
from slide.sparse import CSR, as_csr

_END, _FAILED = "end", "failed"


@contextmanager
def asked_by_first(network: Any, group: Group) -> Iterator[Any]:
    """Inside of it, the first process asks a network as if it had all of its rows.

    The others help to answer. They enter when all is answered, so a part of a run that one process
    does, and that asks the network now and then, needs no plan that all of them follow.

    Args:
        network: a `slide.distributed.ShardedNetwork`; with one process, any network.
        group: the processes; its time-out bounds the time between two questions. Answers are
            exchanged in the group of the network.

    Yields:
        What the first process asks, an `AskedNetwork`; None on the others. With one process,
        ``network``.

    Raises:
        RuntimeError: on the others, before they enter, if the first process fails between two
            questions. Within one they wait for its part of the answer, and raise
            `slide.distributed.group.LostProcessError` when it ends.

    Example:
        >>> import torch, slide
        >>> from slide.distributed import Group, ShardedNetwork
        >>> from slide.distributed.asking import asked_by_first
        >>> group = Group.alone()
        >>> shared = ShardedNetwork(100, [16], 1000, slide.FullSampler, group)
        >>> with asked_by_first(shared, group) as network:
        ...     hidden = network.embed(torch.ones(1, 100))
        ...     network.output.top_k(hidden, k=5)[1].shape
        torch.Size([1, 5])
    """
    if group.size == 1:
        yield network
    elif group.rank:
        _answer(network, group)
        yield None
    else:
        asked = AskedNetwork(network, group)
        try:
            yield asked
        except Exception as error:
            # Those that answer do not listen: to tell them would be to wait for them.
            if not asked.output.answering:
                with suppress(Exception):  # The others may be gone.
                    _tell(group, _FAILED, said=str(error))
            raise
        _tell(group, _END)


class AskedNetwork:
    """What a re-ranker asks of a network, for the first process; see `asked_by_first`.

    Args:
        network: the network; the other processes are ready to answer.
        group: the processes.

    Attributes:
        output: the last layer, with ``out_features``, ``top_k`` and ``scores_of``.
    """

    def __init__(self, network: ShardedNetwork, group: Group):
        self.output = AskedOutput(network, group)

    def embed(self, features: Any) -> Tensor:
        """The last hidden layer ``(B, H)`` of features ``(B, D)``; see `slide.SlideNetwork`."""
        return self.output.embed(features)


class AskedOutput:
    """The last layer of an `AskedNetwork`; it takes only what ``embed`` has returned last.

    Args:
        network, group: see `AskedNetwork`.

    Attributes:
        answering: whether the others answer a question, also after it has failed here.
    """

    def __init__(self, network: ShardedNetwork, group: Group):
        self._network, self._group, self.answering = network, group, False
        self._hidden: Tensor | None = None
        self.out_features = network.output.out_features

    def embed(self, features: Any) -> Tensor:
        """See `AskedNetwork`."""
        rows = as_csr(features, self._network.first.in_features)
        with self._asked("embed", rows):
            self._hidden = self._network.embed(rows)
        return self._hidden

    def top_k(self, x: Tensor, k: int, search: str = "exact") -> tuple[Tensor, Tensor]:
        """See `slide.distributed.ShardedOutputLinear.top_k`."""
        self._check(x)
        with self._asked("top_k", k=k, search=search):
            return self._network.output.top_k(x, k, search)

    def scores_of(self, x: Tensor, ids: np.ndarray) -> np.ndarray:
        """See `slide.distributed.ShardedOutputLinear.scores_of`."""
        self._check(x)
        with self._asked("scores_of", [ids]):
            return self._network.output.scores_of(x, ids)

    @contextmanager
    def _asked(
        self, question: str, arrays: Sequence[np.ndarray] = (), **options: Any
    ) -> Iterator[None]:
        """Inside of it, the others answer a question, and this process must do its part."""
        _tell(self._group, question, arrays, **options)
        self.answering = True
        yield
        self.answering = False

    def _check(self, x: Tensor) -> None:
        if x is not self._hidden:  # The other processes have only that one.
            raise ValueError("x must be what embed has returned last")


def _tell(group: Group, question: str, arrays: Sequence[np.ndarray] = (), **options: Any) -> None:
    """Tell the other processes what they are to answer with this one."""
    tensors = [torch.tensor(array) for array in arrays]
    kinds = [[list(each.shape), str(each.dtype).partition(".")[2]] for each in tensors]
    group.broadcast([question, kinds, options])
    for tensor in tensors:
        group.broadcast_tensor(tensor)


def _answer(network: ShardedNetwork, group: Group) -> None:
    """Answer with the first process until it has no more questions."""
    hidden = torch.empty(0)
    while True:
        question, kinds, options = group.broadcast(None)
        empty = [torch.empty(shape, dtype=getattr(torch, kind)) for shape, kind in kinds]
        arrays = [group.broadcast_tensor(tensor).numpy() for tensor in empty]
        if question == _END:
            return
        if question == _FAILED:
            raise RuntimeError(f"the first process failed: {options['said']}")
        if question == "embed":
            hidden = network.embed(CSR(*arrays))
        elif question == "top_k":
            network.output.top_k(hidden, **options)
        else:
            network.output.scores_of(hidden, *arrays)
