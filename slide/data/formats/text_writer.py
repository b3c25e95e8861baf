"""Writes rows as text that `slide.data.xmc` reads back equal.

scikit-learn's ``dump_svmlight_file`` cannot do this: it fails for column numbers above int32 and
allocates 8 bytes for each column. It also sorts the entries of a row and writes 16 digits of each
value (a quarter of the speed, and half as many bytes again).
"""

from pathlib import Path
from typing import IO

import numpy as np

from slide.data.dataset import Split
from slide.data.formats.text_reader import text_variant
from slide.kernels import format_rows as kernel
from slide.utils.files import write_atomic

__all__ = ["write_xmc"]

FORMATTED_ENTRIES = 1 << 18  # The most features, and labels, that are formatted at once.


def write_xmc(
    path: str | Path,
    split: Split,
    *,
    format: str = "xmc",
    first_feature: int | None = None,
    first_label: int | None = None,
) -> None:
    """Writes a split into a text file, atomically.

    Values have as few digits as a reader needs to find the same float32. The entries of a row keep
    their order. Memory is bounded by a block of rows, or the longest row.

    Args:
        path: the file; an older one is replaced.
        split: the rows. No column may occur twice in a row: readers refuse such rows.
        format: "xmc" or "svmlight"; see `slide.data.sources.xmc`.
        first_feature, first_label: number of the first column; None: that of the format.

    Raises:
        ValueError: an argument or a column number is out of range, or a value is not finite.
        OSError: the file cannot be written; an older one stays as it was.

    Example:
        >>> import pathlib, tempfile
        >>> from slide.data import synthetic, write_xmc
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     data = synthetic(cache=folder, train_samples=10, test_samples=5)
        ...     write_xmc(f"{folder}/train.txt", data.train)
        ...     print(pathlib.Path(folder, "train.txt").read_text().splitlines()[0])
        10 10000 20000
    """
    variant = text_variant(format, first_feature, first_label)
    columns = variant.first_feature, variant.first_label

    def write(file: IO[bytes]) -> None:
        if variant.header:
            file.write(f"{len(split)} {split.num_features} {split.num_labels}\n".encode())
        start = 0
        for part in split.blocks(entries=FORMATTED_ENTRIES):
            _check_rows(part, start)
            room = (
                kernel.FEATURE_BYTES * len(part.features.indices)
                + kernel.LABEL_BYTES * len(part.labels.indices)
                + kernel.ROW_BYTES * len(part)
            )
            out = np.empty(room, np.uint8)
            end = kernel.format_rows(*part.features, *part.labels, *columns, out)
            file.write(out[:end].data)
            start += len(part)

    write_atomic(Path(path), write)


def _check_rows(part: Split, start: int) -> None:
    """Raises ValueError for a malformed row; ``start`` is the number of the first row."""
    features, labels = part.features, part.labels
    for what, rows, count in (
        ("feature", features, part.num_features),
        ("label", labels, part.num_labels),
    ):
        bad = np.flatnonzero((rows.indices < 0) | (rows.indices >= count))
        if len(bad):
            row = start + _row_of(rows.indptr, bad[0])
            raise ValueError(f"row {row}: {what} {rows.indices[bad[0]]} is not in [0, {count})")
    bad = np.flatnonzero(~np.isfinite(features.values))
    if len(bad):
        row, feature = start + _row_of(features.indptr, bad[0]), features.indices[bad[0]]
        value = features.values[bad[0]]
        raise ValueError(f"row {row}: value {value} of feature {feature} is not finite")


def _row_of(indptr: np.ndarray, entry: int) -> int:
    return int(np.searchsorted(indptr, entry, side="right")) - 1
