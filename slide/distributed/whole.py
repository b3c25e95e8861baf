"""All rows of a network that several processes share, some at a time."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from slide.backend import on_device
from slide.distributed.network import ShardedNetwork, plain_name
from slide.distributed.shares import Shares

# Numbers of a block, about.
_BLOCK = 1 << 20


def whole_shapes(network: ShardedNetwork) -> dict[str, tuple[int, ...]]:
    """The shapes of all parameters with the rows of all processes, by their names in one process.

    Example:
        >>> import slide
        >>> from slide.distributed import Group, ShardedNetwork
        >>> from slide.distributed.whole import whole_shapes
        >>> network = ShardedNetwork(50, [4], 9, slide.FullSampler, Group.alone())
        >>> whole_shapes(network)["output.weight"]
        (9, 4)
    """
    shared, found = network.shared_rows(), {}
    for name, weight in network.named_parameters():
        rows = shared[name].rows if name in shared else len(weight)
        found[plain_name(name)] = (rows, *weight.shape[1:])
    return found


def whole_blocks(network: ShardedNetwork) -> Iterator[Tensor]:
    """Consecutive rows of all parameters, in the order of `whole_shapes`; float32.

    All processes of the network's group must go through them at the same time. A block is valid
    until the next one is asked for.
    """
    shared = network.shared_rows()
    for name, weight in network.named_parameters():
        if name in shared:
            yield from _rows_in_order(network, weight.detach(), shared[name])
        else:
            yield weight.detach().float()


def _rows_in_order(network: ShardedNetwork, own: Tensor, shares: Shares) -> Iterator[Tensor]:
    group, width = network.group, max(own[0].numel() if len(own) else 1, 1)
    step = min(max(_BLOCK // width, 1), shares.rows)
    # Two buffers for all blocks: threads of the exchange may keep a tensor longer than the call,
    # and with new tensors for each block the process would grow by tens of megabytes.
    block, part = (own.new_empty(step, *own.shape[1:], dtype=torch.float32) for _ in range(2))
    for begin in range(0, shares.rows, step):
        ids = np.arange(begin, min(begin + step, shares.rows))
        owners = shares.owners(ids)
        first, last = np.searchsorted(shares.ids, [ids[0], ids[-1] + 1])
        for rank in range(shares.size):
            places = np.flatnonzero(owners == rank)
            rows = part[: len(places)]
            if rank == group.rank:
                rows.copy_(own[first:last])
            block[on_device(places, block.device)] = group.broadcast_tensor(rows, rank)
        yield block[: len(ids)]
