"""Writes rows as text that `slide.data.sources.xmc` reads back equal."""

from pathlib import Path
from typing import IO

import numpy as np

from slide.data.dataset import Split
from slide.data.formats.text_reader import text_variant
from slide.files import write_atomic
from slide.kernels import format_rows as kernel

__all__ = ["write_xmc"]

FORMATTED_ENTRIES = 1 << 18  # features and labels that are formatted at once


def write_xmc(
    path: str | Path,
    split: Split,
    *,
    format: str = "xmc",
    first_feature: int | None = None,
    first_label: int | None = None,
) -> None:
    """Writes a split into a text file, which is there in full or not at all.

    Values are given by as few digits as they need to be read back bit by bit. Memory is bounded by
    a block of rows, or the longest one.

    Args:
        path: the file; one that is there is replaced.
        split: the rows; no column may occur twice in one of them, or they cannot be read.
        format: "xmc" or "svmlight"; see `slide.data.sources.xmc`.
        first_feature, first_label: number of the first column; None: that of the format.

    Raises:
        ValueError: an argument or a column number is out of range, or a value is not finite.
        OSError: the file cannot be written; one that was there is left as it was.
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
    """Raises ValueError if the rows, of which the first has the number ``start``, are not sound."""
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
