"""A trained model: from rows as people have them to the labels that they get; it can learn on."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch

from slide.data import Batches, RowTransform, Split, TextVectorizer
from slide.data.columns import Columns
from slide.data.row_transform import old_label_ids
from slide.data.sources.table import features_of
from slide.data.table_files import named_by_text, read_table
from slide.functional.losses import LOSSES
from slide.model.card import SUMMARY
from slide.model.folder import (
    MODEL_FILE,
    check_target,
    read_model_folder,
    restored_parts,
    write_model,
)
from slide.model.hub import fetched, is_on_hub, push
from slide.model.resizing import (
    extended_names,
    kept_network,
    with_features,
    with_label_ids,
)
from slide.nn import ActiveLoss, SlideNetwork, add_features, add_outputs, remove_outputs
from slide.nn.answers import Ranked, Reranker
from slide.nn.resizing import changing
from slide.nn.sampled_linear import SEARCHES as SEARCHES
from slide.nn.sampled_linear import check_finite
from slide.nn.stored_layers import make_float32
from slide.optim import RowSparseAdam
from slide.runtime import one_thread
from slide.sampling import ActiveSampler
from slide.sparse import (
    CSR,
    Pattern,
    as_csr,
    as_pattern,
    check_float32,
    check_labels,
    check_pattern,
)
from slide.utils import checks
from slide.utils.names import Names, check_columns
from slide.utils.resources import check_room
from slide.utils.sizes import DEFAULTS, active_outputs, batch_size, default_search
from slide.utils.tensor_folder import SUFFIX

# Scale of the first weights of new labels: that of very many labels, since the hidden layer has
# learnt already (see `slide.utils.sizes.output_scale`).
_OUTPUT_SCALE = 0.1
_BATCH = 1024
# A folder that is replaced while it is opened is opened again; one that is so 20 times is an error.
_ATTEMPTS = 20
# What files that do not fit each other raise.
_UNFIT = ValueError, LookupError, TypeError, AttributeError, RuntimeError, OverflowError

_Change = TypeVar("_Change", bound=Callable[..., Any])


def _alone(change: _Change) -> _Change:
    """The method, which raises RuntimeError while another thread changes the same network."""

    @wraps(change)
    def changed(self: "Model", *args: Any, **kwargs: Any) -> Any:
        with changing(*self.network.layers()):
            self.settings.pop(SUMMARY, None)  # Its scores are those of the model before.
            return change(self, *args, **kwargs)

    return cast(_Change, changed)


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


class Model:
    """A trained network with its re-ranker, and all that rows and answers go through.

    Args:
        ranker: trained on it; None: the network alone answers.
        steps: what is done to rows before the network sees them (`SparseDataset.steps`).
        label_names: a name for each label before the ``steps``; None: labels are numbers.
        feature_names: a name for each feature before the ``steps``; None: features are numbers.
        settings: how the model was trained; JSON values, kept with it.
        vectorizer: makes rows of texts, before the ``steps``; its terms are the names of the
            first features. None: the model takes no texts.

    Raises:
        ValueError: if names, steps and network differ in their numbers of features or labels.

    Attributes:
        optimizer: of the network; None: there was no training since the model was made.
        passes: number of calls of `partial_fit`.

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
        ranker: Reranker | None = None,
        steps: Sequence[RowTransform] = (),
        label_names: Iterable[Any] | None = None,
        feature_names: Iterable[Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        name: str = "",
        vectorizer: TextVectorizer | None = None,
    ):
        self.network, self.ranker, self.steps = network, ranker, tuple(steps)
        self.name, self.settings = name, dict(settings or {})
        self.num_features = network.first.in_features
        self.num_labels = network.output.out_features
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
            feature_names = vectorizer.terms if feature_names is None else feature_names
            if vectorizer.num_features > self.num_features:
                raise ValueError(
                    f"a vectorizer of {vectorizer.num_features} features does not fit a model of "
                    f"{self.num_features}"
                )
        self.feature_names = _names(feature_names, self.num_features, "feature_names")
        # The old number of each output; None: the outputs are numbered as the labels.
        self._label_ids = old_label_ids(self.steps)
        self.optimizer: RowSparseAdam | None = None
        self.passes = 0
        self._shares_layers = False  # With another model, since `restricted`.
        self._files: dict[Path, tuple[int, ...]] = {}  # That are mapped, as they were.

    def predict(self, rows: Any, k: int = 5, search: str | None = None) -> Predicted:
        """The k best labels of each row, with their names if they have any.

        Args:
            rows: ``(B, D)`` raw features, in any form that `slide.as_csr` takes, or texts: a list,
                an array ``(B,)`` or an iterator. A model of a table takes a frame or a list of
                dicts with its columns. What was done to the training rows is done to them.
            k: number of labels. Where there are fewer, the last ones have the number -1, the name
                None and the score 0. A re-ranker looks at more candidates if k is larger than their
                number, and its first answers may then be others.
            search: ``"exact"``, ``"index"``, which is many times as fast with very many labels
                and may miss one, or ``"sampler"``, if the model has the index of its sampler; see
                `slide.SampledLinear.top_k`. None: `search`.

        Raises:
            ValueError: for a k below 1, another number of features, values or scores that are not
                finite, or ``"sampler"`` without its index.
            TypeError: for rows that are no matrix, or texts where the model takes none.
        """
        ids, scores = self.predict_ids(rows, k, search)
        return Predicted(ids if self.label_names is None else self.label_names.take(ids), scores)

    def predict_ids(self, rows: Any, k: int = 5, search: str | None = None) -> Predicted:
        """`predict` with labels that are always numbers."""
        checks.whole("k", k, 1)
        search = self.search if search is None else search
        checks.one_of("search", search, SEARCHES)
        x = self._checked(rows)
        check_room(16 * k * x.num_rows, f"k={k} labels of {x.num_rows} rows")
        parts = [(np.empty((0, k), np.int64), np.empty((0, k)))]
        with one_thread() if x.num_rows == 1 else nullcontext():
            for start in range(0, x.num_rows, _BATCH):
                try:
                    parts.append(self._answer(x.slice(start, start + _BATCH), k, search))
                except checks.ScoresNotFinite as error:
                    raise checks.ScoresNotFinite(start + error.row) from error
        ids, scores = (np.concatenate(each) for each in zip(*parts, strict=True))
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

    @property
    def columns(self) -> Columns | None:
        """The columns that the model reads of a table; None: it takes features only."""
        kept = self.settings.get("columns")
        if isinstance(kept, dict):
            return Columns.restored(kept)
        return None if self.vectorizer is None else Columns("labels", text=("text",))

    def rows_of(self, rows: Iterable[Any]) -> CSR:
        """The raw features of texts, or of cells by the name of their column.

        Raises:
            TypeError: if the model takes no texts, or for one that is none.
            ValueError: for cells that are not those of `columns`.
        """
        columns, rows = self.columns, rows if isinstance(rows, str) else list(rows)
        if columns is not None and any(isinstance(row, Mapping) for row in rows):
            cells = (
                named_by_text(row) if isinstance(row, Mapping) else {"text": row} for row in rows
            )
            given = [columns.row(columns.found_in(each)) for each in cells]
            return features_of(given, self.vectorizer, columns)
        if self.vectorizer is None:
            raise TypeError("the model takes rows of features, not texts: it has no vectorizer")
        return self.vectorizer.rows(rows)

    def _checked(self, rows: Any) -> CSR:
        if isinstance(rows, Iterator):
            rows = list(rows)
        if _is_table(rows) and isinstance(self.settings.get("columns"), dict):
            rows = self.rows_of(cells for _, cells in read_table(rows))
        if self.feature_names is not None and hasattr(rows, "columns"):
            check_columns("features", rows.columns, self.feature_names)
        if _are_texts(rows, self.vectorizer is not None):
            rows = self.rows_of(rows)
        x = as_csr(rows, self.num_features)
        check_pattern("features", x, None, self.num_features)
        check_float32("features", x)  # `as_csr` does not look into a CSR.
        return x.without_zeros()

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

    def with_vectorizer(self, vectorizer: TextVectorizer) -> "Model":
        """The same model, which takes texts; it shares everything else with this one.

        Raises:
            ValueError: for a vectorizer of another number of features.
        """
        if vectorizer.num_features != self.num_features:
            kind = "classifier" if "classifier" in self.settings else "model"
            raise ValueError(
                f"a vectorizer of {vectorizer.num_features} features does not fit a {kind} of "
                f"{self.num_features}"
            )
        found = copy.copy(self)
        found.vectorizer, found.feature_names = vectorizer, vectorizer.terms
        return found

    def changed_file(self) -> Path | None:
        """A file of the model's folder that was cut or written over since `load`; None: none.

        The model reads its weights from the files, so its answers are wrong then, or its process
        ends by SIGBUS. Files that others have replaced, as `save` does, stay as they were for it.
        """
        for path, before in self._files.items():
            with suppress(FileNotFoundError):  # Removed, and still there for this process.
                now = _identity(path)
                if now[0] == before[0] and now != before:
                    return path
        return None

    def restricted(self, labels: Iterable[Any]) -> "Model":
        """A model that answers with some of the labels only; weights of the others are left out.

        A re-ranker compares candidates, so its probabilities differ a little without the others.
        The model keeps the names of all labels, and can be saved. The two share their hidden layers
        until one of them learns. It copies the layers first, so the other one stays as it was.

        Raises:
            ValueError: for a label that the model does not have, or none at all.
        """
        numbers = np.array([self._number(label) for label in labels], np.int64)
        outputs = self.network.output.out_features
        kept = np.flatnonzero(np.isin(self._outputs(), numbers)).astype(np.int32)
        if not len(kept):
            raise ValueError("restricted needs at least one label that the model can answer with")
        step = RowTransform(self.network.first.in_features, outputs, label_ids=kept)
        small = Model(
            kept_network(self.network, kept),
            None if self.ranker is None else self.ranker.selected(kept),
            (*self.steps, step),
            label_names=self.label_names,
            feature_names=self.feature_names,
            settings={key: value for key, value in self.settings.items() if key != SUMMARY},
            name=self.name,
            vectorizer=self.vectorizer,
        )
        small._shares_layers = self._shares_layers = True
        return small

    def _number(self, label: Any, may_be_new: bool = False) -> int:
        number = label if self.label_names is None else self.label_names.number(label)
        if not isinstance(number, int | np.integer) or not 0 <= number < self.num_labels:
            advice = f": add_labels([{label!r}]) adds it" if may_be_new else ""
            raise ValueError(f"the model has no label {label!r}{advice}")
        return int(number)

    @_alone
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
        """Train the network on: one pass over samples, at a constant learning rate.

        The re-ranker is dropped: it was trained on scores of the former network. Loss, dropout and
        options of the optimizer come from the run or classifier that made the model. The moments
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
            input_rate: learning rate of the first layer, as a multiple of ``lr``.
            rows_in_step: rows in a step; None: 64 to 512, by the number of rows.
            loss: name of the loss; None: that of the run that trained the model, else squared
                hinge.

        Raises:
            ValueError: for a number out of range, rows that `predict` refuses, an unknown label, or
                a frame whose columns are not the names of the labels. Nothing has changed then.
            slide.training.DivergenceError: if the loss is NaN or infinite, before the step that
                would ruin the weights; the steps before it have changed them.
            RuntimeError: while another thread trains or resizes the model. Predicting may go on.

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
        from slide.training.loop import TrainingLoop  # Here: predicting needs no training.

        checks.positive("lr", lr)
        checks.positive("input_rate", input_rate)
        options = _optimizer_options(self.settings)
        if self.optimizer is not None:
            options = {name: self.optimizer.param_groups[0][name] for name in options}
        for rate in (lr, lr * input_rate):  # Refused before anything changes.
            RowSparseAdam([torch.empty(1, dtype=torch.float32)], rate, **options)
        split = self._split(rows, labels, weights)
        size = batch_size(len(split)) if rows_in_step is None else rows_in_step
        batches = Batches(split, size, seed=0)
        kind = ActiveLoss(_loss_of(self.settings) if loss is None else loss)
        network = self._own_network()
        _make_trainable(network)
        groups = network.parameter_groups(lr, input_rate)
        if self.optimizer is None:
            self.optimizer = RowSparseAdam(groups, lr, **options)
        for group, rate in zip(self.optimizer.param_groups, groups, strict=True):
            group["lr"] = rate["lr"]
        self.ranker = None
        try:
            for _ in TrainingLoop(network, self.optimizer, kind).steps(batches.epoch(self.passes)):
                pass
        finally:
            network.eval()
        self.passes += 1
        return self

    @_alone
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
        """
        numbers, names = self._new_numbers(labels)
        count = len(numbers)
        own = np.concatenate([self._outputs(), numbers])
        make_float32(self.network)
        add_outputs(self.network.output, count, self.optimizer, _OUTPUT_SCALE)
        if self.ranker is not None:
            self.ranker = self.ranker.grown(labels=count)
        self._take_outputs(own, max(self.num_labels, int(numbers.max()) + 1))
        self.label_names = names
        return numbers

    @_alone
    def remove_labels(self, labels: Iterable[Any]) -> None:
        """Answer some labels no more; their weights, moments and lists go.

        The others keep their numbers, and the removed ones are not given again.

        Raises:
            ValueError: for a label that the model does not answer with, or if none would be left.
        """
        own = self._outputs()
        numbers = np.array([self._number(label) for label in labels], np.int64)
        for number in numbers[~np.isin(numbers, own)]:
            raise ValueError(f"label {number} was removed before")
        positions = np.flatnonzero(np.isin(own, numbers))
        make_float32(self.network)
        kept = remove_outputs(self.network.output, positions.tolist(), self.optimizer)
        if self.ranker is not None:
            self.ranker = self.ranker.selected(kept.astype(np.int32))
        self._take_outputs(own[kept], self.num_labels)

    def rename_labels(self, names: Iterable[Any] | None) -> None:
        """Number the labels that are left from 0 on, and name them anew; None: by these numbers."""
        count = self.network.output.out_features
        found = _names(names, count, "label_names")
        self._take_outputs(np.arange(count), count)
        self.label_names = found

    @_alone
    def add_features(self, features: Any) -> None:
        """Add features, which come last; `partial_fit` then learns them.

        Args:
            features: names, if the features have names, else how many. Of a model that takes
                texts, they are words.
        """
        names, count = extended_names(self.feature_names, features, "features")
        if self.vectorizer is not None and names is not None:
            if self.vectorizer.num_features < self.num_features:
                raise ValueError("a model of a table with numbers takes no new features")
            self.vectorizer.check_terms(
                map(names.__getitem__, range(self.num_features, len(names)))
            )
        steps, seen = with_features(self.steps, count)
        if seen:  # First what may be refused.
            make_float32(self._own_network())
            add_features(self.network.first, seen, self.optimizer, DEFAULTS["network.init_scale"])
        self.steps = steps
        if self.vectorizer is not None and names is not None:
            self.vectorizer = self.vectorizer.extended(names)
        if seen and self.ranker is not None:
            self.ranker = self.ranker.grown(features=seen)
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
        """The network, with layers that no other model has; the output layer it never shares."""
        if self._shares_layers:
            output = self.network.output
            kept: list[object] = [output, *output.parameters()]
            if self.optimizer is not None:
                state = self.optimizer.state
                kept += [state[each] for each in output.parameters() if each in state]
            both, memo = (self.network, self.optimizer), {id(each): each for each in kept}
            self.network, self.optimizer = copy.deepcopy(both, memo)
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
        x = self._checked(rows)
        y = self._numbered(labels)
        check_labels("labels", y, x.num_rows, self.num_labels)
        for step in self.steps:
            x, y = step.features(x), step.labels(y)
        weights = checks.row_weights("weights", weights, x.num_rows)
        return Split(
            x, y, self.network.first.in_features, self.network.output.out_features, weights
        )

    def _numbered(self, labels: Any) -> Pattern:
        matrix = isinstance(labels, CSR | Pattern) or hasattr(labels, "tocsr")
        if self.label_names is None or matrix or getattr(labels, "ndim", 1) == 2:
            found, columns = as_pattern(labels, self.num_labels), getattr(labels, "columns", None)
            if self.label_names is not None and columns is not None:
                check_columns("labels", columns, self.label_names)
            return found
        names = [[row] if isinstance(row, str | int | np.integer) else row for row in labels]
        lists = [list(dict.fromkeys(row)) for row in names]
        found = Pattern.from_lists([[self._number(n, True) for n in row] for row in lists])
        for position in np.flatnonzero(~np.isin(found.indices, self._outputs()))[:1]:
            name = [name for row in lists for name in row][position]
            raise ValueError(f"label {name!r} was removed: add_labels([{name!r}]) brings it back")
        return found

    def save(self, path: str | Path, dtype: str = "float32") -> None:
        """Write the model into a folder; `slide.load` opens it.

        Args:
            path: the folder; it is made if it does not exist. A model in it is replaced once the
                new one is on the disk.
            dtype: type of the weights of the network in the file: ``"float32"``; ``"bfloat16"``,
                which takes half the space; or ``"int8"`` with a scale for each row, which takes a
                quarter. They stay so when they are opened; predictions convert what they read.
        """
        folder = Path(path)
        check_target(folder)
        write_model(folder, self, dtype)

    def push_to_hub(self, name: str, dtype: str = "float32", private: bool | None = None) -> str:
        """Upload the model to the Hugging Face Hub; ``slide.load("hf://owner/name")`` opens it.

        A repository that does not exist is made, and a README.md there that was edited stays.

        Args:
            name: ``owner/name`` of the repository.
            dtype: of the weights; see `save`.
            private: whether a new repository can be seen by its owner alone; None: as the owner has
                chosen on the Hub.

        Returns:
            The address of the commit.

        Raises:
            ImportError: if huggingface_hub is not installed.
            OSError: if the Hub cannot be reached or refuses it.
        """
        return push(self, name, dtype, private)


def _identity(path: Path) -> tuple[int, ...]:
    """What stays as it is until a file is replaced, and what stays until it is changed."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def _identities(folder: Path) -> dict[Path, tuple[int, ...]]:
    """Of the files of a model, its list among them."""
    found = {}
    for path in (*folder.glob(f"*{SUFFIX}"), folder / MODEL_FILE):
        with suppress(OSError):  # It is being replaced, or is not there.
            found[path] = _identity(path)
    return found


@torch.inference_mode(False)  # Its weights may be trained later.
def load(path: str | Path, verify: bool = True) -> Model:
    """Open a model: what `Model.save` wrote, or the folder of a run of ``train.py``.

    The weights are mapped: pages come from the disk when they are used, and processes that open the
    same folder share them; only the index of dense training rows is copied. All files are read once
    before that, to compare their SHA-256. Each array is compared with what it must be, so that no
    kernel reads outside of one, whoever wrote the folder.

    Args:
        path: the folder, or ``"hf://owner/name"`` for a repository of the Hugging Face Hub, with
            ``@revision`` behind it for a branch, tag or commit. Only the files that a model may
            have are fetched. It needs ``pip install 'slide-xmc[hub]'``.
        verify: whether to compare the SHA-256 of all files with ``model.json``, which reads every
            byte. Without it a model of any size opens at once, and a changed byte gives other
            answers. Weights that are not finite are then noticed by rows that use them.

    Raises:
        FileNotFoundError: if there is no model, or one of its files is missing.
        ValueError: if the format is another one, a file is not the one that was written, or what it
            holds is no model; the message names the file and the array.

    Example:
        See `Model`.

        >>> import slide
        >>> slide.load("results")
        Traceback (most recent call last):
        FileNotFoundError: there is no model in results: no model.json
    """
    folder = fetched(str(path)) if is_on_hub(path) else Path(path)
    for _ in range(_ATTEMPTS):
        before = _identities(folder)
        try:
            model = _opened(folder, verify)
        except (OSError, ValueError):
            if _identities(folder) == before:
                raise
            continue
        if _identities(folder) == before:
            before.pop(folder / MODEL_FILE, None)  # It is not mapped.
            model._files = before
            return model
    raise ValueError(f"{folder} is replaced again and again: open it when it stays")


def _opened(folder: Path, verify: bool) -> Model:
    """The model of a folder, unless another process replaces its files meanwhile."""
    content = read_model_folder(folder, verify)
    try:
        return Model(**restored_parts(folder, content, verify))
    except MemoryError as error:
        raise ValueError(f"the model of {folder} takes more memory than there is") from error
    except _UNFIT as error:
        own = isinstance(error, ValueError)
        if own and str(folder) in str(error):
            raise
        said = checks.shortened(error if own else repr(error))
        raise ValueError(f"the files of {folder} do not fit each other: {said}") from error


def _make_trainable(network: SlideNetwork) -> None:
    """Let a network that was opened for prediction learn, from uniform draws."""
    make_float32(network)
    layer = network.output
    if not layer.weight.requires_grad:
        layer.sampler = ActiveSampler(
            layer.in_features,
            layer.out_features,
            active=active_outputs(layer.out_features, "shared"),
            weighting="none",
        )
    network.requires_grad_(True)


def _loss_of(settings: Mapping[str, Any]) -> str:
    found = settings.get("loss")
    names = found.get("_args_") if isinstance(found, dict) else None
    name = names[0] if isinstance(names, list) and names else None
    return name if isinstance(name, str) and name in LOSSES else "squared_hinge"


def _optimizer_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the optimizer of a run or classifier was made with, but for its rates."""
    found = settings.get("optimizer")
    found = found if isinstance(found, dict) else {}
    names = ("betas", "eps", "weight_decay", "correct_skipped", "rowwise")
    return {name: found[name] for name in names if name in found}


def _is_table(rows: Any) -> bool:
    return hasattr(rows, "columns") or (
        isinstance(rows, Sequence) and len(rows) > 0 and isinstance(rows[0], Mapping)
    )


def _are_texts(rows: Any, wanted: bool) -> bool:
    """Whether rows are meant as texts; of no rows at all, whether texts are ``wanted``."""
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
