"""Sparse multi-label data sets: reading, generating, transforming, batching."""

from slide.data.dataset import Batch as Batch
from slide.data.dataset import Batches as Batches
from slide.data.dataset import SparseDataset as SparseDataset
from slide.data.dataset import Split as Split
from slide.data.dataset import fingerprint as fingerprint
from slide.data.dataset import holdout as holdout
from slide.data.errors import DataError as DataError
from slide.data.fetching import download as download
from slide.data.kind import SeenItems as SeenItems
from slide.data.kind import SeenLabels as SeenLabels
from slide.data.kind import find_seen as find_seen
from slide.data.kind import first_unseen as first_unseen
from slide.data.kind import kind_of as kind_of
from slide.data.kind import labels_and_items as labels_and_items
from slide.data.kind import row_keys as row_keys
from slide.data.row_files import write_xmc as write_xmc
from slide.data.row_transform import RowTransform as RowTransform
from slide.data.sources.mnist import mnist as mnist
from slide.data.sources.synthetic import synthetic as synthetic
from slide.data.sources.table import documents as documents
from slide.data.sources.table import table as table
from slide.data.sources.text import text as text
from slide.data.sources.xmc import xmc as xmc
from slide.data.text_vectorizer import TextOptions as TextOptions
from slide.data.text_vectorizer import TextVectorizer as TextVectorizer
from slide.data.transforms import transform as transform
from slide.data.validation import divide as divide
from slide.data.validation import validation_split as validation_split

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
