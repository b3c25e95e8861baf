"""`slide.ops.kernels.hash_codes` in torch: codes of further buckets."""

import torch
from torch import Tensor


def dwta_runners(
    vectors: Tensor, coordinates: Tensor, hashes_per_table: int, bits: int
) -> tuple[Tensor, Tensor]:
    """What the second-largest coordinate of each bin would change: costs and flips.

    See `slide.ops.kernels.hash_codes.dwta_runners`; both are ``(n, L * K)``, floats and int32.
    """
    values = vectors[:, coordinates]
    largest = values.max(2).values
    digits = values.argmax(2, keepdim=True)
    rest = values.scatter(2, digits, -torch.inf)
    seconds = rest.argmax(2, keepdim=True)
    costs = largest - rest.gather(2, seconds)[:, :, 0]
    k = torch.arange(coordinates.shape[0], device=vectors.device) % hashes_per_table
    flips = (digits ^ seconds)[:, :, 0] << (bits * (hashes_per_table - 1 - k))
    return costs, flips.int()


def probe_codes(codes: Tensor, costs: Tensor, flips: Tensor, sets: Tensor, probes: int) -> Tensor:
    """Codes of the buckets that are reached at the least cost, ``((1 + probes) * L, n)`` int32.

    Args:
        codes: ``(L, n)`` int32.
        costs: ``(n, L * K)`` floats: how certain each elementary hash is.
        flips: ``(n, L * K)`` int32: what a change does to the code, by xor.
        sets: ``(S, m)`` bool: which of a code's m least certain elementary hashes a set changes.
        probes: P, at most S.
    """
    num_tables, count = codes.shape
    depth, shape = sets.shape[1], (count, num_tables, costs.shape[1] // num_tables)
    certain, order = costs.double().square().view(shape).sort(dim=2, stable=True)
    flips = flips.view(shape).gather(2, order)
    # Where, and not a product: a cost may be infinite.
    totals = torch.where(sets, certain[:, :, None, :depth], 0.0).sum(3)
    best = totals.sort(dim=2, stable=True).indices[:, :, :probes]
    # The changed bits of a set do not overlap, so their sum is their union.
    changes = torch.where(sets, flips[:, :, None, :depth], 0).sum(3).gather(2, best)
    further = codes.T[:, :, None] ^ changes.int()
    return torch.cat([codes, further.permute(2, 1, 0).reshape(probes * num_tables, count)]).int()
