"""Data sets as folders of memory-mapped arrays.

A folder has ``meta.json``, which names all files with their checksums and has one of its own, and
a folder of ``.npy`` files for each split. A damaged folder is written again.
"""

import errno
import json
import operator
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple
from zlib import crc32

import numpy as np

from slide.data.archives import ensure_space
from slide.data.dataset import PROPENSITY, Block, SparseDataset, Split
from slide.data.fetching import locked
from slide.sparse import CSR, Pattern
from slide.utils import checks
from slide.utils.array_checks import Stored
from slide.utils.files import (
    json_digest,
    naming,
    open_bytes,
    pieces,
    read_text,
    side_by_side,
    sync_folder,
    write_json,
)
from slide.utils.progress_bar import log

ARRAYS = {
    "feature_indptr": np.dtype(np.int64),
    "feature_indices": np.dtype(np.int32),
    "feature_values": np.dtype(np.float32),
    "label_indptr": np.dtype(np.int64),
    "label_indices": np.dtype(np.int32),
}

# A folder of another version is not read. Increase it when the content of a folder changes.
CACHE_VERSION = 4
SPLITS = ("train", "test")
# The list of a folder's files.
_META = "meta.json"
# A disk, a share of it, or a file that may not grow.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Without locks, another process may replace the folder at the moment when it is opened.
REOPEN_TRIES = 20

Source = Mapping[str, Any]


class CacheFile(NamedTuple):
    """A file in the list of its folder; the CRC-32 is of the data first, then of the header."""

    size: int
    header: int
    checksum: int


class ArrayWriter:
    """Writes a one-dimensional ``.npy`` file; ``written`` says at the end what is in it."""

    def __init__(self, path: Path, dtype: np.dtype) -> None:
        self.path, self.dtype = path, dtype
        self.length = 0
        self.written = CacheFile(0, 0, 0)
        self._checksum = 0
        self._file = path.open("wb")
        self._file.write(_header(dtype, 0))

    def append(self, array: np.ndarray) -> None:
        """Appends a one-dimensional array, converted to the file's type."""
        # ndarray.tofile would report a full disk without its errno.
        data = np.ascontiguousarray(array, dtype=self.dtype).view(np.uint8).data
        with naming(self.path):
            self._file.write(data)
        self._checksum = crc32(data, self._checksum)
        self.length += len(array)

    def close(self) -> None:
        """Writes the header again: the length is known now."""
        header = _header(self.dtype, self.length)
        size = len(header) + self.length * self.dtype.itemsize
        self.written = CacheFile(size, len(header), crc32(header, self._checksum))
        with naming(self.path), self._file:
            self._file.seek(0)
            self._file.write(header)
            self._file.flush()
            os.fsync(self._file.fileno())


def _header(dtype: np.dtype, length: int) -> bytes:
    # numpy leaves room for a length of any number of digits, so all headers have the same size.
    buffer = BytesIO()
    fields = {"descr": dtype.str, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def write_extra(folder: Path, extra: Mapping[str, np.ndarray | str]) -> dict[str, CacheFile]:
    """Writes what lies beside the rows: arrays as ``<name>.npy``, texts as files of their name."""
    found = {}
    for name, content in extra.items():
        if isinstance(content, str):
            data = content.encode()
        else:
            buffer, name = BytesIO(), f"{name}.npy"
            np.save(buffer, content)
            data = buffer.getvalue()
        with naming(folder / name), (folder / name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        found[name] = CacheFile(len(data), 0, crc32(data))
    return found


def check_written(folder: Path, files: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    """Compare all files of a folder with their list, every time: bits of a disk change silently.

    Whoever wrote them, kernels may read the arrays: columns are below ``sizes``, bounds rise,
    values are finite.
    """
    paths = [path for path in folder.rglob("[!.]*") if path.is_symlink() or not path.is_dir()]
    there = {path.relative_to(folder).as_posix() for path in paths}
    wanted = {f"{split}/{array}.npy" for split in SPLITS for array in ARRAYS}
    odd = there - files.keys() - {_META} | wanted - files.keys()
    odd |= {name for name in files if name not in there and (folder / name).exists()}
    # A link may lead to any file that this user can read.
    odd |= {name for name in there if (folder / name).is_symlink() or not (folder / name).is_file()}
    if odd:
        raise ValueError(
            f"{folder / min(odd)} is no file of the folder, or {_META} does not name it"
        )

    def check(name: str) -> None:
        path, said = folder / name, CacheFile(*files[name])
        with open_bytes(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != said.size:
                raise ValueError(f"{path} has {size} bytes, but {said.size} were written")
            check_piece = _numbers_check(path, said, file, sizes)
            found = 0
            file.seek(said.header)
            for piece in pieces(file):
                found = crc32(piece, found)
                check_piece(piece)
            file.seek(0)
            if crc32(file.read(said.header), found) != said.checksum:
                raise ValueError(f"{path} has changed since it was written")

    side_by_side(check, {name: CacheFile(*said).size for name, said in files.items()})


def _numbers_check(
    path: Path, said: CacheFile, file: IO[bytes], sizes: Mapping[str, int]
) -> Callable[[memoryview], object]:
    """What raises ValueError for a piece of an array of rows; in other files it sees nothing."""
    dtype = ARRAYS.get(path.stem) if path.parent.name in SPLITS else None
    if dtype is None:
        return len
    length = (said.size - said.header) // dtype.itemsize
    header = _header(dtype, length)
    if file.read(len(header)) != header or said.size != len(header) + length * dtype.itemsize:
        raise ValueError(f"{path} is no array of {dtype.name}")
    kind, _, part = path.stem.partition("_")
    last = 0

    def check_piece(piece: memoryview) -> None:
        nonlocal last
        numbers = np.frombuffer(piece, dtype)
        if part == "indptr":
            fits = last <= numbers[0] and not (numbers[1:] < numbers[:-1]).any()
            last = numbers[-1]
        elif part == "values":
            fits = np.isfinite(numbers.min()) and np.isfinite(numbers.max())
        else:
            fits = numbers.min() >= 0 and numbers.max() < sizes[kind]
        if not fits:
            raise ValueError(f"{path} holds numbers that no rows have")

    return check_piece


def write_split(
    folder: Path, blocks: Iterable[Block]
) -> tuple[dict[str, int], dict[str, CacheFile]]:
    """Writes the rows of a split without zeros into a new folder; memory holds one block."""
    folder.mkdir()
    skipped = 0
    with ExitStack() as stack:
        files = {}
        for array, dtype in ARRAYS.items():
            files[array] = ArrayWriter(folder / f"{array}.npy", dtype)
            stack.callback(files[array].close)
        bounds, columns, values, label_bounds, labels = files.values()
        bounds.append(np.zeros(1, np.int64))
        label_bounds.append(np.zeros(1, np.int64))
        for stored, own, left_out in blocks:
            features = stored.without_zeros()
            bounds.append(features.indptr[1:] + columns.length)
            columns.append(features.indices)
            values.append(features.values)
            label_bounds.append(own.indptr[1:] + labels.length)
            labels.append(own.indices)
            skipped += left_out
    counts = {"rows": bounds.length - 1, "nonzeros": columns.length, "labels": labels.length}
    written = {f"{array}.npy": file.written for array, file in files.items()}
    return counts | {"skipped": skipped}, written


def open_split(folder: Path, counts: dict[str, Any], num_features: int, num_labels: int) -> Split:
    """Opens the folder of a split, whose files have been compared."""
    # Copy on write, as ndarray: for compiled kernels they are arrays in memory.
    arrays = [np.asarray(np.load(folder / f"{array}.npy", mmap_mode="c")) for array in ARRAYS]
    features, labels = CSR(*arrays[:3]), Pattern(*arrays[3:])
    ends = int(features.indptr[-1]), int(features.indptr[-1]), int(labels.indptr[-1])
    sizes = tuple(map(len, (features.indices, features.values, labels.indices)))
    if ends != sizes or features.indptr[0] or labels.indptr[0]:
        raise ValueError(f"{folder}: rows end at {ends}, which the arrays do not")
    if counts["skipped"]:
        log(
            f"warning   {folder.name} rows: malformed lines were left out: {counts['skipped']} "
            "(dataset.lenient=false names the first)"
        )
    return Split(features, labels, num_features, num_labels)


def cached(
    cache: str | Path,
    *,
    name: str,
    key: Source,
    state: Source,
    blocks: Callable[[str], Iterable[Block]],
    num_columns: Callable[[], Sequence[int]],
    extra: Callable[[], Mapping[str, np.ndarray | str]] = dict,
    propensity: Sequence[float] = PROPENSITY,
    size: int = 0,
) -> SparseDataset:
    """Opens a data set from its cache, and writes the cache first where that is needed.

    A digest of ``key`` (what is asked for) names the folder; one of another ``state`` (sizes and
    times of the source) is replaced. ``blocks`` gives the rows of ``"train"`` and ``"test"``,
    ``extra`` is called after them, and last the numbers of features and labels.
    If the cache cannot be written, it raises OSError, and an older one stays as it was.
    """
    constants = check_propensity(propensity)
    source = json.loads(json.dumps({"key": key, "state": state}, default=operator.index))
    folder = Path(cache) / json_digest(source["key"])[:16]

    def write(temporary: Path) -> None:
        splits, files = {}, {}
        for split in SPLITS:
            splits[split], written = write_split(temporary / split, blocks(split))
            files |= {f"{split}/{file}": said for file, said in written.items()}
        files |= write_extra(temporary, extra())
        num_features, num_labels = num_columns()
        meta = {
            "format": CACHE_VERSION,
            "source": source,
            "source_hash": json_digest(source),
            "num_features": num_features,
            "num_labels": num_labels,
            **splits,
            "files": files,
        }
        write_json(temporary / _META, meta | {"sha256": json_digest(meta)})

    def reopen() -> tuple[SparseDataset | None, Exception | None]:
        try:
            return _open_cache(folder, name, source, constants), None
        except (OSError, ValueError) as error:
            return None, error

    found, _ = reopen()
    if found is not None:
        return found
    folder.parent.mkdir(parents=True, exist_ok=True)
    ensure_space(folder.parent, size, f"the cache of {name}")
    # Alone if there are locks.
    with locked(folder.with_suffix(".lock"), f"the cache of {name}") as alone:
        found, damage = reopen()
        if found is not None:  # Another process has written it meanwhile.
            return found
        if damage is not None:
            log(f"warning   the cache of {name} is written again: {damage}")
        if alone:
            # Left by processes that were killed.
            for left in folder.parent.glob(f"{folder.name}.*.tmp"):
                shutil.rmtree(left, ignore_errors=True)
        temporary = _aside(folder)
        temporary.mkdir()
        try:
            write(temporary)
            # Without a lock another process may have written the same meanwhile.
            if alone or reopen()[0] is None:
                _install(temporary, folder)
        except OSError as error:
            if error.errno in _FULL:
                message = f"no space left for the cache of {name}"
                raise OSError(error.errno, message, str(folder)) from error
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        found, cause = reopen()
        for _ in range(0 if alone else REOPEN_TRIES):
            if found is None:
                time.sleep(0.1)
                found, cause = reopen()
    if found is None:
        said = checks.error_message(cause) if cause else "another process removed or replaced it"
        message = f"the cache of {name} cannot be read back: {said}"
        raise OSError(errno.EIO, message, str(folder)) from cause
    return found


def check_propensity(constants: Sequence[float]) -> tuple[float, float]:
    """Returns the constants a and b as numbers."""
    checks.listing("propensity", constants)
    if len(constants) != 2:
        raise ValueError(f"propensity must be two numbers, a and b, not {list(constants)}")
    a, b = constants
    checks.not_negative("propensity[0]", a)
    checks.positive("propensity[1]", b)
    return float(a), float(b)


def _open_cache(
    folder: Path, name: str, source: Source, propensity: tuple[float, float]
) -> SparseDataset | None:
    """Opens a cache folder; None if there is no folder, or one of another source or version."""
    if not folder.exists():
        return None
    before, path = os.stat(folder), folder / _META
    try:
        meta = json.loads(read_text(path))
        digest = meta.pop("sha256", None)
        if meta["format"] != CACHE_VERSION or meta["source_hash"] != json_digest(source):
            return None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        said = checks.shortened(repr(error))
        raise ValueError(f"{path} has changed since it was written: {said}") from error
    if digest != json_digest(meta):
        raise ValueError(f"{path} has changed since it was written")
    try:
        stored = Stored(meta, {}, str(path))
        features, labels = (
            stored.count(f"num_{each}", 0, 2**31) for each in ("features", "labels")
        )
        check_written(folder, meta["files"], {"feature": features, "label": labels})
        train, test = (open_split(folder / each, meta[each], features, labels) for each in SPLITS)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{path} is not what slide has written: {error!r}") from error
    after = os.stat(folder)
    # Another process may have replaced the folder between two of the files.
    if (before.st_dev, before.st_ino) != (after.st_dev, after.st_ino):
        return None
    return SparseDataset(name, train, test, features, labels, propensity, folder, source)


def _aside(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.tmp")


def _install(temporary: Path, folder: Path) -> None:
    """Gives a complete folder its final name. An older folder of that name is moved away first."""
    old = _aside(folder)
    with suppress(FileNotFoundError):
        folder.rename(old)
    try:
        temporary.rename(folder)
        sync_folder(folder.parent)
    except OSError:
        # Without a lock another process may have put the same content here meanwhile.
        if not folder.exists():
            if old.exists():
                old.rename(folder)
            raise
    shutil.rmtree(old, ignore_errors=True)
