"""A classifier with the interface of scikit-learn."""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_consistent_length, check_random_state

from slide.data import RowTransform, SparseDataset, Split
from slide.data.transforms import count_steps
from slide.estimator.answers import AnswersMixin
from slide.estimator.growing import GrowingMixin
from slide.estimator.recipe import BETAS, Recipe, given_weights, without_numpy
from slide.estimator.silence import silence
from slide.estimator.targets import (
    Targets,
    check_class_names,
    is_matrix,
    read_targets,
    weighted_rows,
)
from slide.model import Model
from slide.model.folder import write_model
from slide.nn import SlideNetwork
from slide.training.loop import start_biases
from slide.utils import checks
from slide.utils.run_folders import check_run_dir


@dataclass(eq=False, repr=False)  # scikit-learn reads the parameters from the constructor.
class SlideClassifier(GrowingMixin, AnswersMixin, ClassifierMixin, BaseEstimator):
    """Multi-label or single-label classification with very many labels, as in scikit-learn.

    It trains what ``train.py`` trains, with the same default recipe: a network with sampled
    outputs, and a re-ranker whose scores are probabilities. Scores are sparse matrices of the best
    labels of each row, never dense ones.

    Args:
        hidden: width of the hidden layer, or a list of widths; None: 512, and 256 for more than
            100,000 labels.
        sampler: how active sets are chosen: ``"uniform"``, ``"lsh"`` or ``"full"``.
        active: outputs in an active set; None: a quarter of all labels, in [64, 2048].
        ranker: ``"ensemble"``; ``"none"`` or None: the network alone, without held-out rows.
        label_weights: how much a hit of each label counts: None: all the same; ``"propensity"``:
            rare labels more (`slide.training.inverse_propensities`); or ``(N,)`` numbers. The
            re-ranker ranks by probability times weight.
        known: ``"exclude"`` leaves known labels out of the answers: the own items of a row in a
            recommender, otherwise the labels of training rows with the same features. ``"keep"``
            does not. ``"auto"`` does where rows look like those of a recommender or a knowledge
            graph (`slide.data.kind_of`), with a warning.
        kind: what the rows are: ``"graph"``, ``"items"``, ``"dense"`` or ``"other"`` (see
            `slide.training.TrainingOptions`; for items, y is a matrix with their numbers);
            ``"auto"``: `slide.data.kind_of` finds it out.
        threshold: `predict` answers with the labels of at least this probability, in [0, 1].
        search: how labels are found: ``"exact"``, ``"index"``, or None: see `slide.Model.search`.
        tf_idf: whether features are counts that are weighted by tf-idf.
        l2_norm: whether rows are brought to length 1.
        epochs: passes over the rows; ``"auto"``: until the next one is expected to raise precision
            on held-out rows only a little; then the learning rate falls to 0.
        max_epochs: largest number of passes with ``epochs="auto"``; None: 20, and more for a small
            graph or small dense data.
        max_minutes: largest training time of the network with ``epochs="auto"``; 0: no limit.
        batch_size: rows in a step; None: 64 to 512, by the number of rows.
        lr: learning rate.
        input_rate: learning rate of the first layer, as a multiple of ``lr``.
        dropout: share of hidden values dropped in training.
        random_state: None, a seed, or a generator of numpy.
        verbose: whether bars and notes appear on standard error.
        run_dir: folder for log, checkpoint and model of `fit`; None: a temporary one.

    Attributes:
        model_: `slide.Model`, which can be saved.
        classes_: ``(N,)`` names of the labels.
        n_features_in_: number of features.
        feature_names_in_: ``(D,)`` names of the features, if X had any.
        multilabel_: whether y was of several labels for a row.
        summary_: what `slide.training.Trainer.fit` returned; not after `partial_fit` alone.

    Example:
        >>> import numpy as np, scipy.sparse, slide
        >>> X = scipy.sparse.random_array((60, 40), density=0.2, rng=0, dtype=np.float32)
        >>> Y = [["long"] * bool(n % 2) + [f"group {n % 3}"] for n in range(60)]
        >>> model = slide.SlideClassifier(max_epochs=2, random_state=0).fit(X, Y)
        >>> model.classes_.tolist()
        ['group 0', 'group 1', 'group 2', 'long']
        >>> labels, scores = model.predict_top_k(X, k=2)
        >>> labels.shape, model.predict_proba(X, top_k=3).shape
        ((60, 2), (60, 4))
    """

    hidden: Any = None
    sampler: str = "uniform"
    active: Any = None
    ranker: Any = "ensemble"
    label_weights: Any = None
    known: str = "auto"
    kind: str = "auto"
    threshold: float = 0.5
    search: Any = None
    tf_idf: bool = False
    l2_norm: bool = True
    epochs: Any = "auto"
    max_epochs: Any = None
    max_minutes: float = 0.0
    batch_size: Any = None
    lr: float = 0.002
    input_rate: float = 4.0
    dropout: float = 0.3
    random_state: Any = None
    verbose: bool = False
    run_dir: Any = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SlideClassifier":
        """Train anew.

        Args:
            X: ``(R, D)`` features, sparse or dense.
            y: a matrix ``(R, N)`` of zeros and ones; a list of label names for each row; or one
                name for each row.
            sample_weight: ``(R,)``, how much each row counts, at least 0; None: all the same. Only
                their ratios count. Rows of weight 0 are left out.

        Raises:
            ValueError: for parameters, features, targets or weights that cannot be.
            slide.training.DivergenceError: if the loss or a weight is NaN or infinite.
        """
        self._check_parameters()
        check_run_dir(self.run_dir)
        split, targets = self._read(X, y, sample_weight, reset=True)
        weights = given_weights(self.label_weights, split.num_labels)
        steps = count_steps(split, tf_idf=self._plain("tf_idf"), l2_norm=self._plain("l2_norm"))
        train = replace(split, features=steps.features(split.features))
        # The last evaluation of a trainer needs a row; nothing is chosen by it.
        data = SparseDataset(
            *("classifier", train, train.slice(0, 1), split.num_features, split.num_labels),
            steps=(steps,),
        )
        with _seeded(self._seed()) as seed, _folder(self.run_dir) as folder:
            with silence(not self.verbose):
                trainer = self._recipe().trainer(data, seed, folder)
                trainer.inverse = trainer.inverse if weights is None else weights
                self.summary_ = trainer.fit()
            guessed = self.known == self.kind == "auto"
            if guessed and trainer.ranker and trainer.ranker.known_labels is not None:
                warnings.warn(
                    f"{trainer.ranker.notes[0]}; known='keep' keeps them, and kind= says what the "
                    "rows are",
                    stacklevel=2,
                )
            model = self._model(trainer.network, trainer.ranker, steps)
            model.optimizer = trainer.loop.optimizer
            model.settings["optimizer"] = {"betas": [*BETAS]}  # For one that was saved and opened.
            self._keep(model, targets)
            if self.run_dir is not None:
                write_model(folder, self.model_)
        return self

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> "SlideClassifier":
        """One pass over further rows, at a constant learning rate, without a re-ranker.

        After `fit`, the network is trained on, and the re-ranker is dropped.

        Args:
            X: ``(R, D)`` features; `add_features` allows for more of them.
            y: see `fit`.
            classes: names of all labels; needed in the first call, unless y is a matrix. Later
                ones may have further names at their end, which are added; so does `add_labels`.
            sample_weight: see `fit`.

        Raises:
            ValueError: for targets that are not among the classes, or ``tf_idf``, which needs all
                rows.
            slide.training.DivergenceError: if the loss is NaN or infinite.
        """
        self._check_parameters()
        if self.tf_idf:
            raise ValueError("tf_idf needs all rows: weight them before partial_fit")
        first = not hasattr(self, "model_")
        if first and classes is None and not is_matrix(y):
            raise ValueError("the first call of partial_fit needs all classes")
        known, new = classes if first else self.classes_, []
        if not first and classes is not None:
            known, count = list(classes), len(self.classes_)
            if known[:count] != list(self.classes_):
                raise ValueError("classes must begin with those of the first call")
            new = known[count:]
        split, targets = self._read(X, y, sample_weight, reset=first, classes=known)
        if new:
            self.add_labels(new)
        recipe, seed = self._recipe(), self._seed()
        # Each call has draws of its own, or dropout would leave the same units out for ever.
        with _seeded((seed + (0 if first else self.model_.passes)) % 2**63):
            if first:
                network = recipe.network(split.num_features, split.num_labels, seed)
                start_biases(network, recipe.loss(), split.labels)
                step = count_steps(split, l2_norm=self._plain("l2_norm"))
                model = self._model(network, None, step)
            else:
                model = self.model_
            rates: dict[str, Any] = {name: self._plain(name) for name in ("lr", "input_rate")}
            rates |= {"rows_in_step": self._plain("batch_size"), "weights": split.weights}
            model.partial_fit(split.features, split.labels, **rates)
        if first:  # After an error the classifier is not fitted.
            self._keep(model, targets)
        return self

    def save(self, path: str | Path, dtype: str = "float32") -> None:
        """Write the model into a folder, which `slide.load` opens; see `slide.Model.save`."""
        self._fitted().model_.save(path, dtype)

    def _read(
        self, X: Any, y: Any, sample_weight: Any, reset: bool, classes: Any = None
    ) -> tuple[Split, Targets]:
        """Rows and targets as they are."""
        x = self._read_rows(X, reset=reset, ensure_min_samples=2 if classes is None else 1)
        targets = read_targets(y, classes)
        check_consistent_length(x.indptr[1:], targets.labels.indptr[1:])
        if not len(targets.classes):
            raise ValueError("y holds no class")
        if reset:
            check_class_names(targets.classes)
        split = Split(x, targets.labels, self.n_features_in_, len(targets.classes))
        return weighted_rows(split, sample_weight), targets

    def _model(self, network: SlideNetwork, ranker: Any, step: RowTransform) -> Model:
        """A model whose labels have no names yet."""
        return Model(
            *(network, ranker, [step]),
            feature_names=getattr(self, "feature_names_in_", None),
            settings={name: repr(self._plain(name)) for name in self.get_params()},
            name="classifier",
        )

    def _keep(self, model: Model, targets: Targets) -> None:
        """Take a trained model."""
        self.multilabel_, self.model_ = targets.multilabel, model
        self._name(targets.classes)

    def _recipe(self) -> Recipe:
        same = ("hidden", "sampler", "active", "ranker", "epochs", "max_epochs", "max_minutes")
        same += ("batch_size", "lr", "input_rate", "dropout", "search", "known", "kind")
        objective = "p" if self.label_weights is None else "psp"
        return Recipe(**{name: self._plain(name) for name in same}, objective=objective)

    def _plain(self, name: str) -> Any:
        """A parameter; a scalar of numpy, such as those of a grid, as Python's own."""
        return without_numpy(getattr(self, name))

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _check_parameters(self) -> None:
        checks.within("threshold", self._plain("threshold"), 0, 1)
        for name in ("verbose", "tf_idf", "l2_norm"):
            checks.flag(name, self._plain(name))
        if self.search is not None:
            checks.one_of("search", self.search, ("exact", "index"))
        if isinstance(self.label_weights, str):
            checks.one_of("label_weights", self.label_weights, ("propensity",))
        if self.label_weights is not None and self.ranker != "ensemble":
            raise ValueError(f"label_weights need ranker='ensemble', not {self.ranker!r}")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.classifier_tags.multi_label = True
        return tags


@contextmanager
def _seeded(seed: int) -> Iterator[int]:
    """Draws of torch begin at a seed, and go on as before afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield seed


@contextmanager
def _folder(run_dir: Any) -> Iterator[Path]:
    """The folder of a run."""
    if run_dir is None:
        with tempfile.TemporaryDirectory(prefix="slide-") as folder:
            yield Path(folder)
        return
    Path(run_dir).mkdir(parents=True, exist_ok=True)
    yield Path(run_dir)
