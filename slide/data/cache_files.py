"""Files of a cache folder, written with a checksum, and compared before they are used."""

import os
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from slide.utils.files import pieces, side_by_side

__all__ = ["ArrayWriter", "CacheFile", "check_written", "write_extra"]


class CacheFile(NamedTuple):
    """A file, as the list of its folder names it.

    Attributes:
        size: bytes.
        header: length of the header; the checksum covers the data first and the header after it,
            which is known last.
        checksum: CRC-32.
    """

    size: int
    header: int
    checksum: int


class ArrayWriter:
    """Writes a one-dimensional ``.npy`` file piece by piece.

    Args:
        path: the file.
        dtype: type of the array.

    Attributes:
        length: numbers so far.
        written: what to compare the file with; once it is closed.
    """

    def __init__(self, path: Path, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.length = 0
        self.written = CacheFile(0, 0, 0)
        self._checksum = 0
        self._file = path.open("wb")
        self._file.write(_header(dtype, 0))

    def append(self, array: np.ndarray) -> None:
        """Appends a one-dimensional array, converted to the file's type."""
        # ndarray.tofile would report a full disk without its errno.
        data = np.ascontiguousarray(array, dtype=self.dtype).view(np.uint8).data
        self._file.write(data)
        self._checksum = crc32(data, self._checksum)
        self.length += len(array)

    def close(self) -> None:
        """Writes the header again: the length is known now."""
        header = _header(self.dtype, self.length)
        size = len(header) + self.length * self.dtype.itemsize
        self.written = CacheFile(size, len(header), crc32(header, self._checksum))
        try:
            self._file.seek(0)
            self._file.write(header)
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


def write_extra(folder: Path, extra: Mapping[str, np.ndarray | str]) -> dict[str, CacheFile]:
    """Writes what lies beside the rows: arrays as ``<name>.npy``, texts as files of their name.

    Returns:
        Of each file, by its name, what to compare it with.
    """
    found = {}
    for name, content in extra.items():
        if isinstance(content, str):
            data = content.encode()
            with (folder / name).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            found[name] = CacheFile(len(data), 0, crc32(data))
        else:
            writer = ArrayWriter(folder / f"{name}.npy", content.dtype)
            try:
                writer.append(content)
            finally:
                writer.close()
            found[f"{name}.npy"] = writer.written
    return found


def check_written(folder: Path, files: Mapping[str, Any]) -> None:
    """Reads files, side by side, and compares them with what was written.

    All of them, every time: bits of a disk change without the time of a file, and a wrong number
    trains a wrong model. It is little beside what follows: training reads all rows again and
    again, and then they come from the system's memory.

    Args:
        folder: a cache folder.
        files: for paths in it, `CacheFile` or a list of its numbers.

    Raises:
        OSError: a file is missing or cannot be read.
        ValueError: a file is not the one that was written.
    """

    def check(name: str) -> None:
        path, said = folder / name, CacheFile(*files[name])
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size != said.size:
                raise ValueError(f"{path} has {size} bytes, but {said.size} were written")
            found = 0
            file.seek(said.header)
            for piece in pieces(file):
                found = crc32(piece, found)
            file.seek(0)
            if crc32(file.read(said.header), found) != said.checksum:
                raise ValueError(f"{path} has changed since it was written")

    side_by_side(check, {name: CacheFile(*said).size for name, said in files.items()})
