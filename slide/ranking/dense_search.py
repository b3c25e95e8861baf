"""The training rows that are nearest to dense rows by cosine, from an index of FAISS."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from slide.data.kind import DENSE
from slide.ops.kernels.ragged import select_rows
from slide.ranking.list_search import BLOCK, WORK, Near
from slide.runtime import library_threads
from slide.sparse import CSR

# Where inverted lists would be cut off, rows with such a share of the features count as dense, too.
_NEARLY = 1 / 8
# Rows are in so many lists for each root of their number, and a list has at least 39 rows in the
# mean, as FAISS advises. A query visits some of the lists, and for negatives fewer.
_LISTS, _LIST_ROWS, _VISITED, _OWN_VISITED = 2, 39, 32, 4
# A deviation that is smaller, as a share of the mean, may come from rounding.
_ROUNDING = 1e-6
# Passes of k-means over a sample of some rows for each list; and numbers that are made at a time.
_PASSES, _SAMPLE, _NUMBERS = 5, 39, 2**23


def are_dense(features: CSR, num_features: int) -> bool:
    """Whether rows are for `DenseSearch`: inverted lists would hold nearly all rows, or be cut off.

    Args:
        features: ``(R, D)`` training rows.
        num_features: D.
    """
    counts = np.bincount(features.indices, minlength=num_features).astype(np.float64)
    read = float(counts @ counts) / max(features.num_rows, 1)
    share = len(features.indices) / max(features.num_rows * num_features, 1)
    return count_as_dense(share, read)


def count_as_dense(share: float, read: float) -> bool:
    """`are_dense` by sizes.

    Args:
        share: of the entries that rows have, in the mean.
        read: number of entries that a search in whole inverted lists would read for a row.
    """
    return share > DENSE or (share >= _NEARLY and read > WORK)


class DenseSearch:
    """Dense rows in lists of near rows, of which a search visits the nearest.

    The lists are those of FAISS (Johnson et al. 2021, "Billion-scale similarity search with GPUs").
    Of up to a thousand rows, a search looks at all.

    Args:
        features: ``(R, D)`` training rows.
        num_features: D.
        weighted: whether features are standardised: mean 0 and standard deviation 1.

    Attributes:
        num_rows: R.
        means, weights: ``(D,)`` float32, what is subtracted from each feature, and its factor then.
        index: of FAISS, over rows of length 1.
    """

    weighting, ARRAYS = "standardised", ("means", "index")

    def __init__(self, features: CSR, num_features: int, weighted: bool):
        import faiss  # Imported here: it loads slowly, and few data sets need it.

        self.num_rows, self.weighted = features.num_rows, weighted
        self.features: CSR | None = features
        self.means = np.zeros(num_features, np.float32)
        self.weights = np.ones(num_features, np.float32)
        if weighted:
            self.means, self.weights = _scaling(features, num_features)
        lists = min(round(_LISTS * self.num_rows**0.5), self.num_rows // _LIST_ROWS)
        faiss.omp_set_num_threads(library_threads())
        if lists <= _VISITED:
            self.index: Any = faiss.IndexFlatIP(num_features)
        else:
            centres, inner = faiss.IndexFlatIP(num_features), faiss.METRIC_INNER_PRODUCT
            self.index = faiss.IndexIVFFlat(centres, num_features, lists, inner)
            self.index.cp.niter = _PASSES
            rows = np.random.default_rng(0).permutation(self.num_rows)[: _SAMPLE * lists]
            entries = features.indices, features.values
            sample = CSR(*select_rows(features.indptr, np.sort(rows), *entries))
            self.index.train(np.concatenate([*self._blocks(sample, BLOCK)]))
        for part in self._blocks(features, BLOCK):
            self.index.add(part)

    @classmethod
    def restored(
        cls, state: dict[str, np.ndarray], weights: np.ndarray, num_rows: int, weighted: bool
    ) -> "DenseSearch":
        """The search that had this `state` and these attributes, without the rows themselves."""
        import faiss

        search = cls.__new__(cls)
        search.means, search.weights, search.features = state["means"], weights, None
        search.index = faiss.deserialize_index(state["index"])
        search.num_rows, search.weighted = num_rows, weighted
        return search

    def state(self) -> dict[str, np.ndarray]:
        """Arrays for `restored`, beside ``weights``."""
        import faiss

        return {"means": self.means, "index": faiss.serialize_index(self.index)}

    def grown(self, features: int) -> "DenseSearch":
        """The same search: a feature that no training row has does not count."""
        return self

    def nearest(self, features: CSR, count: int) -> Near:
        """The ``count`` nearest training rows of each of B rows; some may be missed."""
        parts = [self._search(rows, _VISITED, count) for rows in self._blocks(features, BLOCK)]
        if not parts:
            return Near(np.empty((0, count), np.float32), np.empty((0, count), np.int32))
        return Near(*map(np.concatenate, zip(*parts, strict=True)))

    def own_nearest(self, count: int, block: int = BLOCK) -> Iterator[Near]:
        """The nearest other rows of all training rows, ``block`` of them at a time.

        Fewer lists are visited than in `nearest`, so more of the nearest rows may be missing.
        """
        assert self.features is not None, "the training rows are not known"
        begin = 0
        for rows in self._blocks(self.features, block):
            near = self._search(rows, _OWN_VISITED, count + 1)
            itself = near.ids == np.arange(begin, begin + len(rows))[:, None]
            # A row that is not among its own nearest ones has one too many of them.
            itself[:, -1] |= ~itself.any(1)
            yield Near(*(each[~itself].reshape(-1, count) for each in near))
            begin += len(rows)

    def _search(self, rows: np.ndarray, visited: int, count: int) -> Near:
        """The nearest training rows of prepared rows."""
        import faiss

        faiss.omp_set_num_threads(library_threads())
        lists = hasattr(self.index, "nprobe")
        options = faiss.SearchParametersIVF(nprobe=visited) if lists else None  # pyright: ignore[reportCallIssue]
        scores, ids = self.index.search(rows, count, params=options)
        none = (scores <= 0) | (ids < 0)
        scores[none], ids[none] = 0, -1
        return Near(scores, ids.astype(np.int32))

    def _blocks(self, features: CSR, most: int) -> Iterator[np.ndarray]:
        """Rows as the index has them, some at a time."""
        width = len(self.weights)
        most = max(min(most, _NUMBERS // max(width, 1)), 1)
        for begin in range(0, features.num_rows, most):
            part = features.slice(begin, begin + most)
            part = part.keep(part.indices < width)
            rows = np.zeros((part.num_rows, width), np.float32)
            rows[part.entry_rows(), part.indices] = part.values
            rows = (rows - self.means) * self.weights
            yield rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)


def _scaling(features: CSR, num_features: int) -> tuple[np.ndarray, np.ndarray]:
    """The mean of each feature, and 1 / its standard deviation; 0 where it never varies."""
    sums, squares = np.zeros((2, num_features))
    for begin in range(0, features.num_rows, BLOCK):
        part = features.slice(begin, begin + BLOCK)
        values = part.values.astype(np.float64)
        sums += np.bincount(part.indices, values, num_features)
        squares += np.bincount(part.indices, values**2, num_features)
    means, squares = sums / features.num_rows, squares / features.num_rows
    deviations = np.sqrt(np.maximum(squares - means**2, 0))
    # Rounding leaves a deviation to a feature that is always the same.
    varies = deviations > _ROUNDING * np.abs(means)
    factors = np.divide(1, deviations, where=varies, out=np.zeros(num_features))
    return means.astype(np.float32), factors.astype(np.float32)
