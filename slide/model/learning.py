"""A model that goes on learning: further rows, new labels and features, labels that go."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from slide.data import Batches, RowTransform, Split, TextVectorizer
from slide.model.growing import extended_names, grown_ranker, with_features, with_label_ids
from slide.model.one_pass import loss_of, make_trainable, optimizer_options, train_pass
from slide.model.restrict import kept_ranker, own_layers
from slide.nn import ActiveLoss, SlideNetwork, add_features, add_outputs, remove_outputs
from slide.nn.stored_layers import make_float32
from slide.optim import RowSparseAdam
from slide.ranking import EnsembleRanker
from slide.sparse import CSR, Pattern, as_pattern, check_labels
from slide.utils import checks
from slide.utils.names import Names, check_columns
from slide.utils.sizes import DEFAULTS, batch_size

# Scale of the first weights of new labels: that of very many labels, since the hidden layer has
# learnt already (see `slide.utils.sizes.output_scale`).
_OUTPUT_SCALE = 0.1


class LearningMixin:
    """What changes a model that has ``network``, ``ranker``, ``steps`` and names.

    Attributes:
        optimizer: of the network; None: there was no training since the model was made.
        passes: number of calls of `partial_fit`.
    """

    network: SlideNetwork
    ranker: EnsembleRanker | None
    steps: tuple[RowTransform, ...]
    label_names: Names | None
    feature_names: Names | None
    vectorizer: TextVectorizer | None
    settings: dict[str, Any]
    num_features: int
    num_labels: int
    _label_ids: np.ndarray | None
    _shares_layers: bool = False  # With another model, since `Model.restricted`.
    optimizer: RowSparseAdam | None = None
    passes: int = 0

    def partial_fit(
        self,
        rows: Any,
        labels: Any,
        *,
        weights: Any = None,
        lr: float = DEFAULTS["optimizer.lr"],
        input_rate: float = DEFAULTS["optimizer.input_rate"],
        rows_in_step: int | None = None,
        loss: str | None = None,
    ) -> Any:
        """Train the network on: one pass over rows, at a constant learning rate.

        The re-ranker is dropped: it judges the scores of the network that was. Loss, dropout and
        options of the optimizer are those of the run or classifier that made the model. The moments
        of the optimizer live as long as the model and are not in its folder. Weights of a folder in
        bfloat16 or int8 become float32 first, as they do where labels or features come and go.

        Args:
            rows: ``(B, D)``, as `predict` takes them.
            labels: of the rows: numbers in any form that `slide.as_pattern` takes, each of them
                once in a row; or names, a list for each row or one for each, if labels have names.
                `add_labels` makes new ones. Numbers, and columns of a matrix, of labels that the
                model does not answer with (rare ones that were left out, removed ones) are skipped;
                their names are refused.
            weights: ``(B,)``, how much each row counts, at least 0; None: all the same.
            lr: learning rate.
            input_rate: learning rate of the first layer, as a multiple of ``lr``.
            rows_in_step: rows in a step; None: 64 to 512, by the number of rows.
            loss: name of the loss; None: that of the run that trained the model, else squared
                hinge.

        Returns:
            The model itself.

        Raises:
            ValueError: for a number out of range, rows that `predict` refuses, an unknown label, or
                a frame whose columns are not the names of the labels. Nothing has changed then.
            TypeError: see `predict`.
            slide.training.DivergenceError: if the loss is NaN or infinite, before the step that
                would ruin the weights; the steps before it have changed them.

        Example:
            >>> import numpy as np, slide
            >>> network = slide.SlideNetwork(4, [8], 2, slide.FullSampler)
            >>> model = slide.Model(network, label_names=["fruit", "tree"])
            >>> model.add_labels(["tool"])
            array([2])
            >>> for _ in range(50):
            ...     model = model.partial_fit(np.eye(4)[:2], ["tree", "tool"], lr=0.02)
            >>> model.predict(np.eye(4)[:2], k=1).labels.tolist()
            [['tree'], ['tool']]
        """
        checks.positive("lr", lr)
        split = self._split(rows, labels, weights)
        size = batch_size(len(split)) if rows_in_step is None else rows_in_step
        batches = Batches(split, size, seed=0)
        kind = ActiveLoss(loss_of(self.settings) if loss is None else loss)
        network = self._own_network()
        make_trainable(network)
        groups = network.parameter_groups(lr, input_rate)
        if self.optimizer is None:
            self.optimizer = RowSparseAdam(groups, lr, **optimizer_options(self.settings))
        for group, rate in zip(self.optimizer.param_groups, groups, strict=True):
            group["lr"] = rate["lr"]
        self.ranker = None
        train_pass(network, self.optimizer, kind, batches.epoch(self.passes))
        self.passes += 1
        return self

    def add_labels(self, labels: Any) -> np.ndarray:
        """Add labels, which `partial_fit` then learns.

        The others keep their numbers and answers. New ones begin with small weights and with the
        bias of rare labels (`slide.nn.add_outputs`), so they hardly ever are answers before they
        are learnt. The moments of the optimizer and indexes follow; a re-ranker knows no row of
        them.

        Args:
            labels: names, if the labels have names, else how many. A name that was removed comes
                back, under its number; in a recommender it may then be an answer to rows that have
                it as a feature.

        Returns:
            ``(n,)`` int64, their numbers.

        Raises:
            ValueError: for a name that the model has, names where there are none, or a number where
                there are names.
        """
        numbers, names = self._new_numbers(labels)
        count = len(numbers)
        own = np.concatenate([self._outputs(), numbers])
        make_float32(self.network)
        add_outputs(self.network.output, count, self.optimizer, _OUTPUT_SCALE)
        if self.ranker is not None:
            self.ranker = grown_ranker(self.ranker, labels=count)
        self._take_outputs(own, max(self.num_labels, int(numbers.max()) + 1))
        self.label_names = names
        return numbers

    def remove_labels(self, labels: Iterable[Any]) -> None:
        """Answer some labels no more; their weights, moments and lists go.

        The others keep their numbers, and the removed ones are not given again.

        Args:
            labels: names or numbers.

        Raises:
            ValueError: for a label that the model does not answer with, or if none would be left.
        """
        own = self._outputs()
        numbers = np.array([self._number(label) for label in labels], np.int64)  # type: ignore[attr-defined]
        for number in numbers[~np.isin(numbers, own)]:
            raise ValueError(f"label {number} was removed before")
        places = np.flatnonzero(np.isin(own, numbers))
        make_float32(self.network)
        kept = remove_outputs(self.network.output, places.tolist(), self.optimizer)
        if self.ranker is not None:
            self.ranker = kept_ranker(self.ranker, kept.astype(np.int32))
        self._take_outputs(own[kept], self.num_labels)

    def rename_labels(self, names: Iterable[Any] | None) -> None:
        """Number the labels that are left from 0 on, and name them anew.

        Args:
            names: a name for each label that the model answers with, in the order of their numbers;
                None: labels are numbers.

        Raises:
            ValueError: for another number of names.
        """
        count = self.network.output.out_features
        found = None if names is None else Names.of(names, "label_names")
        if found is not None and len(found) != count:
            raise ValueError(f"{len(found)} label_names do not fit {count} of them")
        self._take_outputs(np.arange(count), count)
        self.label_names = found

    def add_features(self, features: Any) -> None:
        """Add features, which come last; `partial_fit` then learns them.

        Args:
            features: names, if the features have names, else how many. Of a model that takes
                texts, they are words.

        Raises:
            ValueError: for a name that the model has, names where there are none, a number where
                there are names, or a word that the model finds in no text.
        """
        names, count = extended_names(self.feature_names, features, "features")
        if self.vectorizer is not None and names is not None:
            self.vectorizer.check_terms(
                map(names.__getitem__, range(self.num_features, len(names)))
            )
        steps, seen = with_features(self.steps, count)
        if seen:  # First what may be refused.
            make_float32(self._own_network())
            add_features(self.network.first, seen, self.optimizer, DEFAULTS["network.init_scale"])
        self.steps = steps
        if self.vectorizer is not None and names is not None:
            idf = self.vectorizer.idf
            rarest = np.pad(idf, (0, count), constant_values=idf.max(initial=1.0))
            self.vectorizer = TextVectorizer(self.vectorizer.options, names, rarest)
        if seen and self.ranker is not None:
            self.ranker = grown_ranker(self.ranker, features=seen)
        self.feature_names, self.num_features = names, self.num_features + count

    def _outputs(self) -> np.ndarray:
        """The label of each output, int64."""
        if self._label_ids is None:
            return np.arange(self.network.output.out_features)
        return self._label_ids.astype(np.int64)

    def _take_outputs(self, own: np.ndarray, num_labels: int) -> None:
        self.steps = with_label_ids(self.steps, own, num_labels, self.num_features)
        self.num_labels = num_labels
        self._label_ids = self.steps[0].label_ids if self.steps else None

    def _own_network(self) -> SlideNetwork:
        """The network, which is the model's own from now on."""
        if self._shares_layers:
            self.network, self.optimizer = own_layers(self.network, self.optimizer)
            self._shares_layers = False
        return self.network

    def _new_numbers(self, labels: Any) -> tuple[np.ndarray, Names | None]:
        """Numbers for new labels, and the names of all."""
        every, again = self.label_names, []
        if every is not None and isinstance(labels, Iterable) and not isinstance(labels, str):
            names, own = list(labels), set(self._outputs().tolist())
            again = [n for n in map(every.number, names) if n is not None and n not in own]
            labels = [name for name in names if every.number(name) not in again]
        more = range(0)
        if not again or len(labels):
            every, count = extended_names(every, labels, "labels")
            more = range(self.num_labels, self.num_labels + count)
        if len(set(again)) < len(again):
            raise ValueError("a label occurs twice among the new ones")
        return np.array([*again, *more], np.int64), every

    def _split(self, rows: Any, labels: Any, weights: Any) -> Split:
        """Rows and labels as the network sees them."""
        x = self._checked(rows)  # type: ignore[attr-defined]
        y = self._numbered(labels)
        check_labels("labels", y, x.num_rows, self.num_labels)
        for step in self.steps:
            x, y = step.features(x), step.labels(y)
        weights = checks.row_weights("weights", weights, x.num_rows)
        sizes = self.network.first.in_features, self.network.output.out_features
        return Split(x, y, *sizes, weights)

    def _numbered(self, labels: Any) -> Pattern:
        """Labels before the steps as numbers."""
        matrix = isinstance(labels, CSR | Pattern) or hasattr(labels, "tocsr")
        if self.label_names is None or matrix or getattr(labels, "ndim", 1) == 2:
            found, columns = as_pattern(labels, self.num_labels), getattr(labels, "columns", None)
            if self.label_names is not None and columns is not None:
                check_columns("labels", columns, self.label_names)
            return found
        names = [[row] if isinstance(row, str | int | np.integer) else row for row in labels]
        lists = [list(dict.fromkeys(row)) for row in names]
        found = Pattern.from_lists([[self._known_number(name) for name in row] for row in lists])
        for place in np.flatnonzero(~np.isin(found.indices, self._outputs()))[:1]:
            name = [name for row in lists for name in row][place]
            raise ValueError(f"label {name!r} was removed: add_labels([{name!r}]) brings it back")
        return found

    def _known_number(self, name: Any) -> int:
        assert self.label_names is not None
        number = self.label_names.number(name)
        if number is None:
            raise ValueError(f"the model has no label {name!r}: add_labels([{name!r}]) adds it")
        return number
