"""Sparse multi-label data sets: reading, generating, transforming, batching."""

from slide.data.dataset import Batch, Batches, SparseDataset, Split, fingerprint, holdout
from slide.data.errors import DataError
from slide.data.fetching import download
from slide.data.kind import (
    KnownLabels,
    OwnItems,
    are_items,
    find_known,
    first_unknown,
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
from slide.data.sources.text import text
from slide.data.sources.xmc import xmc
from slide.data.text_vectorizer import TextOptions, TextVectorizer
from slide.data.transforms import transform
from slide.data.validation import divide, validation_split

__all__ = [
    "Batch",
    "Batches",
    "DataError",
    "KnownLabels",
    "OwnItems",
    "RowTransform",
    "SparseDataset",
    "Split",
    "TextOptions",
    "TextVectorizer",
    "are_items",
    "divide",
    "documents",
    "download",
    "find_known",
    "fingerprint",
    "first_unknown",
    "holdout",
    "kind_of",
    "labels_and_items",
    "lists_all_labels",
    "mnist",
    "row_keys",
    "synthetic",
    "text",
    "transform",
    "validation_split",
    "write_xmc",
    "xmc",
]
