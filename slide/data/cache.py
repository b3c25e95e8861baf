"""Data sets as folders of memory-mapped arrays.

A cache folder holds ``meta.json`` and a folder of arrays for each split (`slide.data.split_files`).
Further arrays may lie beside the splits. A folder is written under another name and gets its final
name when it is complete.
"""

import errno
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np

from slide import checks
from slide.data.dataset import PROPENSITY, Block, SparseDataset
from slide.data.fetching.lock import locked
from slide.data.split_files import ArrayWriter, open_split, write_split
from slide.files import sync_folder, write_json

__all__ = ["cached"]

# A folder of another version is not read. Increase it when the content of a folder changes.
CACHE_VERSION = 2
SPLITS = ("train", "test")
# A disk, a share of it, or a file that may not grow.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Without locks, another process may replace the folder at the moment when it is opened.
REOPEN_TRIES = 20

Source = Mapping[str, Any]
Blocks = Callable[[], Iterable[Block]]
# A number, or a function that returns it when all rows have been produced.
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
    size: int = 0,
) -> SparseDataset:
    """Opens a data set from its cache, and writes the cache first where that is needed.

    Args:
        cache: folder of caches; this data set gets a folder in it, named by a digest of ``key``.
        name: the data set's name.
        key: what is asked for: paths, the parameters of a generator. JSON values.
        state: what the source looks like now: sizes, times. A cache of another state is replaced.
        num_features, num_labels: of both splits; functions are called when all rows are written.
        train, test: called in this order to produce the rows, if there is no valid cache.
        extra: called after them; its arrays are written beside the splits, as ``<name>.npy``.
        propensity: constants a >= 0 and b > 0 of the data set; they are not part of the cache.
        size: bytes that the cache will take; 0: this is not known.

    Returns:
        The data set over memory-mapped arrays, of which only a few pages have been read.

    Raises:
        OSError: the cache cannot be written; an older cache stays as it was.
        ValueError: ``propensity`` is out of range.
    """
    constants = check_propensity(propensity)
    source = json.loads(json.dumps({"key": key, "state": state}))
    folder = Path(cache) / _digest(source["key"])[:16]

    def write(temporary: Path) -> None:
        splits = {"train": write_split(temporary / "train", train())}
        splits["test"] = write_split(temporary / "test", test())
        for array, values in extra().items():
            with closing(ArrayWriter(temporary / f"{array}.npy", values.dtype)) as file:
                file.append(values)
        _write_meta(temporary, source, num_features, num_labels, splits)

    def reopen() -> SparseDataset | None:
        return _open_cache(folder, name, source, constants)

    found = reopen()
    if found is None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _check_space(folder.parent, name, size)
        found = _write_cache(folder, name, reopen, write)
    return found


def _write_cache(
    folder: Path,
    name: str,
    reopen: Callable[[], SparseDataset | None],
    write: Callable[[Path], None],
) -> SparseDataset:
    """Writes a cache folder, alone if there are locks, and opens it."""
    with locked(folder.with_suffix(".lock"), f"the cache of {name}") as alone:
        found = reopen()
        if found is not None:  # Another process has written it meanwhile.
            return found
        if alone:
            # Processes that were killed have left these.
            for left in folder.parent.glob(f"{folder.name}.*.tmp"):
                shutil.rmtree(left, ignore_errors=True)
        temporary = _temporary(folder)
        try:
            write(temporary)
            # Without a lock another process may have written the same meanwhile.
            if alone or reopen() is None:
                _install(temporary, folder)
        except OSError as error:
            if error.errno in _FULL:
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


def _check_space(folder: Path, name: str, size: int) -> None:
    """Raise OSError if a cache of ``size`` bytes would fill the disk."""
    free = shutil.disk_usage(folder).free
    if size > free:
        needs = f"the cache of {name} needs {size / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free"
        raise OSError(errno.ENOSPC, needs, str(folder))


def _write_meta(
    folder: Path,
    source: Source,
    num_features: Count,
    num_labels: Count,
    splits: Mapping[str, Mapping[str, Any]],
) -> None:
    meta = {
        "format": CACHE_VERSION,
        "source": source,
        "source_hash": _digest(source),
        "num_features": num_features if isinstance(num_features, int) else num_features(),
        "num_labels": num_labels if isinstance(num_labels, int) else num_labels(),
        **splits,
    }
    write_json(folder / "meta.json", meta)


def check_propensity(constants: Sequence[float]) -> tuple[float, float]:
    """Returns the constants a and b as numbers.

    Raises:
        ValueError: there are not two, or not a >= 0 and b > 0.
    """
    checks.listing("propensity", constants)
    if len(constants) != 2:
        raise ValueError(f"propensity must be two numbers, a and b, not {list(constants)}")
    a, b = constants
    checks.not_negative("propensity[0]", a)
    checks.positive("propensity[1]", b)
    return float(a), float(b)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _open_cache(
    folder: Path, name: str, source: Source, propensity: tuple[float, float]
) -> SparseDataset | None:
    """Opens a cache folder; None if there is no folder, or no valid one of this source."""
    try:
        before = os.stat(folder)
        meta = json.loads((folder / "meta.json").read_text())
        if meta["format"] != CACHE_VERSION or meta["source_hash"] != _digest(source):
            return None
        size = meta["num_features"], meta["num_labels"]
        train, test = (open_split(folder / split, meta[split], *size) for split in SPLITS)
        after = os.stat(folder)
    except (OSError, EOFError, ValueError, KeyError, TypeError):  # EOFError: a file of length 0.
        return None
    # Another process may have replaced the folder between two of the files.
    if (before.st_dev, before.st_ino) != (after.st_dev, after.st_ino):
        return None
    return SparseDataset(name, train, test, *size, propensity, folder, source)


def _temporary(folder: Path) -> Path:
    path = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.tmp")
    path.mkdir()
    return path


def _install(temporary: Path, folder: Path) -> None:
    """Gives a complete folder its final name. An older folder of that name is moved away first."""
    old = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.tmp")
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
