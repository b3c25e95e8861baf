"""The facts of a data set, as numbers and as a table of text."""

from pathlib import Path

import numpy as np

from slide.data.dataset import SparseDataset
from slide.data.transforms import rows_with_each
from slide.utils.checks import printable

# Each is the count of a label, never a value between two counts.
QUANTILES = {"least": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "99 %": 0.99, "most": 1.0}


def describe(data: SparseDataset) -> str:
    """A table of a data set, without reading its features, and what a table is understood as."""
    splits = data.train, data.test
    seen, asked = (rows_with_each("labels", split) for split in splits)
    counts = np.quantile(seen, list(QUANTILES.values()), method="lower") if len(seen) else []
    missed = asked[seen == 0]
    features = [np.diff(split.features.indptr) for split in splits]
    labels = [np.diff(split.labels.indptr) for split in splits]
    rows = [
        (data.name, "train", "test"),
        ("rows", *(f"{len(split):,}" for split in splits)),
        ("features", f"{data.num_features:,}", ""),
        ("labels", f"{data.num_labels:,}", ""),
        ("non-zeros a row (most)", *map(_mean_and_most, features)),
        ("labels a row (most)", *map(_mean_and_most, labels)),
        ("rows without features", *(f"{(sizes == 0).sum():,}" for sizes in features)),
        ("rows without labels", *(f"{(sizes == 0).sum():,}" for sizes in labels)),
        *(
            (f"training rows of a label, {name}", f"{int(count):,}", "")
            for name, count in zip(QUANTILES, counts, strict=False)
        ),
        ("labels without a training row", _percent((seen == 0).sum(), len(seen)), ""),
        ("labels with one training row", _percent((seen == 1).sum(), len(seen)), ""),
        ("test labels without a training row", "", _percent(missed.sum(), asked.sum())),
        ("  each distinct label once", "", _percent((missed > 0).sum(), (asked > 0).sum())),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    shown = (f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows)
    told = [] if data.columns is None else [("", ""), *data.columns.told()]
    lines = [*shown, *(f"{name:<{widths[0]}}  {sentence}" for name, sentence in told)]
    return "\n".join(printable(line.rstrip(), "") for line in lines) + "\n"


def folder_bytes(folder: Path | None) -> int:
    """Bytes of all files in a folder and below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder else 0


def _mean_and_most(sizes: np.ndarray) -> str:
    return f"{sizes.sum() / max(len(sizes), 1):,.1f} ({sizes.max(initial=0):,})"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f} %"
