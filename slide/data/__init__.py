"""Sparse multi-label data sets: reading, generating, transforming, batching."""

from slide.data.dataset import Batch, Batches, SparseDataset, Split, fingerprint, holdout
from slide.data.errors import DataError
from slide.data.fetching import download
from slide.data.kind import (
    SeenItems,
    SeenLabels,
    are_items,
    find_seen,
    first_unseen,
    kind_of,
    labels_and_items,
    lists_all_labels,
    row_keys,
)
from slide.data.row_files import write_xmc
from slide.data.row_transform import RowTransform
from slide.data.sources.documents import documents
from slide.data.sources.mnist import mnist
from slide.data.sources.synthetic import synthetic
from slide.data.sources.table import table
from slide.data.sources.text import text
from slide.data.sources.xmc import xmc
from slide.data.text_vectorizer import TextOptions, TextVectorizer
from slide.data.transforms import transform
from slide.data.validation import divide, validation_split

__all__ = [
    "Batch",
    "Batches",
    "DataError",
    "RowTransform",
    "SeenItems",
    "SeenLabels",
    "SparseDataset",
    "Split",
    "TextOptions",
    "TextVectorizer",
    "are_items",
    "divide",
    "documents",
    "download",
    "find_seen",
    "fingerprint",
    "first_unseen",
    "holdout",
    "kind_of",
    "labels_and_items",
    "lists_all_labels",
    "mnist",
    "row_keys",
    "synthetic",
    "table",
    "text",
    "transform",
    "validation_split",
    "write_xmc",
    "xmc",
]

# Names of an earlier version, which are read for one version more.
_ALIASES = {
    "KnownLabels": "SeenLabels",
    "OwnItems": "SeenItems",
    "find_known": "find_seen",
    "first_unknown": "first_unseen",
}


def __getattr__(name: str) -> object:
    if name in _ALIASES:
        return globals()[_ALIASES[name]]
    raise AttributeError(f"module 'slide.data' has no attribute {name!r}")
