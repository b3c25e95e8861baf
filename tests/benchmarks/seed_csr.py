"""A large sparse matrix times a vector or a few, and the gradient of a masked squared error.

850,000 x 210,000, 0.1 % not zero, in the first case.
Beside slide's product stand PyTorch's: CSR with 32-bit and with 64-bit indices, and COO. The
backward pass is that of ``((mask * (y - target)) ** 2).sum()`` by x, the product's part of it
alone: from dL/dy to dL/dx. Times are the best of some repeats, the peers' backward of one or two.
"""

import gc
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from slide.functional.sparse_linear import csr_matmul
from slide.ops.csr import CSRMatrix
from slide.sparse import CSR

ROWS, COLUMNS, DENSITY = 850_000, 210_000, 0.001
VECTORS = (1, 8)
# PyTorch's COO products and gradients need some 60 bytes an entry.
MOST_PEER_ENTRIES = 20_000_000


def make_matrix(num_rows: int) -> CSR:
    """Columns at random, ascending in each row, as files have them."""
    rng = np.random.default_rng(0)
    indptr = np.zeros(num_rows + 1, np.int64)
    np.cumsum(rng.binomial(COLUMNS, DENSITY, num_rows), out=indptr[1:])
    indices = rng.integers(0, COLUMNS, indptr[-1], dtype=np.int32)
    for begin in range(0, num_rows, 10_000):
        bounds = indptr[begin : begin + 10_001]
        part = indices[bounds[0] : bounds[-1]]
        row = np.repeat(np.arange(len(bounds) - 1, dtype=np.int64), np.diff(bounds))
        part[:] = (np.sort(row * COLUMNS + part) - row * COLUMNS).astype(np.int32)
    return CSR(indptr, indices, rng.standard_normal(indptr[-1], np.float32))


def best_ms(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - begin))
    return min(times)


def upstream(y: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(y.shape, generator=generator) < 0.5
    return 2 * mask * (y.detach() - torch.randn(y.shape, generator=generator))


def measure(
    name: str,
    product: Callable[[Tensor], Tensor],
    num_vectors: int,
    entries: int,
    repeats: tuple[int, int],
    expected: Tensor | None = None,
) -> tuple[dict[str, object], Tensor]:
    """A row of the table, and the gradient, which must be ``expected``."""
    torch.manual_seed(0)
    x = torch.randn(COLUMNS, num_vectors, requires_grad=True)
    y = product(x)
    grad = upstream(y)

    def backward() -> Tensor:
        return torch.autograd.grad(y, x, grad, retain_graph=True)[0]

    found = backward() if repeats[1] > 1 else None
    forward_ms = best_ms(lambda: product(x), repeats[0])
    begin = time.perf_counter()
    last = backward()
    backward_ms = 1e3 * (time.perf_counter() - begin)
    if found is not None:
        backward_ms = min(backward_ms, best_ms(backward, repeats[1]))
        assert torch.equal(found, last)
    if expected is not None:
        assert (last - expected).norm() <= 1e-5 * expected.norm(), f"{name}: another gradient"
    row = {
        "case": name,
        "entries": entries,
        "vectors": num_vectors,
        "forward_ms": round(forward_ms, 1),
        "backward_ms": round(backward_ms, 1),
        "backward_to_forward": round(backward_ms / forward_ms, 2),
    }
    return row, last


def rows(scale: float = 1.0, peers: bool = True) -> list[dict]:
    csr = make_matrix(round(scale * ROWS))
    matrix = CSRMatrix(csr, COLUMNS)
    begin = time.perf_counter()
    matrix.transpose()
    index_ms = round(1e3 * (time.perf_counter() - begin), 1)
    entries, shape, found = len(csr.indices), matrix.shape, []
    arrays = [torch.from_numpy(array) for array in csr]

    def csr_peer(index: torch.dtype) -> Tensor:
        indptr, indices, values = arrays
        return torch.sparse_csr_tensor(
            indptr.to(index), indices.to(index), values, shape, check_invariants=False
        )

    kinds = {"torch CSR, 32-bit": lambda: csr_peer(torch.int32)}
    if entries <= MOST_PEER_ENTRIES:
        kinds["torch CSR, 64-bit"] = lambda: csr_peer(torch.int64)
        kinds["torch COO"] = lambda: csr_peer(torch.int64).to_sparse_coo().coalesce()
    expected = {}
    for count in VECTORS:
        row, expected[count] = measure("ours", partial(csr_matmul, matrix), count, entries, (7, 7))
        found.append(row | {"index_ms": index_ms})
    values = matrix.values.clone().requires_grad_()
    row, _ = measure(
        "ours, gradient of A's values too",
        partial(csr_matmul, matrix, values=values),
        1,
        entries,
        (7, 3),
        expected[1],
    )
    found.append(row)
    del values
    for name in kinds if peers else ():
        peer = kinds[name]()
        for count in VECTORS:
            row, _ = measure(
                name, partial(torch.sparse.mm, peer), count, entries, (7, 1), expected[count]
            )
            found.append(row)
            gc.collect()
        del peer
    return found
