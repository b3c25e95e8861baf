"""Sketches of rows in plain torch; all rows are ranked, without hash tables."""

import torch
from torch import Tensor

from slide.kernels.sketches import CODES, PRIOR, SCALE, SMALLEST, WIDTH

# Numbers of rows and queries whose scores are held at a time.
_SCORES = 2**24


def rank_all(queries: Tensor, sketches: Tensor, left_out: Tensor, most: int) -> Tensor:
    """The rows with the largest rounded scores, the best first; equal ones in the order of rows.

    Args:
        queries: ``(B, CODES)`` float32 inputs in few directions.
        sketches: ``(N, WIDTH)`` int8; see `slide.kernels.sketches`.
        left_out: ``(n, 2)`` int64, pairs of a query and a row that it does not get.
        most: number of rows of a query.

    Returns:
        ``(B, most)`` int32; -1 after the last row that has a score.
    """
    floats = sketches.view(torch.float32)
    codes, scales, priors = sketches[:, :CODES].float(), floats[:, SCALE], floats[:, PRIOR]
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
    rounded = (rows / scale.clamp(min=SMALLEST)[:, None]).nan_to_num(0, 0, 0)
    rounded = torch.where(known[:, None], rounded.round_().clamp_(-127, 127), 0)
    out[:, : rows.shape[1]] = rounded.to(torch.int8)
    floats = out.view(torch.float32)
    floats[:, SCALE], floats[:, PRIOR] = scale, torch.where(known, prior, -torch.inf)
    return out
