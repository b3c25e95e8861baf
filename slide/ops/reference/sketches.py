"""The best rows by their sketches, in plain torch: all rows are ranked, without hash tables."""

import torch
from torch import Tensor

from slide.ops.kernels.active_sets import CODES, PRIOR, SCALE

# Numbers of rows and queries whose scores are held at a time.
_SCORES = 2**24


def rank_all(queries: Tensor, sketches: Tensor, left_out: Tensor, most: int) -> Tensor:
    """The rows with the largest rounded scores, the best first; equal ones in the order of rows.

    Args:
        queries: ``(B, CODES)`` float32 inputs in few directions.
        sketches: ``(N, WIDTH)`` int8; see `slide.ops.kernels.active_sets`.
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
