"""The folder of a split: five ``.npy`` files, written piece by piece and opened as memory maps."""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from slide.data.cache_files import ArrayWriter, CacheFile
from slide.data.dataset import Block, Split
from slide.sparse import CSR, Pattern
from slide.utils.progress_bar import log

__all__ = ["open_split", "write_split"]

ARRAYS = {
    "feature_indptr": np.dtype(np.int64),
    "feature_indices": np.dtype(np.int32),
    "feature_values": np.dtype(np.float32),
    "label_indptr": np.dtype(np.int64),
    "label_indices": np.dtype(np.int32),
}


def write_split(
    folder: Path, blocks: Iterable[Block]
) -> tuple[dict[str, int], dict[str, CacheFile]]:
    """Writes the rows of a split into a new folder; memory is bounded by a block.

    Features of value 0 are left out.

    Returns:
        The numbers of rows, nonzeros, labels, and lines that the reader skipped; and of each file,
        by its name, what to compare it with.
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
        for stored, labels, left_out in blocks:
            features = stored.without_zeros()
            files["feature_indptr"].append(features.indptr[1:] + files["feature_indices"].length)
            files["feature_indices"].append(features.indices)
            files["feature_values"].append(features.values)
            files["label_indptr"].append(labels.indptr[1:] + files["label_indices"].length)
            files["label_indices"].append(labels.indices)
            skipped += left_out
    counts = {
        "rows": files["feature_indptr"].length - 1,
        "nonzeros": files["feature_indices"].length,
        "labels": files["label_indices"].length,
        "skipped": skipped,
    }
    return counts, {f"{array}.npy": file.written for array, file in files.items()}


def open_split(folder: Path, counts: dict[str, Any], num_features: int, num_labels: int) -> Split:
    """Opens the folder of a split, whose files have been compared.

    Args:
        folder: a folder that `write_split` made.
        counts: the numbers that it returned.
        num_features, num_labels: columns of the split.

    Raises:
        OSError: a file is missing.
        ValueError: the blocks that were written had different numbers of rows or of values.
    """
    # Copy on write, as plain arrays: for compiled kernels they are arrays in memory.
    arrays = [np.asarray(np.load(folder / f"{array}.npy", mmap_mode="c")) for array in ARRAYS]
    features, labels = CSR(*arrays[:3]), Pattern(*arrays[3:])
    ends = int(features.indptr[-1]), int(features.indptr[-1]), int(labels.indptr[-1])
    if ends != tuple(map(len, (features.indices, features.values, labels.indices))):
        raise ValueError(f"{folder}: rows end at {ends}, which the arrays do not")
    if counts["skipped"]:
        log(
            f"warning   {folder.name} rows: malformed lines were left out: {counts['skipped']} "
            "(dataset.lenient=false names the first)"
        )
    return Split(features, labels, num_features, num_labels)
