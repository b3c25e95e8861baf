"""From proposed ids to active sets, and the best rows by their sketches, without hash tables.

The uniform ids equal the ids of the kernels, draw by draw, unless a set is more than a quarter of
all outputs.
"""

import torch
from torch import Tensor

from slide.ops.kernels.sketches import FIRST, LINE, NUMBERS, PRIOR, REST, SCALE, SMALLEST, WIDTH
from slide.ops.reference.products import first_of_equal
from slide.ops.reference.random import random_below, random_keys

# If a set may hold more than this share of all rows, draws would often hit rows that it holds.
_SHARE = 4


def assemble(
    labels: Tensor, proposed: Tensor, sizes: Tensor, width: int, num_rows: int, key: int
) -> tuple[Tensor, Tensor]:
    """Sets of distinct ids: labels, then proposed ids, then uniform fill by ``key``.

    labels (B, P), proposed (B, M) int32, distinct within a set; sizes (B,) int64, at most width.
    Returns ids ``(B, width)`` int32, of which the first ``sizes[b]`` count, and how many of them
    are labels or proposed.
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
    """Uniform ids ``(count, n)`` int32; fewer than ``width`` new ones once in 10^10 sets."""
    streams = torch.arange(count, device=device)[:, None] << 32
    if num_rows <= _SHARE * width:
        keys = random_keys(key, streams + torch.arange(num_rows, device=device))
        return keys.argsort(1).int()
    draws = torch.arange(width + width // 2 + 64, device=device)
    return random_below(key, streams + draws, num_rows).int()


def stratified_log_weights(num_known: Tensor, sizes: Tensor, width: int, num_rows: int) -> Tensor:
    """``(B, width)`` float32: 0 for known ids, log((N - |S|) / m) for the m uniform ones."""
    positions = torch.arange(width, device=sizes.device)
    weight = ((num_rows - num_known) / (sizes - num_known)).log().float()
    return torch.where(positions < num_known[:, None], 0, weight[:, None])


# Numbers of rows and queries whose scores are held at a time.
_SCORES = 2**24


def rank_all(queries: Tensor, sketches: Tensor, left_out: Tensor, most: int) -> Tensor:
    """The rows with the largest rounded scores, the best first; equal ones in the order of rows.

    queries (B, CODES) float32 inputs in few directions; sketches (N, WIDTH) int8; left_out (n, 2)
    int64, pairs of a query and a row that it does not get; most: number of rows of a query. Returns
    ``(B, most)`` int32; -1 after the last row that has a score.
    """
    floats = sketches.view(torch.float32)
    codes, scales, priors = sketches[:, NUMBERS].float(), floats[:, SCALE], floats[:, PRIOR]
    found = []
    block = max(1, _SCORES // max(1, len(sketches)))
    for start in range(0, len(queries), block):
        scores = queries[start : start + block] @ codes.T * scales + priors
        scores = scores.nan_to_num(-torch.inf, torch.inf, -torch.inf)
        mine = left_out[(left_out[:, 0] >= start) & (left_out[:, 0] < start + block)]
        scores[mine[:, 0] - start, mine[:, 1]] = -torch.inf
        best, ids = scores.sort(dim=1, descending=True, stable=True)
        found.append(torch.where(best > -torch.inf, ids, -1)[:, :most])
    if not found:
        return torch.empty(0, most, dtype=torch.int32, device=queries.device)
    rows = torch.cat(found).int()
    return torch.nn.functional.pad(rows, (0, most - rows.shape[1]), value=-1)


def sketch_rows(projected: Tensor, offset: Tensor) -> Tensor:
    """The sketches ``(n, WIDTH)`` int8 of projected rows; see the kernel of this name."""
    projected = projected - offset
    rows, prior = projected[:, :-1], projected[:, -1]
    lengths = rows.abs().amax(1)
    known = lengths.isfinite() & prior.isfinite()
    scale = torch.where(known, lengths / 127, 0)
    out = torch.zeros(len(rows), WIDTH, dtype=torch.int8, device=rows.device)
    rounded = (rows / scale.clamp(min=float(SMALLEST))[:, None]).nan_to_num(0, 0, 0)
    rounded = torch.where(known[:, None], rounded.round_().clamp_(-127, 127), 0)
    out[:, FIRST : FIRST + rows.shape[1]] = rounded.to(torch.int8)
    floats = out.view(torch.float32)
    floats[:, REST] = out[:, LINE:].float().norm(dim=1)
    floats[:, SCALE], floats[:, PRIOR] = scale, torch.where(known, prior, -torch.inf)
    return out
