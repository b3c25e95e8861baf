"""A large sparse matrix, whose transpose is kept: autograd would make it in each backward pass.

Indices have 32 bits, since PyTorch converts others at each call.
"""

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slide.backend import array_view, on_device, uses_reference
from slide.ops.products import entry_products, samples_of, torch_entry_products, torch_weighted_sum
from slide.ops.ragged import gather_entries
from slide.sparse import CSR, check_pattern, check_scipy
from slide.utils import checks

# Number of the matrix's rows in a block of its transpose. A block reads that many numbers of the
# output's gradient in random order, and they fit into a core's cache.
TRANSPOSE_BLOCK_ROWS = 1 << 18
MAX_ENTRIES = 2**31 - 1


class _Block(NamedTuple):
    """Rows ``[begin, end)`` of an ``(N, D)`` matrix, transposed: ``(D, end - begin)`` as CSR."""

    begin: int
    end: int
    indptr: Tensor
    indices: Tensor
    values: Tensor


class _Elsewhere(NamedTuple):
    """An ``(N, D)`` matrix on a device, where entries have the order of rows or that of columns."""

    indptr: Tensor
    rows: Tensor
    columns: Tensor
    order: Tensor
    turned: Tensor
    own: Tensor


class CSRMatrix:
    """A sparse matrix that is made once and multiplied often; see `csr_matmul`.

    The object shares the memory of ``matrix`` where types allow it, so do not change ``matrix``
    afterwards. Its own ``values`` may be changed in place by operations of PyTorch, but not between
    a forward pass and its backward pass, which then raises.

    Args:
        matrix: a `CSR` matrix, a ``torch.sparse_csr_tensor``, or any SciPy sparse matrix or array.
            Entries at the same position are added up.
        num_columns: D; required for `CSR`, which does not hold it.

    Raises:
        TypeError: for another type, or values that are not float32 or float64.
        ValueError: for a malformed matrix, a matrix of more than 2^31 - 1 entries, or a tensor that
            requires a gradient.

    Attributes:
        shape: ``(N, D)``.
        indptr: ``(N + 1,)`` int32 tensor.
        indices: ``(nnz,)`` int32 tensor, column numbers.
        values: ``(nnz,)`` tensor, float32 or float64.

    Example:
        >>> import scipy.sparse, slide
        >>> matrix = slide.CSRMatrix(scipy.sparse.eye_array(3, 4, dtype="float32"))
        >>> matrix
        CSRMatrix(shape=(3, 4), entries=3, torch.float32)
    """

    _version = -1  # That of the values of which the other arrays are copies.

    def __init__(self, matrix: CSR | Tensor | Any, num_columns: int | None = None):
        csr, num_columns = _as_csr(matrix, num_columns)
        if len(csr.indices) > MAX_ENTRIES:
            raise ValueError(f"at most {MAX_ENTRIES} entries fit, not {len(csr.indices)}")
        check_pattern("columns", csr, None, num_columns)
        if csr.values.dtype not in (np.float32, np.float64):
            raise TypeError(f"values must be float32 or float64, not {csr.values.dtype}")
        self.shape = csr.num_rows, num_columns
        self.indptr = torch.from_numpy(csr.indptr.astype(np.int32))
        self.indices = torch.from_numpy(np.ascontiguousarray(csr.indices))
        self.values = torch.from_numpy(np.ascontiguousarray(csr.values))
        self._transpose: list[_Block] | None = None
        self._order: list[_Block] | None = None
        self._elsewhere: dict[torch.device, _Elsewhere] = {}
        _use_up_warning()

    def __getstate__(self) -> dict[str, Any]:
        # A copy builds its transpose when it needs one.
        return self.__dict__ | {"_transpose": None, "_order": None, "_elsewhere": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _use_up_warning()

    def __repr__(self) -> str:
        return f"CSRMatrix(shape={self.shape}, entries={len(self.values)}, {self.values.dtype})"

    def with_values(self, values: Tensor) -> "CSRMatrix":
        """A matrix with the same pattern and other values ``(nnz,)``, whose memory it shares."""
        arrays = array_view(self.indptr).astype(np.int64), array_view(self.indices)
        return CSRMatrix(CSR(*arrays, array_view(values)), self.shape[1])

    def product(self, x: Tensor, values: Tensor | None) -> Tensor:
        """``matrix @ x``, with other entries ``values`` unless they are None."""
        num_rows = self.shape[0]
        if uses_reference(x):
            m = self._on(x.device)
            own = m.own if values is None else values
            found = torch_weighted_sum(m.indptr, m.columns, own, _as_columns(x))
            return found.view(num_rows, *x.shape[1:])
        used = self.values if values is None else values.contiguous()
        return _multiply(self.indptr, self.indices, used, x, num_rows)

    def transposed_product(self, grad: Tensor, values: Tensor | None) -> Tensor:
        """``matrix.T @ grad``, with other entries ``values`` unless they are None."""
        if uses_reference(grad):
            m = self._on(grad.device)
            ordered = (m.own if values is None else values)[m.order]
            found = torch_weighted_sum(m.turned, m.rows[m.order], ordered, _as_columns(grad))
            return found.view(self.shape[1], *grad.shape[1:])
        total = None
        for block in self.transpose(values):
            own = grad[block.begin : block.end]
            part = _multiply(block.indptr, block.indices, block.values, own, self.shape[1])
            total = part if total is None else total.add_(part)
        assert total is not None
        return total

    def entry_products(self, grad: Tensor, x: Tensor) -> Tensor:
        """``<grad[row], x[column]>`` for each entry, ``(nnz,)``."""
        grad, x = _as_columns(grad), _as_columns(x)
        if uses_reference(x):
            m = self._on(x.device)
            return torch_entry_products(m.rows, m.columns, grad, x)
        if not x.numel() or not grad.numel():
            return torch.zeros(len(self.indices), dtype=x.dtype)
        return entry_products(array_view(self.indptr), array_view(self.indices), grad, x)

    def _on(self, device: torch.device) -> "_Elsewhere":
        """The matrix and its transpose on a device; copied once and kept."""
        self._forget_old_values()
        if device not in self._elsewhere:
            parts = self.indptr, self.indices, self.values
            indptr, columns, own = (on_device(part, device) for part in parts)
            ascending, order = columns.sort(stable=True)
            numbers = torch.arange(self.shape[1] + 1, dtype=columns.dtype, device=device)
            turned = torch.searchsorted(ascending, numbers)
            rows = samples_of(indptr.diff(), len(columns))
            self._elsewhere[device] = _Elsewhere(indptr, rows, columns, order, turned, own)
        return self._elsewhere[device]

    def _forget_old_values(self) -> None:
        """After a change of the entries in place, their copies are made anew."""
        version = -1 if self.values.is_inference() else self.values._version
        if version != self._version:
            self._version, self._transpose, self._elsewhere = version, None, {}

    def transpose(self, values: Tensor | None = None) -> list[_Block]:
        """The transpose of ``values`` ``(nnz,)`` or its own, in blocks; its order is kept."""
        if values is None:
            self._forget_old_values()
            if self._transpose is None:
                self._transpose = self._sort(array_view(self.values))
            return self._transpose
        if self._order is None:
            self._order = self._sort(np.arange(len(self.indices), dtype=np.int32))
        entries, blocks = array_view(values.contiguous()), []
        for block in self._order:
            ordered = torch.empty(len(block.values), dtype=values.dtype)
            gather_entries(entries, array_view(block.values), array_view(ordered))
            blocks.append(block._replace(values=ordered))
        return blocks

    def _sort(self, values: np.ndarray) -> list[_Block]:
        from scipy import sparse  # Imported here: it takes long, and few programs need it.

        matrix = CSR(array_view(self.indptr), array_view(self.indices), values)
        num_rows, num_columns = self.shape
        # Blocks differ by one row at most. An empty matrix has one block, too.
        bounds = np.linspace(0, num_rows, max(-(-num_rows // TRANSPOSE_BLOCK_ROWS), 1) + 1).astype(
            np.int64
        )
        blocks = []
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            part = matrix.slice(begin, end)
            triple = part.values, part.indices, part.indptr
            turned = sparse.csr_array(triple, shape=(end - begin, num_columns)).tocsc()
            arrays = (turned.indptr, turned.indices, turned.data)
            blocks.append(_Block(begin, end, *map(torch.from_numpy, arrays)))
        return blocks


def _as_csr(matrix: Any, num_columns: int | None) -> tuple[CSR, int]:
    """A matrix of any kind as `CSR` with the types that kernels need, and its number of columns."""
    if isinstance(matrix, CSR):
        if num_columns is None:
            raise ValueError("a CSR matrix needs num_columns, its number of columns")
        checks.whole("num_columns", num_columns, 0)
        return matrix, num_columns
    if isinstance(matrix, Tensor):
        if matrix.layout != torch.sparse_csr or matrix.ndim != 2:
            raise TypeError(f"a tensor must be 2-d and sparse_csr, not {matrix.layout}")
        if matrix.requires_grad:
            raise ValueError("the matrix must not require a gradient; pass `values` to csr_matmul")
        parts = (matrix.crow_indices(), matrix.col_indices(), matrix.values())
        arrays = [array_view(part) for part in parts]
    else:
        from scipy import sparse  # Imported here: see `CSRMatrix._sort`.

        if not sparse.issparse(matrix):
            raise TypeError(
                f"the matrix must be CSR, torch.sparse_csr or SciPy, not {type(matrix)}"
            )
        check_scipy(matrix, "the entries")
        matrix = matrix.tocsr()
        arrays = [matrix.indptr, matrix.indices, matrix.data]
    if num_columns not in (None, matrix.shape[1]):
        raise ValueError(f"num_columns={num_columns} does not fit a matrix {tuple(matrix.shape)}")
    if matrix.shape[1] > MAX_ENTRIES:
        raise ValueError(f"at most {MAX_ENTRIES} columns fit, not {matrix.shape[1]}")
    indptr, indices = arrays[0].astype(np.int64), arrays[1].astype(np.int32, copy=False)
    return CSR(indptr, indices, arrays[2]), matrix.shape[1]


def _as_columns(x: Tensor) -> Tensor:
    """``(n,)`` or ``(n, K)`` as a contiguous matrix."""
    return (x if x.ndim == 2 else x[:, None]).contiguous()


def _multiply(indptr: Tensor, indices: Tensor, values: Tensor, x: Tensor, num_rows: int) -> Tensor:
    """The product of a CSR matrix with ``x`` ``(D,)`` or ``(D, K)``."""
    if not x.numel() or not num_rows:
        return x.new_zeros(num_rows, *x.shape[1:])
    matrix = torch.sparse_csr_tensor(
        indptr, indices, values, (num_rows, len(x)), check_invariants=False
    )
    if x.numel() == len(x) and torch.backends.mkl.is_available():
        return (matrix @ x.reshape(-1)).view(num_rows, *x.shape[1:])
    # Without MKL, PyTorch has no product with a vector.
    return torch.sparse.mm(matrix, x.reshape(len(x), -1)).view(num_rows, *x.shape[1:])


def _use_up_warning() -> None:
    """Trigger and hide the warning "CSR tensors are in beta", which each process gives once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor([0], [], [], (0, 0))
