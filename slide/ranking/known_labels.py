"""Labels that training rows with the same features have."""

import numpy as np

from slide.data import row_keys
from slide.sparse import CSR, Pattern


class KnownLabels:
    """The labels of training rows, found again by the features of a row.

    In a knowledge graph a row lists all known labels of its features, and a row to be predicted
    that repeats these features asks for further labels. Known ones are left out of the answers, as
    in the filtered setting of Bordes et al. 2013, "Translating embeddings for modeling
    multi-relational data", section 4.2.

    Args:
        features: ``(R, D)`` rows, no two of them equal.
        labels: R rows of labels.

    Example:
        >>> import numpy as np, slide
        >>> from slide.ranking import KnownLabels
        >>> indptr, ones = np.arange(3), np.ones(2, np.float32)
        >>> rows = slide.CSR(indptr, np.array([4, 7], np.int32), ones)
        >>> known = KnownLabels(rows, slide.Pattern(indptr, np.array([1, 2], np.int32)))
        >>> known.hold(rows, np.array([[1, 2], [1, 2]])).tolist()
        [[True, False], [False, True]]
    """

    def __init__(self, features: CSR, labels: Pattern):
        keys = row_keys(features)
        order = np.argsort(keys)
        self._rows, self._keys = order, keys[order]
        owner = np.repeat(np.arange(features.num_rows), np.diff(labels.indptr))
        self._stride = np.int64(labels.indices.max(initial=0)) + 2
        self._pairs = np.sort(owner * self._stride + labels.indices)

    def hold(self, features: CSR, ids: np.ndarray) -> np.ndarray:
        """Whether a training row with the same features has the label.

        Args:
            features: ``(B, D)``.
            ids: ``(B, K)`` integers; -1 for none.

        Returns:
            ``(B, K)`` bool.
        """
        if not len(self._keys) or not len(self._pairs):
            return np.zeros(ids.shape, bool)
        keys = row_keys(features)
        places = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        seen = self._keys[places] == keys
        pairs = self._rows[places][:, None] * self._stride + ids
        found = np.minimum(np.searchsorted(self._pairs, pairs), len(self._pairs) - 1)
        inside = (ids >= 0) & (ids < self._stride - 1)
        return (self._pairs[found] == pairs) & seen[:, None] & inside
