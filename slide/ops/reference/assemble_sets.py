"""`slide.ops.kernels.active_sets` in torch: from proposed ids to active sets.

The uniform ids are those of the kernels, draw by draw, unless a set is more than a quarter of all
outputs.
"""

import torch
from torch import Tensor

from slide.ops.reference.pattern_products import first_of_equal
from slide.ops.reference.random import random_below, random_keys

# If a set may hold more than this share of all rows, draws would often hit rows that it holds.
_SHARE = 4


def assemble(
    labels: Tensor, proposed: Tensor, sizes: Tensor, width: int, num_rows: int, key: int
) -> tuple[Tensor, Tensor]:
    """Sets of distinct ids: labels, then proposed ids, then uniform fill.

    Args:
        labels: ``(B, P)`` int32 positive outputs, distinct within a set; -1: none.
        proposed: ``(B, M)`` int32, distinct within a set; -1: none.
        sizes: ``(B,)`` int64, sizes of the sets; each holds at least the labels and at most N ids.
        width: the largest size.
        num_rows: N.
        key: key of the fill, in [0, 2^64).

    Returns:
        ids ``(B, width)`` int32, of which the first ``sizes[b]`` of row b count, and how many of
        them are labels or proposed, ``(B,)`` int64.

    Example:
        >>> import torch
        >>> from slide.ops.reference.assemble_sets import assemble
        >>> labels, proposed = torch.tensor([[7, 3]]).int(), torch.tensor([[3, 5, -1]]).int()
        >>> ids, known = assemble(labels, proposed, torch.tensor([4]), 4, num_rows=100, key=1)
        >>> ids[0, :3].tolist(), known.tolist()
        ([7, 3, 5], [3])
    """
    known = torch.cat([labels, proposed], 1)
    queue = torch.cat([known, _uniform(len(known), width, num_rows, key, known.device)], 1)
    kept = first_in_queue(queue) & (queue >= 0)
    front = kept.logical_not().byte().argsort(dim=1, stable=True)[:, :width]
    num_known = kept[:, : known.shape[1]].sum(1).minimum(sizes)
    return queue.gather(1, front), num_known


def first_in_queue(queue: Tensor) -> Tensor:
    """Whether each entry of ``(B, n)`` is the first of its value in its row; bool."""
    values, order = queue.sort(dim=1, stable=True)
    return torch.empty_like(queue, dtype=torch.bool).scatter_(1, order, first_of_equal(values))


def _uniform(count: int, width: int, num_rows: int, key: int, device: torch.device) -> Tensor:
    """Uniform ids ``(count, n)`` int32 that hold ``width`` ids beside any others.

    Each draw finds a new id with probability 3/4 at least. With these many draws there are too few
    new ones less often than once in 10^10 sets.
    """
    streams = torch.arange(count, device=device)[:, None] << 32
    if num_rows <= _SHARE * width:
        keys = random_keys(key, streams + torch.arange(num_rows, device=device))
        return keys.argsort(1).int()
    draws = torch.arange(width + width // 2 + 64, device=device)
    return random_below(key, streams + draws, num_rows).int()


def stratified_log_weights(num_known: Tensor, sizes: Tensor, width: int, num_rows: int) -> Tensor:
    """``(B, width)`` float32: 0 for known ids, log((N - |S|) / m) for the m uniform ones."""
    places = torch.arange(width, device=sizes.device)
    weight = ((num_rows - num_known) / (sizes - num_known)).log().float()
    return torch.where(places < num_known[:, None], 0, weight[:, None])
