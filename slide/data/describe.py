"""The facts of a data set, as numbers and as a table of text."""

from pathlib import Path
from typing import Any

import numpy as np

from slide.data.dataset import SparseDataset, Split

QUANTILES = {"min": 0.0, "10 %": 0.1, "50 %": 0.5, "90 %": 0.9, "99 %": 0.99, "max": 1.0}


def facts(data: SparseDataset) -> dict[str, Any]:
    """Counts what `describe` shows, by name. It reads the labels, but not the features."""
    seen, asked = (_label_counts(split) for split in (data.train, data.test))
    # Each quantile is the count of a label, never a value between two counts.
    found = np.quantile(seen, list(QUANTILES.values()), method="lower") if len(seen) else []
    return {
        "train": _split_facts(data.train),
        "test": _split_facts(data.test),
        "num_features": data.num_features,
        "num_labels": data.num_labels,
        "quantiles": tuple(int(count) for count in found),
        "unseen": _share((seen == 0).sum(), len(seen)),
        "seen_once": _share((seen == 1).sum(), len(seen)),
        "test_unseen": _share(asked[seen == 0].sum(), asked.sum()),
        "test_unseen_distinct": _share((asked[seen == 0] > 0).sum(), (asked > 0).sum()),
    }


def describe(data: SparseDataset) -> str:
    """A table of a data set: a heading, one line a fact, and what a table is understood as."""
    found = facts(data)
    splits = found["train"], found["test"]
    rows = [
        (data.name, "train", "test"),
        ("rows", *(f"{each['rows']:,}" for each in splits)),
        ("features", f"{data.num_features:,}", ""),
        ("labels", f"{data.num_labels:,}", ""),
        ("non-zeros a row (most)", *("{:,.1f} ({:,})".format(*x["nonzeros"]) for x in splits)),
        ("labels a row (most)", *("{:,.1f} ({:,})".format(*x["labels"]) for x in splits)),
        ("rows without features", *(f"{each['without_features']:,}" for each in splits)),
        ("rows without labels", *(f"{each['without_labels']:,}" for each in splits)),
        *(
            (f"training rows a label, {name}", f"{count:,}", "")
            for name, count in zip(QUANTILES, found["quantiles"], strict=False)
        ),
        ("labels never seen in training", _percent(found["unseen"]), ""),
        ("labels seen once", _percent(found["seen_once"]), ""),
        ("test labels never seen in training", "", _percent(found["test_unseen"])),
        ("  each label counted once", "", _percent(found["test_unseen_distinct"])),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    shown = (f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}" for a, b, c in rows)
    told = [] if data.columns is None else [("", ""), *data.columns.told()]
    lines = [*shown, *(f"{name:<{widths[0]}}  {sentence}" for name, sentence in told)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def folder_bytes(folder: Path | None) -> int:
    """Bytes of all files in a folder and below."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder else 0


def _label_counts(split: Split) -> np.ndarray:
    counts = np.zeros(split.num_labels, np.int64)
    for part in split.blocks():
        counts += np.bincount(part.labels.indices, minlength=len(counts))
    return counts


def _split_facts(split: Split) -> dict[str, Any]:
    features, labels = (np.diff(part.indptr) for part in (split.features, split.labels))
    return {
        "rows": len(split),
        "nonzeros": (_share(features.sum(), len(split)), int(features.max(initial=0))),
        "labels": (_share(labels.sum(), len(split)), int(labels.max(initial=0))),
        "without_features": int((features == 0).sum()),
        "without_labels": int((labels == 0).sum()),
    }


def _share(part: int, whole: int) -> float:
    return float(part / whole) if whole else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
