"""Which further buckets an input is looked up in: sets of changes of its least certain hashes."""

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.backend import array_view, native, on_device, on_host, plain
from slide.kernels import probes as kernels
from slide.plain import probes as plain_probes
from slide.sparse import Pattern

# More buckets than these would cost more than more tables.
MOST_PROBES = 64


@cache
def flip_sets(hashes_per_table: int, probes: int) -> Pattern:
    """All sets of changes that can be among the cheapest, whatever the changes cost.

    A set costs the sum of the costs of its changes, which are numbered from the cheapest on. So it
    costs no less than a set that has one change less, or a cheaper change in place of one of its
    own, and so on from there. If there are ``probes`` such sets or more, it is not needed. (Lv et
    al. 2007, "Multi-probe LSH", section 4.4, reaches the cheapest sets by the same two steps.)

    Args:
        hashes_per_table: K, number of elementary hashes of a code.
        probes: P, how many of the cheapest sets are wanted.

    Returns:
        S rows, at least ``min(P, 2^K - 1)``: the changes of each set, ascending. Sets that are
        cheap as a rule come first.
    """
    below: dict[frozenset[int], set[frozenset[int]]] = {}
    ahead = [frozenset([0])]
    while ahead:
        one = ahead.pop(0)
        if one in below:
            continue
        cheaper = [one - {j} | {j - 1} for j in one if j and j - 1 not in one]
        cheaper += [one - {0}] if 0 in one and len(one) > 1 else []
        if not all(other in below for other in cheaper):
            continue  # A cheaper one is not needed, or it comes first and leads here again.
        known = {one}.union(*(below[other] for other in cheaper))
        if len(known) > probes:
            continue
        below[one] = known
        dearer = [one - {j} | {j + 1} for j in one if j + 1 not in one and j + 1 < hashes_per_table]
        ahead += [*dearer, one | {0}]
    sets = sorted(sorted(one) for one in below)
    return Pattern.from_lists(sorted(sets, key=lambda one: sum((1 + j) ** 2 for j in one)))


def codes_of_probes(codes: Any, costs: Tensor, flips: Any, probes: int) -> Any:
    """Codes of the inputs themselves, and of the further buckets that cost the least.

    Args:
        codes: ``(L, n)`` int32, an array or a tensor.
        costs: ``(n, L * K)`` floats: how certain each elementary hash is.
        flips: ``(n, L * K)`` int32: what a change of an elementary hash does to the code, by xor.
        probes: number of further buckets in each table; fewer if a table has no more.

    Returns:
        ``((1 + probes) L, n)`` int32, in the form of ``codes``: L codes of the inputs, then L codes
        of the next bucket of each table, and so on.
    """
    num_tables, count = codes.shape
    hashes = costs.shape[1] // num_tables
    probes = min(probes, 2**hashes - 1)
    sets = flip_sets(hashes, probes)
    if plain(costs):
        changed = np.zeros((sets.num_rows, 1 + sets.indices.max()), bool)
        changed[sets.entry_rows(), sets.indices] = True
        codes, flips, chosen = (on_device(each, costs.device) for each in (codes, flips, changed))
        return native(plain_probes.probe_codes(codes, costs, flips, chosen, probes))
    out = np.empty(((1 + probes) * num_tables, count), np.int32)
    kernels.probe_codes(codes, array_view(costs), on_host(flips), sets, out)
    return out


def sign_flips(hashes_per_table: int, num_tables: int, count: int, device: torch.device) -> Tensor:
    """``(count, L * K)`` int32: the bit of each sign in its code."""
    bits = 1 << torch.arange(hashes_per_table, dtype=torch.int32, device=device)
    return bits.repeat(count, num_tables)
