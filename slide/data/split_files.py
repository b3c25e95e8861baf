"""The folder of a split: five ``.npy`` files, written piece by piece and opened as memory maps."""

import logging
import os
from collections.abc import Iterable
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from slide.data.dataset import Block, Split
from slide.sparse import CSR, Pattern

__all__ = ["ArrayWriter", "open_split", "write_split"]

log = logging.getLogger(__name__)

ARRAYS = {
    "feature_indptr": np.dtype(np.int64),
    "feature_indices": np.dtype(np.int32),
    "feature_values": np.dtype(np.float32),
    "label_indptr": np.dtype(np.int64),
    "label_indices": np.dtype(np.int32),
}


class ArrayWriter:
    """Writes a one-dimensional ``.npy`` file piece by piece.

    Args:
        path: the file.
        dtype: type of the array.
    """

    def __init__(self, path: Path, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.length = 0
        self.checksum = 0
        self._file = path.open("wb")
        self._file.write(_header(dtype, 0))

    def append(self, array: np.ndarray) -> None:
        """Appends a one-dimensional array, converted to the file's type."""
        # ndarray.tofile would report a full disk without its errno.
        data = np.ascontiguousarray(array, dtype=self.dtype).view(np.uint8).data
        self._file.write(data)
        self.checksum = crc32(data, self.checksum)
        self.length += len(array)

    def close(self) -> None:
        """Writes the header again: the length is known now."""
        try:
            self._file.seek(0)
            self._file.write(_header(self.dtype, self.length))
            self._file.flush()
            os.fsync(self._file.fileno())
        finally:
            self._file.close()


def _header(dtype: np.dtype, length: int) -> bytes:
    # numpy leaves room for a length of any number of digits, so all headers have the same size.
    buffer = BytesIO()
    fields = {"descr": dtype.str, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def write_split(folder: Path, blocks: Iterable[Block]) -> dict[str, Any]:
    """Writes the rows of a split into a new folder; memory is bounded by a block.

    Returns:
        The numbers of rows, nonzeros, labels, and lines that the reader skipped; of each array,
        the checksum and the time of the file.
    """
    folder.mkdir()
    skipped = 0
    with ExitStack() as stack:
        files = {}
        for array, dtype in ARRAYS.items():
            files[array] = ArrayWriter(folder / f"{array}.npy", dtype)
            stack.callback(files[array].close)
        files["feature_indptr"].append(np.zeros(1, np.int64))
        files["label_indptr"].append(np.zeros(1, np.int64))
        for features, labels, left_out in blocks:
            files["feature_indptr"].append(features.indptr[1:] + files["feature_indices"].length)
            files["feature_indices"].append(features.indices)
            files["feature_values"].append(features.values)
            files["label_indptr"].append(labels.indptr[1:] + files["label_indices"].length)
            files["label_indices"].append(labels.indices)
            skipped += left_out
    return {
        "written": {
            array: [file.checksum, (folder / f"{array}.npy").stat().st_mtime_ns]
            for array, file in files.items()
        },
        "rows": files["feature_indptr"].length - 1,
        "nonzeros": files["feature_indices"].length,
        "labels": files["label_indices"].length,
        "skipped": skipped,
    }


def open_split(folder: Path, counts: dict[str, Any], num_features: int, num_labels: int) -> Split:
    """Opens the folder of a split.

    Args:
        folder: a folder that `write_split` made.
        counts: what that returned.
        num_features, num_labels: columns of the split.

    Raises:
        OSError: a file is missing.
        ValueError: the arrays do not agree with each other or with the counts, or were changed.
    """
    arrays = {}
    for array, dtype in ARRAYS.items():
        # Copy on write, as a plain array: for compiled kernels it is an array in memory.
        path = folder / f"{array}.npy"
        arrays[array] = np.asarray(np.load(path, mmap_mode="c"))
        if arrays[array].dtype != dtype:
            raise ValueError(f"{array} is of type {arrays[array].dtype}, not {dtype}")
        if arrays[array].ndim != 1 or (not arrays[array].size and array.endswith("indptr")):
            raise ValueError(f"{array} has the shape {arrays[array].shape}")
        if array in counts.get("written", {}):  # Not in caches of earlier versions.
            _check_unchanged(path, arrays[array].nbytes, *counts["written"][array])
    features = CSR(arrays["feature_indptr"], arrays["feature_indices"], arrays["feature_values"])
    labels = Pattern(arrays["label_indptr"], arrays["label_indices"])
    found = {
        "rows": len(features.indptr) - 1,
        "nonzeros": int(features.indptr[-1]),
        "labels": int(labels.indptr[-1]),
    }
    lengths = {
        "rows": labels.num_rows,
        "nonzeros": len(features.indices),
        "labels": len(labels.indices),
    }
    if found != lengths or any(found[key] != counts[key] for key in found):
        raise ValueError(f"counts {found} do not agree with {counts}")
    if len(features.values) != len(features.indices):
        raise ValueError("indices and values differ in length")
    if counts["skipped"]:
        log.warning(
            "%s rows: malformed lines were left out: %d (dataset.lenient=false names the first)",
            folder.name,
            counts["skipped"],
        )
    return Split(features, labels, num_features, num_labels)


def _check_unchanged(path: Path, size: int, checksum: int, written: int) -> None:
    """Raise ValueError if an array of ``size`` bytes is not the one that was written.

    A file is read only if its time has changed since then: large caches open in an instant.
    """
    if path.stat().st_mtime_ns == written:
        return
    with path.open("rb") as file:
        file.seek(-size, os.SEEK_END)
        found = 0
        while piece := file.read(1 << 22):
            found = crc32(piece, found)
    if found != checksum:
        raise ValueError(f"{path} has been changed")
