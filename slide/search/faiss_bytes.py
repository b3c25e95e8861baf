"""Reads and checks bytes of FAISS indexes that come from files: FAISS trusts numbers in them."""

from typing import Any, NamedTuple

import numpy as np


class _Parts(NamedTuple):
    """Vectors ``(n, D)`` and their ids, in the order of their lists; no centres: without lists."""

    vectors: np.ndarray
    ids: np.ndarray
    centres: np.ndarray
    sizes: np.ndarray


def faiss_index(data: np.ndarray, width: int, most: int, largest: float = np.inf) -> Any:
    """The index of inner products of which ``faiss.serialize_index`` gave the bytes, uint8.

    It is flat or has inverted lists. Raises ValueError unless its vectors have ``width`` numbers
    and a length of at most ``largest``, and its ids are below ``most``, each at most once.
    """
    found = _Bytes(np.ascontiguousarray(data, np.uint8), width)
    parts = found.index()
    found.need(not found.left and len(parts.ids) <= most)
    if len(parts.ids) and not 0 <= parts.ids.min() <= parts.ids.max() < most:
        raise ValueError(f"it names rows that are not in [0, {most})")
    if len(np.unique(parts.ids)) < len(parts.ids):
        raise ValueError("it names a row twice")
    for rows in (parts.vectors, parts.centres):
        # Sums of squares, which are not finite if a number is not.
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.einsum("ij,ij->i", rows, rows)
        if not (np.isfinite(squares) & (squares <= largest**2)).all():
            raise ValueError(f"it has vectors that are not finite, or longer than {largest}")
    return _made(parts, width)


def _made(parts: _Parts, width: int) -> Any:
    import faiss  # Imported here: it loads slowly, and few data sets need it.

    index: Any = faiss.IndexFlatIP(width)
    if not len(parts.centres):
        index.add(parts.vectors)
        return index
    index.add(parts.centres)
    index = faiss.IndexIVFFlat(index, width, len(parts.sizes), faiss.METRIC_INNER_PRODUCT)
    end = 0
    for number, size in enumerate(parts.sizes.tolist()):
        end += size
        arrays = (x[end - size : end] for x in (parts.ids, parts.vectors.view(np.uint8)))
        index.invlists.add_entries(number, size, *map(faiss.swig_ptr, arrays))
    index.ntotal, index.is_trained = len(parts.ids), True
    return index


class _Bytes:
    """Bytes of an index, from the first one that was not read."""

    def __init__(self, data: np.ndarray, width: int):
        self._data, self._at, self._width = data, 0, width

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def need(self, fits: object) -> None:
        if not fits:
            raise ValueError("it is another index than slide makes")

    def index(self, centres: bool = False) -> _Parts:
        """The next index, or that of the centres of lists."""
        name, (width,) = self._numbers("<u1", 4).tobytes(), self._whole("<i4", 1)
        rows, *_ = self._whole("<i8", 3)
        self.need((width, *self._whole("<u1", 1), *self._whole("<i4", 1)) == (self._width, 1, 0))
        self.need(0 <= rows <= self.left)
        if name == b"IwFl" and not centres:
            return self._lists(rows)
        self.need(name == b"IxFI")
        vectors = self._vector("<f4", rows * self._width).reshape(rows, self._width)
        return _Parts(vectors, np.arange(rows), vectors[:0], vectors[:0])

    def _lists(self, rows: int) -> _Parts:
        lists, _ = self._whole("<u8", 2)
        centres = self.index(centres=True).vectors
        self.need(
            self._whole("<u1", 1) == [0] and not len(self._vector("<u8"))
        )  # A look-up of ids.
        self.need(self._numbers("<u1", 4).tobytes() == b"ilar")
        self.need(self._whole("<u8", 2) == [lists, 4 * self._width] and len(centres) == lists > 0)
        form, sizes = self._numbers("<u1", 4).tobytes(), self._vector("<u8")
        if form == b"sprs":  # Pairs of a list and its size.
            self.need(len(sizes) % 2 == 0 and (sizes[::2] < lists).all())
            pairs, sizes = sizes.reshape(-1, 2), np.zeros(lists, np.uint64)
            sizes[pairs[:, 0]] = pairs[:, 1]
        self.need(form in (b"full", b"sprs") and len(sizes) == lists)
        self.need((sizes <= rows).all() and sizes.sum() == rows)
        vectors, ids = np.empty((rows, self._width), np.float32), np.empty(rows, np.int64)
        end = 0
        for size in sizes.tolist():
            end += size
            part = self._numbers("<f4", size * self._width)
            vectors[end - size : end] = part.reshape(size, self._width)
            ids[end - size : end] = self._numbers("<i8", size)
        return _Parts(vectors, ids, centres, sizes)

    def _vector(self, dtype: str, size: int | None = None) -> np.ndarray:
        """The next array, after its length."""
        (length,) = self._whole("<u8", 1)
        self.need(size in (None, length))
        return self._numbers(dtype, length)

    def _whole(self, dtype: str, count: int) -> list[int]:
        return self._numbers(dtype, count).tolist()

    def _numbers(self, dtype: str, count: int) -> np.ndarray:
        size = np.dtype(dtype).itemsize * count
        if size > self.left:
            raise ValueError("its bytes end early")
        self._at += size
        return np.frombuffer(self._data[self._at - size : self._at].tobytes(), dtype)
