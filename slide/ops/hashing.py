"""Hash codes ``(L, n)`` int32 of SimHash and DWTA, codes of further buckets, folded codes."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slide.backend import array_view, on_host
from slide.ops.kernels import hashing as kernels
from slide.ops.kernels import products
from slide.ops.reference import hashing as reference
from slide.ops.table import operation
from slide.sparse import Pattern


@operation(reference.pack_signs)
def pack_signs(projections: Tensor, hashes_per_table: int) -> Tensor:
    """Codes of SimHash: bit k of ``out[l, i]`` is set where ``projections[i, l * K + k] > 0``."""
    if projections.dtype == torch.bfloat16:
        # The bytes of a bfloat16 number, read as an integer, have the same sign.
        projections = projections.view(torch.int16)
    count, width = projections.shape
    out = np.empty((width // hashes_per_table, count), np.int32)
    kernels.pack_signs(array_view(projections), hashes_per_table, out)
    return torch.from_numpy(out)


@operation(reference.project_sparse)
def project_sparse(
    indptr: np.ndarray, indices: np.ndarray, values: np.ndarray, directions: Tensor
) -> Tensor:
    """``out[b] = sum_j values[j] * directions[indices[j]]``, of the type of the values."""
    out = np.zeros((len(indptr) - 1, directions.shape[1]), values.dtype)
    products.weighted_sum(indptr, indices, values, array_view(directions), out)
    return torch.from_numpy(out)


@operation(reference.dwta_dense)
def dwta_dense(
    vectors: Tensor, coordinates: np.ndarray, hashes_per_table: int, shift: int
) -> Tensor:
    """Codes of DWTA: the digit of a bin is the position of its largest coordinate.

    vectors (n, D) floats; coordinates (L * K, M) int32; hashes_per_table: K digits in a code;
    shift: bits by which a digit is moved for each one that follows it in a code.
    """
    out = np.empty((len(coordinates) // hashes_per_table, len(vectors)), np.int32)
    words = array_view(vectors.contiguous()), coordinates, hashes_per_table, shift
    kernels.dwta_dense(*words, out)
    return torch.from_numpy(out)


@operation(reference.dwta_sparse)
def dwta_sparse(
    indptr: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    positions: np.ndarray,
    hashes_per_table: int,
    bits: int,
    shift: int,
    key: np.uint64,
    num_tables: int,
) -> Tensor:
    """Densified codes of DWTA of sparse vectors; only stored coordinates take part.

    indptr, indices, values: a CSR matrix (n, D); positions (D, P) int32; bits: log2 of M; key: of
    the densification's draws; num_tables: L; others see `dwta_dense`.
    """
    out = np.empty((num_tables, len(indptr) - 1), np.int32)
    shape = hashes_per_table, bits, shift, key
    kernels.dwta_sparse(indptr, indices, values, positions, *shape, out)
    return torch.from_numpy(out)


@operation(reference.dwta_runners)
def dwta_runners(
    vectors: Tensor, coordinates: np.ndarray, hashes_per_table: int, bits: int
) -> tuple[Tensor, Tensor]:
    """What the second-largest coordinate of each bin would change, ``(n, L * K)`` each.

    Returns floats, by how much the largest coordinate is larger, and int32, the change of the code
    by xor.
    """
    costs = vectors.new_empty(len(vectors), len(coordinates))
    flips = np.empty(costs.shape, np.int32)
    words = array_view(vectors.contiguous()), coordinates, hashes_per_table, bits
    kernels.dwta_runners(*words, array_view(costs), flips)
    return costs, torch.from_numpy(flips)


@operation(reference.probe_codes)
def probe_codes(codes: Any, costs: Tensor, flips: Any, sets: Pattern, probes: int) -> Tensor:
    """Codes of the buckets that are reached at the least cost, ``((1 + probes) * L, n)`` int32.

    codes (L, n) int32, an array or a tensor; costs (n, L * K) floats; flips (n, L * K) int32; sets:
    S rows; probes: at most S.
    """
    num_tables, count = codes.shape
    out = np.empty(((1 + probes) * num_tables, count), np.int32)
    kernels.probe_codes(on_host(codes), array_view(costs), on_host(flips), sets, out)
    return torch.from_numpy(out)


@operation(reference.fold)
def fold(codes: Any, num_buckets: int) -> Any:
    """Buckets ``[0, num_buckets)`` of int32 codes: equal for equal codes, otherwise as if drawn."""
    codes = np.ascontiguousarray(on_host(codes))
    out = np.empty_like(codes)
    kernels.fold(codes.reshape(-1), num_buckets, out.reshape(-1))
    return out
