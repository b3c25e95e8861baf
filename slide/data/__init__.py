"""Sparse multi-label data sets: reading, generating, batching."""

from slide.data.batches import Batch, Batches
from slide.data.dataset import SparseDataset, Split, holdout
from slide.data.debian import build_debian
from slide.data.download import download
from slide.data.errors import DataError
from slide.data.mnist import mnist
from slide.data.synthetic import synthetic
from slide.data.text import text
from slide.data.transforms import transform
from slide.data.write import write_xmc
from slide.data.xmc import xmc

__all__ = [
    "Batch",
    "Batches",
    "DataError",
    "SparseDataset",
    "Split",
    "build_debian",
    "download",
    "holdout",
    "mnist",
    "synthetic",
    "text",
    "transform",
    "write_xmc",
    "xmc",
]
