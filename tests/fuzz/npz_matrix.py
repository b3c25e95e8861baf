"""Matrices in npz files: what SciPy reads, or an error.

An input is a zip archive, or the arrays of one, one after the other: with them a changed byte is
not one that the archive's checksum finds.
"""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from helpers.limits import more_memory
from scipy import sparse

from fuzz.shared import MEMORY, check_sentence
from slide.data import DataError
from slide.data.row_files import read_npz_blocks
from slide.sparse import check_pattern

_MAGIC = b"\x93NUMPY"
_NAMES = {b"coo": ("row", "col"), b"dia": ("offsets",)}
_FIRST = ("format", "shape", "data")
# Matrices of more numbers are not compared.
_COMPARED = 1 << 20


def seeds(folder: Path) -> list[bytes]:
    """See `fuzz`."""
    whole = sparse.csr_array(np.array([[0, 1, 0], [2, 0, 0.5]], np.float32))
    found = []
    for kind in ("csr", "csc", "coo", "dia"):
        file = io.BytesIO()
        sparse.save_npz(file, whole.asformat(kind))
        with zipfile.ZipFile(file) as archive:
            names = [*_FIRST, *_NAMES.get(kind.encode(), ("indices", "indptr"))]
            found.append(b"".join(archive.read(f"{name}.npy") for name in names))
    return [*found, file.getvalue(), found[0].replace(b"csr", b"c\nr")]  # Of two lines.


def _as_file(data: bytes) -> bytes:
    if data.startswith(b"PK"):
        return data
    arrays = [_MAGIC + each for each in data.split(_MAGIC)[1:]]
    kind = next((kind for kind in _NAMES if arrays and kind in arrays[0]), b"")
    names = (*_FIRST, *_NAMES.get(kind, ("indices", "indptr")))
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in zip(names, arrays, strict=False):
            archive.writestr(f"{name}.npy", array)
    return file.getvalue()


def check(data: bytes, folder: Path) -> bool:
    """See `fuzz`."""
    path, marks = folder / "x.npz", folder / "y.npz"
    path.write_bytes(_as_file(data))
    block = _read(path, None)
    if block is not None:
        check_pattern("columns", block.features, None, 2**31)
        assert np.isfinite(block.features.values).all()
        peer: Any = sparse.load_npz(path).tocsr().astype(np.float32)
        if np.prod([int(size) for size in peer.shape], dtype=float) < _COMPARED:
            indptr, indices, values = block.features
            found = sparse.csr_array((values, indices, indptr), shape=peer.shape)
            np.testing.assert_array_equal(found.toarray(), peer.toarray())
        marks.write_bytes(path.read_bytes())
        _read(path, marks)
    return block is not None


def _read(path: Path, labels: Path | None) -> Any:
    try:
        with more_memory(MEMORY):
            (block,) = read_npz_blocks(path, labels)
    except DataError as error:
        check_sentence(error, path.parent)
        return None
    return block
