"""Data sets as folders of memory-mapped arrays.

A cache folder holds ``meta.json`` and, for each split, the five ``.npy`` files of `ARRAYS`. It is
written under another name and renamed when complete, so a folder that has its final name is whole.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from slide.data.dataset import Block, SparseDataset, Split
from slide.sparse import CSR, Pattern

try:
    import fcntl
except ImportError:  # Windows: two processes may then do the same work
    fcntl = None

__all__ = ["cached"]

log = logging.getLogger(__name__)

# Raised whenever a folder written by an older version must not be read any more.
FORMAT = 1
ARRAYS = {
    "feature_indptr": np.dtype(np.int64),
    "feature_indices": np.dtype(np.int32),
    "feature_values": np.dtype(np.float32),
    "label_indptr": np.dtype(np.int64),
    "label_indices": np.dtype(np.int32),
}
SPLITS = ("train", "test")
# Without locks, another process may be putting its folder in the place of ours.
REOPEN_TRIES = 20

Source = Mapping[str, Any]
Blocks = Callable[[], Iterable[Block]]


def cached(
    cache: str | Path,
    *,
    name: str,
    key: Source,
    state: Source,
    num_features: int,
    num_labels: int,
    train: Blocks,
    test: Blocks,
) -> SparseDataset:
    """Opens a data set from its cache, writing the cache first where that is needed.

    Args:
        cache: folder of caches; this data set gets a folder below it, named by a digest of ``key``.
        name: the data set's name.
        key: what is asked for: paths, generator's parameters. JSON values.
        state: what the source looks like now: sizes, times. A cache of another state is replaced.
        num_features, num_labels: of both splits.
        train, test: called to produce the rows when there is no valid cache.

    Returns:
        The data set over memory-mapped arrays; nothing but a few pages has been read.

    Raises:
        OSError: the cache cannot be written; an older cache is left as it was.
    """
    source = json.loads(json.dumps({"key": key, "state": state}))
    digest = hashlib.sha256(json.dumps(source["key"], sort_keys=True).encode()).hexdigest()[:16]
    folder = Path(cache) / digest
    found = _open(folder, name, source)
    if found is not None:
        return found
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_suffix(".lock")) as alone:
        found = _open(folder, name, source)  # another process may have finished meanwhile
        if found is not None:
            return found
        if alone:
            for left in folder.parent.glob(f"{digest}.*.tmp"):  # from processes that were killed
                shutil.rmtree(left, ignore_errors=True)
        temporary = _temporary(folder)
        try:
            meta = {
                "format": FORMAT,
                "source": source,
                "num_features": num_features,
                "num_labels": num_labels,
                "train": _write_split(temporary / "train", train()),
                "test": _write_split(temporary / "test", test()),
            }
            (temporary / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")
            # Without a lock another process may have finished meanwhile.
            if alone or _open(folder, name, source) is None:
                _install(temporary, folder)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                message = f"no space left for the cache of {name}"
                raise OSError(error.errno, message, str(folder)) from error
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        found = _open(folder, name, source)
        for _ in range(0 if alone else REOPEN_TRIES):
            if found is None:
                time.sleep(0.1)
                found = _open(folder, name, source)
    if found is None:
        raise OSError(errno.EIO, f"the cache of {name} cannot be read back", str(folder))
    return found


class ArrayWriter:
    """Writes a one-dimensional ``.npy`` file piece by piece.

    Args:
        path: the file.
        dtype: of the array.
    """

    def __init__(self, path: Path, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.length = 0
        self._file = path.open("wb")
        self._file.write(_header(dtype, 0))

    def append(self, array: np.ndarray) -> None:
        """Appends a one-dimensional array, converted to the file's type."""
        # Not tofile: it reports a full disk without its errno.
        self._file.write(np.ascontiguousarray(array, dtype=self.dtype).data)
        self.length += len(array)

    def close(self) -> None:
        """Writes the header anew, now that the length is known."""
        try:
            self._file.seek(0)
            self._file.write(_header(self.dtype, self.length))
        finally:
            self._file.close()


def _header(dtype: np.dtype, length: int) -> bytes:
    # numpy leaves room for a length of any number of digits, so all headers have one size.
    buffer = BytesIO()
    fields = {"descr": dtype.str, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def _write_split(folder: Path, blocks: Iterable[Block]) -> dict[str, int]:
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
        "rows": files["feature_indptr"].length - 1,
        "nonzeros": files["feature_indices"].length,
        "labels": files["label_indices"].length,
        "skipped": skipped,
    }


def _open(folder: Path, name: str, source: Source) -> SparseDataset | None:
    """Opens a cache folder; None if there is none, or not a valid one of this source."""
    try:
        before = os.stat(folder)
        meta = json.loads((folder / "meta.json").read_text())
        if meta["format"] != FORMAT or meta["source"] != source:
            return None
        size = meta["num_features"], meta["num_labels"]
        train, test = (_open_split(folder / split, meta[split], *size) for split in SPLITS)
        after = os.stat(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # Another process may have replaced the folder between two of the files.
    if (before.st_dev, before.st_ino) != (after.st_dev, after.st_ino):
        return None
    return SparseDataset(name, train, test, *size)


def _open_split(folder: Path, counts: dict[str, int], num_features: int, num_labels: int) -> Split:
    arrays = {}
    for array, dtype in ARRAYS.items():
        # Copy on write, and a plain array: compiled kernels take it for one in memory.
        arrays[array] = np.asarray(np.load(folder / f"{array}.npy", mmap_mode="c"))
        if arrays[array].dtype != dtype:
            raise ValueError(f"{array} is of type {arrays[array].dtype}, not {dtype}")
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
        log.warning("%s: %d malformed lines were left out", folder, counts["skipped"])
    return Split(features, labels, num_features, num_labels)


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Waits until no other process holds the lock; yields whether there is a lock at all."""
    with path.open("ab") as file:
        alone = False
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
                alone = True
        yield alone  # closing the file releases the lock


def _temporary(folder: Path) -> Path:
    path = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.tmp")
    path.mkdir()
    return path


def _install(temporary: Path, folder: Path) -> None:
    """Gives a complete folder its final name; one that is there already is moved away first."""
    old = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.tmp")
    with suppress(FileNotFoundError):
        folder.rename(old)
    try:
        temporary.rename(folder)
    except OSError:
        # Without a lock another process may have put its folder here meanwhile: as good as ours.
        if not folder.exists():
            if old.exists():
                old.rename(folder)
            raise
    shutil.rmtree(old, ignore_errors=True)
