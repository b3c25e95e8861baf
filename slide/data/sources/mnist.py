"""MNIST, and sets of images in the same form: idx files of 28 x 28 pixels and of ten classes.

An idx file (http://yann.lecun.com/exdb/mnist/) begins with a magic number of four bytes: the third
is the type (8: unsigned bytes), the fourth the number of dimensions. The dimensions follow as
big-endian 32-bit numbers, and then the values. A row is an image: feature ``28 * y + x`` is a pixel
that is not black, with a value in (0, 1], and the only label is its class, one of 10.
"""

import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from slide.data.cache import cached
from slide.data.dataset import PROPENSITY, Block, SparseDataset
from slide.data.errors import DataError
from slide.data.fetching import Fetch, check_folders, ensure_files
from slide.sparse import CSR, Pattern
from slide.utils.files import file_state, open_bytes

IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
SIDE = 28
NUM_LABELS = 10
# Images that become rows at a time.
IMAGE_CHUNK = 4096
# 2 GB of pixels; they are read at once.
_MOST_IMAGES = 2**31 // SIDE**2
# 1 MB of a file is read at a time.
_PIECE = 1 << 20


def mnist(
    *,
    name: str,
    root: str | Path,
    cache: str | Path,
    propensity: Sequence[float] = PROPENSITY,
    fetch: Fetch | None = None,
    hint: str = "",
) -> SparseDataset:
    """Opens a set of images in four idx files, and reads the files the first time.

    `slide.data.sources.mnist` describes the rows.

    Args:
        root: folder of the files. They have their usual names, such as ``train-images-idx3-ubyte``,
            with ``.gz`` or without; under either name a file may be packed by gzip or not.
        cache, propensity, fetch, hint: see `slide.data.xmc`.

    Raises:
        DataError: a file is malformed or too short, or two files disagree.

    Example:
        >>> import pathlib, tempfile
        >>> from slide.data import mnist
        >>> image = bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(783) + b"a"
        >>> label = bytes([0, 0, 8, 1, 0, 0, 0, 1, 7])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for part in ("train", "t10k"):
        ...         _ = pathlib.Path(folder, f"{part}-images-idx3-ubyte").write_bytes(image)
        ...         _ = pathlib.Path(folder, f"{part}-labels-idx1-ubyte").write_bytes(label)
        ...     data = mnist(name="mine", root=folder, cache=folder)
        >>> data.train.features.indices.tolist(), data.train.labels.indices.tolist()
        ([783], [7])
    """
    check_folders(root=root, cache=cache)
    names = [path.name for pair in _idx_paths(Path(root)).values() for path in pair]
    ensure_files(Path(root), names, hint, fetch, _check_images)
    paths = _idx_paths(Path(root))  # Other ones than before, if files were fetched.
    key = {split: [str(path.resolve()) for path in pair] for split, pair in paths.items()}
    return cached(
        cache,
        name=name,
        key={"reader": "mnist", **key},
        state={"files": [file_state(path) for pair in paths.values() for path in pair]},
        blocks=lambda part: read_idx_blocks(*paths[part]),
        num_columns=lambda: (SIDE**2, NUM_LABELS),
        propensity=propensity,
    )


def read_idx_blocks(images: Path, labels: Path) -> Iterator[Block]:
    """Reads the rows of a split, in chunks."""
    pixels, classes = _read_idx(images, (SIDE, SIDE)), _read_idx(labels, ()).ravel()
    count = len(pixels)
    if len(classes) != count:
        raise DataError(
            f"{labels}: it has {len(classes)} labels for the {count} images of {images}"
        )
    if classes.max() >= NUM_LABELS:
        bad = int(np.argmax(classes >= NUM_LABELS))
        raise DataError(
            f"{labels}: label {classes[bad]} of image {bad} is not in [0, {NUM_LABELS})"
        )
    for start in range(0, count, IMAGE_CHUNK):
        label = classes[start : start + IMAGE_CHUNK].astype(np.int32)
        part = pixels[start : start + IMAGE_CHUNK]
        rows, columns = np.nonzero(part)
        bounds = np.searchsorted(rows, np.arange(len(part) + 1))
        values = part[rows, columns].astype(np.float32) / np.float32(255)
        features = CSR(bounds, columns.astype(np.int32), values)
        yield Block(features, Pattern(np.arange(len(label) + 1), label))


def _read_idx(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """The items of a file, which have this shape, as rows of bytes."""
    begin, magic = 8 + 4 * len(shape), bytes([0, 0, 8, 1 + len(shape)])
    header = _unpacked(path, begin)
    found = header[:4]
    if found != magic and len(found) == 4:
        raise DataError(f"{path}: it begins with {found.hex(' ')} instead of {magic.hex(' ')}")
    if len(header) < begin:
        raise DataError(f"{path}: it is cut off")
    rows, *sides = map(int, np.frombuffer(header[4:], ">u4"))
    if sides != list(shape):
        raise DataError(f"{path}: its rows are of shape {tuple(sides)} instead of {shape}")
    if not 0 < rows <= _MOST_IMAGES:
        raise DataError(f"{path}: it must have 1 to {_MOST_IMAGES} images, not {rows}")
    end = begin + rows * math.prod(shape)
    values = _unpacked(path, end + 1)
    if len(values) != end:
        said = f"it is longer than its {rows} rows" if len(values) > end else "it is cut off"
        raise DataError(f"{path}: {said}")
    return np.frombuffer(values, np.uint8, offset=begin).reshape(rows, -1)


def _unpacked(path: Path, most: int) -> bytes:
    """The first bytes of a file; its content says whether it is packed, as browsers unpack some."""
    with open_bytes(path) as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        pieces = []
        try:
            with gzip.open(file) if packed else file as unpacked:
                # Piece by piece: a header may promise more than there is memory.
                while most and (piece := unpacked.read(min(most, _PIECE))):
                    pieces.append(piece)
                    most -= len(piece)
            return b"".join(pieces)
        except EOFError:
            raise DataError(f"{path}: it is cut off") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path}: it cannot be unpacked: {error}") from error


def _idx_paths(root: Path) -> dict[str, list[Path]]:
    """The files of each split: packed ones, unless there is a file without the suffix."""

    def find(file: str) -> Path:
        return root / file if (root / file).is_file() else root / f"{file}.gz"

    return {split: [find(file) for file in files] for split, files in IDX_FILES.items()}


def _check_images(folder: Path) -> None:
    for pair in _idx_paths(folder).values():
        for _ in read_idx_blocks(*pair):
            pass
