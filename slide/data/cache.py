"""Data sets as folders of memory-mapped arrays.

A cache folder holds ``meta.json`` and, for each split, the five ``.npy`` files of `ARRAYS`; further
arrays may lie beside the splits. It is written under another name and renamed when complete, so a
folder that has its final name is whole.
"""

import errno
import hashlib
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from slide import checks
from slide.data.dataset import PROPENSITY, Block, SparseDataset, Split
from slide.data.fetching.lock import locked
from slide.sparse import CSR, Pattern

__all__ = ["cached"]

log = logging.getLogger(__name__)

# Raised whenever a folder written by an older version must not be read any more.
CACHE_VERSION = 2
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
# A number, or a function that gives it once all rows have been produced.
Count = int | Callable[[], int]


def cached(
    cache: str | Path,
    *,
    name: str,
    key: Source,
    state: Source,
    num_features: Count,
    num_labels: Count,
    train: Blocks,
    test: Blocks,
    extra: Callable[[], Mapping[str, np.ndarray]] = dict,
    propensity: Sequence[float] = PROPENSITY,
) -> SparseDataset:
    """Opens a data set from its cache, writing the cache first where that is needed.

    Args:
        cache: folder of caches; this data set gets a folder below it, named by a digest of ``key``.
        name: the data set's name.
        key: what is asked for: paths, generator's parameters. JSON values.
        state: what the source looks like now: sizes, times. A cache of another state is replaced.
        num_features, num_labels: of both splits; functions are called once all rows are written.
        train, test: called in this order to produce the rows, when there is no valid cache.
        extra: called after them for arrays to be put beside the splits, as ``<name>.npy``.
        propensity: constants a >= 0 and b > 0 of the data set; not part of the cache.

    Returns:
        The data set over memory-mapped arrays; nothing but a few pages has been read.

    Raises:
        OSError: the cache cannot be written; an older cache is left as it was.
        ValueError: ``propensity`` is out of range.
    """
    constants = check_propensity(propensity)
    source = json.loads(json.dumps({"key": key, "state": state}))
    folder = Path(cache) / _digest(source["key"])[:16]

    def reopen() -> SparseDataset | None:
        return _open_cache(folder, name, source, constants)

    def write(temporary: Path) -> None:
        splits = {
            "train": _write_split(temporary / "train", train()),
            "test": _write_split(temporary / "test", test()),
        }
        for array, values in extra().items():
            with closing(ArrayWriter(temporary / f"{array}.npy", values.dtype)) as file:
                file.append(values)
        meta = {
            "format": CACHE_VERSION,
            "source": source,
            "source_hash": _digest(source),
            "num_features": num_features if isinstance(num_features, int) else num_features(),
            "num_labels": num_labels if isinstance(num_labels, int) else num_labels(),
            **splits,
        }
        (temporary / "meta.json").write_text(json.dumps(meta, indent=2) + "\n")

    found = reopen()
    if found is not None:
        return found
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_suffix(".lock"), f"the cache of {name}") as alone:
        found = reopen()  # another process may have finished meanwhile
        if found is not None:
            return found
        if alone:
            for left in folder.parent.glob(f"{folder.name}.*.tmp"):  # of processes that were killed
                shutil.rmtree(left, ignore_errors=True)
        temporary = _temporary(folder)
        try:
            write(temporary)
            # Without a lock another process may have finished meanwhile.
            if alone or reopen() is None:
                _install(temporary, folder)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                message = f"no space left for the cache of {name}"
                raise OSError(error.errno, message, str(folder)) from error
            raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        found = reopen()
        for _ in range(0 if alone else REOPEN_TRIES):
            if found is None:
                time.sleep(0.1)
                found = reopen()
    if found is None:
        raise OSError(errno.EIO, f"the cache of {name} cannot be read back", str(folder))
    return found


def check_propensity(constants: Sequence[float]) -> tuple[float, float]:
    """The constants a and b as numbers.

    Raises:
        ValueError: unless there are two, a >= 0 and b > 0.
    """
    checks.listing("propensity", constants)
    if len(constants) != 2:
        raise ValueError(f"propensity must be two numbers, a and b, not {list(constants)}")
    a, b = constants
    checks.not_negative("propensity[0]", a)
    checks.positive("propensity[1]", b)
    return float(a), float(b)


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


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _open_cache(
    folder: Path, name: str, source: Source, propensity: tuple[float, float]
) -> SparseDataset | None:
    """Opens a cache folder; None if there is none, or not a valid one of this source."""
    try:
        before = os.stat(folder)
        meta = json.loads((folder / "meta.json").read_text())
        if meta["format"] != CACHE_VERSION or meta["source_hash"] != _digest(source):
            return None
        size = meta["num_features"], meta["num_labels"]
        train, test = (_open_split(folder / split, meta[split], *size) for split in SPLITS)
        after = os.stat(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # Another process may have replaced the folder between two of the files.
    if (before.st_dev, before.st_ino) != (after.st_dev, after.st_ino):
        return None
    return SparseDataset(name, train, test, *size, propensity, folder, source)


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
