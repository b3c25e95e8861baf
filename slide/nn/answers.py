"""The answers of a network, and what a re-ranker of them does."""

from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from slide.backend import on_host
from slide.data import SeenItems, SeenLabels, Split
from slide.data.unseen import best_unseen
from slide.nn.sampled_linear import SampledLinear
from slide.sparse import CSR, Pattern


class Ranked(NamedTuple):
    """The answers to B rows.

    Attributes:
        scores: ``(B, k)`` float64, best first; probabilities, times inverse propensities if the
            objective is ``"psp"``; 0 where there are no more labels.
        ids: ``(B, k)`` int64 labels; -1: there are no more.
        network_ids: ``(B, k)`` int64, what the network alone answers; -1: there are no more.

    Example:
        >>> import numpy as np
        >>> from slide.nn.answers import Ranked
        >>> found = Ranked(np.array([[0.9, 0.2]]), np.array([[3, 1]]), np.array([[1, 3]]))
        >>> found.ids[found.scores > 0.5]
        array([3])
    """

    scores: np.ndarray
    ids: np.ndarray
    network_ids: np.ndarray

    @classmethod
    def of(
        cls, k: int, scores: np.ndarray, ids: np.ndarray, network_ids: np.ndarray | None = None
    ) -> "Ranked":
        """The first k of answers ``(B, n)``, filled up where there are fewer; ids below 0: none."""
        scores = np.where(ids < 0, 0, scores).astype(np.float64, copy=False)
        found = _first(ids, k, -1)
        alone = found if network_ids is None else _first(network_ids, k, -1)
        return cls(_first(scores, k, 0), found, alone)


def _first(array: np.ndarray, k: int, missing: int) -> np.ndarray:
    """The first k columns; absent columns are all ``missing``."""
    if array.shape[1] >= k:
        return array[:, :k]
    return np.pad(array, ((0, 0), (0, k - array.shape[1])), constant_values=missing)


def best_unknown(
    output: SampledLinear, hidden: Tensor, known: Pattern, k: int, search: str = "exact"
) -> np.ndarray:
    """A layer's k best labels ``(B, k)`` that are not known, best first; -1: no more."""

    def best(rows: np.ndarray, depth: int) -> np.ndarray:
        return on_host(output.top_k(hidden[rows], depth, search)[1])

    return best_unseen(known, k, output.out_features, best)


class RerankerFormat(Protocol):
    """How a model folder holds a re-ranker."""

    def ranker_state(self, ranker: "Reranker") -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The numbers of a trained re-ranker, and its arrays by name."""
        ...

    def restored_ranker(self, stored: Any, num_labels: int, num_features: int) -> "Reranker":
        """The re-ranker that had this state, of a `slide.utils.array_checks.Stored`."""
        ...


class Reranker(Protocol):
    """Ranks labels by more than the network knows, such as `slide.ranking.EnsembleRanker`.

    Attributes:
        kind: `slide.data.kind_of` the rows of `fit`.
        objective: ``"p"``: its scores are probabilities.
        notes: sentences about the choices that `fit` made.
        seen: finds labels that are no answers to a row; None: all may be.
        frequency: ``(N,)`` number of training rows of each label.
    """

    kind: str
    objective: str
    notes: list[str]
    seen: SeenLabels | SeenItems | None
    frequency: np.ndarray

    def prepare(self) -> None:
        """Import what `fit` needs, so that `fit` does not take the seconds of the import."""
        ...

    def fit(
        self,
        network: Any,
        train: Split,
        held: Split,
        inverse: np.ndarray | None = None,
        search: str = "exact",
        every: Split | None = None,
    ) -> Any:
        """Learn from ``train``, of which the network has learnt, and from rows that it has not.

        ``inverse`` ``(N,)`` are inverse propensities, and ``every`` the rows of both.
        """
        ...

    def rank(self, network: Any, features: CSR, k: int, search: str = "exact") -> Ranked:
        """The k best labels of each row."""
        ...

    def unweighted(self, scores: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Probabilities of answers of `rank`, whatever they are ranked by."""
        ...

    def grown(self, labels: int = 0, features: int = 0) -> "Reranker":
        """A re-ranker that takes more labels or features, which come last."""
        ...

    def selected(self, kept: np.ndarray) -> "Reranker":
        """A re-ranker of the labels ``kept``, ascending."""
        ...

    def bytes_needed(self, split: Split, kind: str) -> int:
        """Bytes of memory that `fit` takes with rows of this kind, with what stays of it."""
        ...

    def state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """All numbers, as JSON can hold them, and all arrays, by name."""
        ...
