"""Sparse multi-label data sets: reading, generating, batching."""

from slide.data.batches import Batch, Batches
from slide.data.dataset import SparseDataset, Split, holdout
from slide.data.synthetic import synthetic
from slide.data.xmc import DataError, xmc

__all__ = [
    "Batch",
    "Batches",
    "DataError",
    "SparseDataset",
    "Split",
    "holdout",
    "synthetic",
    "xmc",
]
