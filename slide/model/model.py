"""A trained model: from rows as people have them to the labels that they get."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slide.data import RowTransform, TextVectorizer
from slide.data.row_transform import old_label_ids
from slide.model.learning import LearningMixin
from slide.model.restrict import kept_network
from slide.model.saving import check_target, write_model
from slide.nn import SlideNetwork
from slide.nn.sampled_layer import check_finite
from slide.nn.sampled_linear import SEARCHES as SEARCHES
from slide.ranking import EnsembleRanker, Ranked
from slide.runtime import one_thread
from slide.sparse import CSR, as_csr, check_pattern
from slide.utils import checks
from slide.utils.names import Names, check_columns
from slide.utils.sizes import default_search

_BATCH = 1024


class Predicted(NamedTuple):
    """The answers to B rows.

    Attributes:
        labels: ``(B, k)``, best first: names (objects; None: there are no more) if the labels of
            the model have names, else int64 numbers (-1: there are no more).
        scores: ``(B, k)`` float64: probabilities if the model has a re-ranker, else the scores of
            the network; 0 where there are no more labels.

    Example:
        >>> import numpy as np
        >>> from slide.model import Predicted
        >>> labels, scores = Predicted(np.array([[3, 1]]), np.array([[0.9, 0.2]]))
        >>> labels[scores > 0.5]
        array([3])
    """

    labels: np.ndarray
    scores: np.ndarray


class Model(LearningMixin):
    """A trained network with its re-ranker, and all that rows and answers go through.

    Args:
        network: a trained network.
        ranker: trained on it; None: the network alone answers.
        steps: what is done to rows before the network sees them (`SparseDataset.steps`).
        label_names: a name for each label before the ``steps``; None: labels are numbers.
        feature_names: a name for each feature before the ``steps``; None: features are numbers.
        settings: how the model was trained; JSON values, kept with it.
        name: of the data set.
        vectorizer: makes rows of texts, before the ``steps``; its terms are the names of the
            features. None: the model takes no texts.

    Raises:
        ValueError: if names, steps and network differ in their numbers of features or labels.

    Attributes:
        num_features: number of features of a row.
        num_labels: number of labels; answers are numbers below it, or their names.

    Example:
        >>> import numpy as np, slide, tempfile
        >>> network = slide.SlideNetwork(100, [16], 3, slide.FullSampler)
        >>> model = slide.Model(network, label_names=["fruit", "tree", "tool"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(f"{folder}/mine")
        ...     labels, scores = slide.load(f"{folder}/mine").predict(np.eye(100)[:2], k=2)
        >>> labels.shape, labels[0, 0] in model.label_names
        ((2, 2), True)
    """

    def __init__(
        self,
        network: SlideNetwork,
        ranker: EnsembleRanker | None = None,
        steps: Sequence[RowTransform] = (),
        label_names: Iterable[Any] | None = None,
        feature_names: Iterable[Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        name: str = "",
        vectorizer: TextVectorizer | None = None,
    ):
        self.network, self.ranker, self.steps = network, ranker, tuple(steps)
        self.name, self.settings = name, dict(settings or {})
        widths = network.first.in_features, network.output.out_features
        self.num_features, self.num_labels = widths
        for step in reversed(self.steps):
            if step.num_columns != (self.num_features, self.num_labels):
                raise ValueError(
                    f"steps that give rows of {step.num_columns} features and labels do not fit "
                    f"{(self.num_features, self.num_labels)}"
                )
            self.num_features, self.num_labels = step.num_features, step.num_labels
        self.label_names = _names(label_names, self.num_labels, "label_names")
        self.vectorizer = vectorizer
        if vectorizer is not None:
            feature_names = vectorizer.terms
        self.feature_names = _names(feature_names, self.num_features, "feature_names")
        # The old number of each output; None: the outputs are numbered as the labels.
        self._label_ids = old_label_ids(self.steps)

    def predict(self, rows: Any, k: int = 5, search: str | None = None) -> Predicted:
        """The k best labels of each row, with their names if they have any.

        Args:
            rows: ``(B, D)`` raw features, in any form that `slide.as_csr` takes, or texts: a list,
                an array ``(B,)`` or an iterator. What was done to the training rows is done to
                them.
            k: number of labels. Where there are fewer, the places left have the number -1, the name
                None and the score 0. A re-ranker looks at more candidates if k is larger than their
                number, and its first answers may then be others.
            search: ``"exact"``, ``"index"``, which is many times as fast with very many labels
                and may miss one, or ``"sampler"``, if the model has the index of its sampler; see
                `slide.SampledLinear.top_k`. None: `search`.

        Raises:
            ValueError: for a k below 1, another number of features, values that are not finite or
                so large that scores are not, or ``"sampler"`` without its index.
            TypeError: for rows that are no matrix, or texts where the model takes none.
        """
        ids, scores = self.predict_ids(rows, k, search)
        return Predicted(ids if self.label_names is None else self.label_names.take(ids), scores)

    def predict_ids(self, rows: Any, k: int = 5, search: str | None = None) -> Predicted:
        """The same, but labels are always numbers.

        Args:
            rows: see `predict`.
            k: see `predict`.
            search: see `predict`.

        Raises:
            ValueError: see `predict`.
            TypeError: see `predict`.
        """
        checks.whole("k", k, 1)
        search = self.search if search is None else search
        checks.one_of("search", search, SEARCHES)
        x = self._checked(rows)
        with one_thread() if x.num_rows == 1 else nullcontext():
            parts = self._answer_blocks(x, k, search)
        if not parts:
            return Predicted(np.empty((0, k), np.int64), np.empty((0, k)))
        ids, scores = (np.concatenate(each) for each in zip(*parts, strict=True))
        ids = ids.astype(np.int64, copy=False)
        if self._label_ids is not None:
            ids = np.where(ids < 0, -1, self._label_ids[ids].astype(np.int64))
        return Predicted(ids, scores)

    @property
    def search(self) -> str:
        """How labels are found unless a call says otherwise.

        It is ``"index"`` for more than 20,000 labels and a re-ranker, else ``"exact"``, as in the
        scores of a run.
        """
        return default_search(self.network.output.out_features, self.ranker is not None)

    def rows_of(self, texts: Iterable[str]) -> CSR:
        """The raw features of texts.

        Raises:
            TypeError: if the model takes no texts, or for one that is none.
        """
        if self.vectorizer is None:
            raise TypeError("the model takes rows of features, not texts: it has no vectorizer")
        return self.vectorizer.rows(texts)

    def _checked(self, rows: Any) -> CSR:
        """The raw features of rows or texts."""
        if isinstance(rows, Iterator):
            rows = list(rows)
        if self.feature_names is not None and hasattr(rows, "columns"):
            check_columns("features", rows.columns, self.feature_names)
        if _are_texts(rows, self.vectorizer is not None):
            rows = self.rows_of(rows)
        x = as_csr(rows, self.num_features)
        check_pattern("features", x, None, self.num_features)
        if not np.isfinite(x.values).all():  # `as_csr` does not look into a CSR.
            bad = x.values[~np.isfinite(x.values)][0]
            raise ValueError(f"features must be finite float32 values, not {bad}")
        return x.without_zeros()

    def _answer_blocks(self, x: CSR, k: int, search: str) -> list[tuple[np.ndarray, np.ndarray]]:
        parts = []
        for start in range(0, x.num_rows, _BATCH):
            try:
                parts.append(self._answer(x.slice(start, start + _BATCH), k, search))
            except checks.ScoresNotFinite as error:
                raise checks.ScoresNotFinite(start + error.row) from error
        return parts

    def _answer(self, x: CSR, k: int, search: str) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of outputs ``(B, k)`` int64 and scores ``(B, k)`` float64."""
        for step in self.steps:
            x = step.features(x)
        if self.ranker is None:
            most = min(k, self.network.output.out_features)
            hidden = self.network.embed(x)
            check_finite(hidden)
            scores, ids = self.network.output.top_k(hidden, most, search)
            best = scores[:, :1]  # An index may find nothing at all.
            check_finite(best if search == "exact" else best.masked_fill(ids[:, :1] < 0, 0.0))
            found = Ranked.of(k, scores.numpy(), ids.numpy())
        else:
            found = self.ranker.rank(self.network, x, k, search)
        return found.ids, found.scores

    def restricted(self, labels: Iterable[Any]) -> "Model":
        """A model that answers with some of the labels only; weights of the others are left out.

        A re-ranker compares candidates, so its probabilities are not quite those of all labels.
        The model keeps the names of all labels, and can be saved. The two share their hidden layers
        until one of them learns. It copies the layers first, so the other one stays as it was.

        Args:
            labels: names or numbers of labels, in any order.

        Raises:
            ValueError: for a label that the model does not have, or none at all.
        """
        numbers = np.array([self._number(label) for label in labels], np.int64)
        outputs = np.arange(self.network.output.out_features)
        own = outputs if self._label_ids is None else self._label_ids
        kept = outputs[np.isin(own, numbers)].astype(np.int32)
        if not len(kept):
            raise ValueError("restricted needs at least one label that the model can answer with")
        network = self.network
        step = RowTransform(network.first.in_features, len(outputs), label_ids=kept)
        ranker = None if self.ranker is None else self.ranker.selected(kept)
        names = {"label_names": self.label_names, "feature_names": self.feature_names}
        more = {"settings": self.settings, "name": self.name, "vectorizer": self.vectorizer}
        small = Model(kept_network(network, kept), ranker, (*self.steps, step), **names, **more)
        small._shares_layers = self._shares_layers = True
        return small

    def _number(self, label: Any) -> int:
        number = label if self.label_names is None else self.label_names.number(label)
        if not isinstance(number, int | np.integer) or not 0 <= number < self.num_labels:
            raise ValueError(f"the model has no label {label!r}")
        return int(number)

    def save(self, path: str | Path, dtype: str = "float32") -> None:
        """Write the model into a folder; `slide.load` opens it.

        Args:
            path: the folder; it is made if it does not exist. A model in it is replaced once the
                new one is on the disk.
            dtype: type of the weights of the network in the file: ``"float32"``; ``"bfloat16"``,
                which takes half the space; or ``"int8"`` with a scale for each row, which takes a
                quarter. They stay so when they are opened; predictions convert what they read.

        Raises:
            ValueError: for another dtype, or a folder that holds something else.
            OSError: if a file cannot be written.
        """
        folder = Path(path)
        check_target(folder)
        write_model(folder, self, dtype)


def _are_texts(rows: Any, wanted: bool) -> bool:
    """Whether rows are meant as texts; of no rows at all, whether these are ``wanted``."""
    if isinstance(rows, str):
        return True
    if not (isinstance(rows, Sequence) or hasattr(rows, "__array__")):
        return False
    if getattr(rows, "ndim", 1) != 1 or hasattr(rows, "tocsr"):
        return False
    return any(isinstance(row, str) for row in rows) if len(rows) else wanted


def _names(names: Iterable[Any] | None, count: int, what: str) -> Names | None:
    if names is None:
        return None
    found = Names.of(names, what)
    if len(found) != count:
        raise ValueError(f"{len(found)} {what} do not fit {count} of them")
    return found
