"""A classifier with the interface of scikit-learn."""

import ast
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    check_random_state,
    column_or_1d,
    validate_data,
)

from slide.config import build_network, build_optimizer, fill_in
from slide.config.compose import as_dict, choose, code_in, plain_errors
from slide.config.recipe import build_loss, check_settings, check_used, put_together
from slide.data import SparseDataset, Split, TextVectorizer
from slide.data.transforms import StepOptions, count_steps
from slide.estimator.targets import (
    Targets,
    check_class_names,
    check_same_kind,
    checked_sample_weight,
    holds_texts,
    is_matrix,
    label_names,
    name_array,
    one_label_each,
    read_targets,
    restored_names,
    weighted_rows,
    without_numpy,
    without_torch,
)
from slide.model import Model, Predicted, load
from slide.model.folder import MODEL_FILE, write_model
from slide.nn import SlideNetwork
from slide.runtime import own_draws
from slide.sampling import ActiveSampler
from slide.sparse import CSR, as_csr, as_wide, hits, row_bounds
from slide.training.loop import start_biases
from slide.utils import checks
from slide.utils.array_checks import Stored
from slide.utils.checks import NO_LITERAL, override_key
from slide.utils.names import Names
from slide.utils.progress_bar import silenced
from slide.utils.run_folders import check_run_dir
from slide.utils.sizes import DEFAULTS, active_outputs

RANKERS = ("ensemble", "none", None)
# Labels of a row in the matrices of scores, unless another number is asked for.
_TOP = 100
# With at most as many classes, scores are arrays, as tools of scikit-learn need them: 8 kB a row.
_DENSE = 1000
# The keys of the command line that arguments stand for.
_KEYS = {
    "hidden": "network.hidden",
    "dropout": "network.dropout",
    "active": "sampler.active",
    "mode": "sampler.mode",
    "known": "ranker.known",
    "kind": "trainer.kind",
    "search": "trainer.evaluation",
    "epochs": "trainer.epochs",
    "max_epochs": "trainer.max_epochs",
    "max_minutes": "trainer.max_minutes",
    "batch_size": "trainer.batch_size",
    "lr": "optimizer.lr",
    "input_rate": "optimizer.input_rate",
}
# Arguments of the transform of rows.
_STEPS = ("tf_idf", "standardize", "l2_norm")
# Groups of the command line that have a meaning here.
_GROUPS = ("network", "sampler", "hash", "schedule", "loss", "optimizer", "lr_schedule")
_GROUPS += ("ranker", "recipe", "trainer")


@dataclass(frozen=True)
class Untrusted:
    """In place of a parameter of a folder by which a configuration would run something."""

    error: str


@dataclass(eq=False, repr=False)  # scikit-learn reads the parameters from the constructor.
class SlideClassifier(ClassifierMixin, BaseEstimator):
    """Multi-label or single-label classification with very many labels, as in scikit-learn.

    It trains what ``train.py`` trains, with the same default recipe: a network with sampled
    outputs, and a re-ranker whose scores are probabilities. Scores are sparse matrices of the best
    labels of each row; with at most 1,000 classes they are arrays of all.

    Args:
        hidden: width of the hidden layer, or a list of widths; None: 512, 256 for more than
            100,000 labels and 128 for more than 3,000,000.
        sampler: how active sets are chosen: any ``sampler`` of the command line, such as
            ``"lsh"`` (hash tables), ``"sketch"``, ``"uniform"`` and ``"full"``.
        active: outputs in an active set; None: a quarter of all labels, at least 64, and at most
            192 for a group, 128 for a row and 2048 for a batch.
        ranker: ``"ensemble"``; ``"none"`` or None: the network alone, without held-out rows.
        label_weights: how much a hit of each label counts: None: all the same; ``"propensity"``:
            rare labels more (`slide.training.inverse_propensities`); or ``(N,)`` numbers. The
            re-ranker ranks by probability times weight.
        known: ``"exclude"`` leaves known labels out of the answers: the own items of a row in a
            recommender, otherwise the labels of training rows with the same features. ``"keep"``
            does not. ``"auto"`` does where rows look like a recommender's or a knowledge
            graph (`slide.ranking.choose_kind`), with a warning.
        kind: what the rows are: ``"graph"``, ``"items"``, ``"dense"`` or ``"other"`` (see
            `slide.training.TrainingOptions`; for items, y is a matrix with their numbers);
            ``"auto"``: `slide.ranking.choose_kind` finds it out.
        threshold: `predict` answers with the labels of at least this probability, in [0, 1].
        search: how labels are found: ``"exact"``, ``"index"``, or None: see `slide.Model.search`.
        tf_idf: whether features are counts that are weighted by tf-idf.
        standardize: whether features are brought to mean 0 and deviation 1, and a constant one is
            added; ``"common"``: with the same factor for all; ``"bins"``: they become bins by
            quantiles instead; ``"auto"``: the best of them, where rows are dense, and nearest
            neighbours answer better then.
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
        mode: ``"grouped"``: one active set for each group of 16 similar rows; ``"per_sample"``: one
            for each row; ``"shared"``: one for the batch.
        settings: further keys of ``python train.py --help`` with their values, such as
            ``{"hash.num_tables": 16}``, or ``{"hash.L": 16}`` by the letter of the papers, of all
            groups but dataset, transform and runtime.

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

    hidden: Any = DEFAULTS["network.hidden"]
    sampler: str = DEFAULTS["sampler"]
    active: Any = DEFAULTS["sampler.active"]
    ranker: Any = DEFAULTS["ranker"]
    label_weights: Any = None
    known: str = DEFAULTS["ranker.known"]
    kind: str = DEFAULTS["trainer.kind"]
    threshold: float = 0.5
    search: Any = DEFAULTS["trainer.evaluation"]
    tf_idf: bool = DEFAULTS["transform.tf_idf"]
    standardize: Any = DEFAULTS["transform.standardize"]
    l2_norm: bool = DEFAULTS["transform.l2_norm"]
    epochs: Any = DEFAULTS["trainer.epochs"]
    max_epochs: Any = DEFAULTS["trainer.max_epochs"]
    max_minutes: float = DEFAULTS["trainer.max_minutes"]
    batch_size: Any = DEFAULTS["trainer.batch_size"]
    lr: float = DEFAULTS["optimizer.lr"]
    input_rate: float = DEFAULTS["optimizer.input_rate"]
    dropout: float = DEFAULTS["network.dropout"]
    random_state: Any = None
    verbose: bool = False
    run_dir: Any = None
    mode: str = DEFAULTS["sampler.mode"]
    settings: Any = None

    @torch.inference_mode(False)
    @torch.enable_grad()
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> "SlideClassifier":
        """Train anew.

        Args:
            X: ``(R, D)`` features, sparse or dense.
            y: a matrix ``(R, N)`` of zeros and ones; a list of label names for each row; or one
                name for each row.
            sample_weight: ``(R,)``, how much each row counts, at least 0; None: all the same. Only
                their ratios count. Rows of weight 0 are left out.

        Raises:
            slide.training.DivergenceError: if the loss or a weight is NaN or infinite.
        """
        config = self._config()
        check_run_dir(self.run_dir)
        split, targets = self._read(X, y, sample_weight, reset=True)
        weights = _given_weights(self.label_weights, split.num_labels)
        with silenced(not self.verbose):
            steps = count_steps(split, **{name: self._plain(name) for name in _STEPS})
        sizes = steps.num_columns
        train = replace(split, features=steps.features(split.features), num_features=sizes[0])
        # The last evaluation of a trainer needs a row; nothing is chosen by it.
        held = train.slice(0, 1)
        data = SparseDataset("classifier", train, held, *sizes, steps=(steps,))
        config.seed = self._seed()
        with own_draws(config.seed), _folder(self.run_dir) as folder:
            fill_in(config, len(train), split.num_labels)
            with silenced(not self.verbose):
                with plain_errors():
                    network = build_network(config, *sizes)
                    optimizer = build_optimizer(config, network)
                    trainer = put_together(config, network, optimizer, data, folder)
                trainer.inverse = trainer.inverse if weights is None else weights
                self.summary_ = trainer.fit()
            guessed = self.known == self.kind == "auto"
            if guessed and trainer.ranker and trainer.ranker.seen is not None:
                warnings.warn(
                    f"{trainer.ranker.notes[0]}; known='keep' keeps them. The rows are taken for "
                    f"{trainer.kind_choice.replace('trainer.kind=', 'kind=')}",
                    stacklevel=2,
                )
            model = self._model(config, network, trainer.ranker, steps)
            model.optimizer = trainer.loop.optimizer
            # For a model that is saved, opened and learns on.
            model.settings["optimizer"] = as_dict(config.optimizer)
            self._keep(model, targets)
            if self.run_dir is not None:
                write_model(folder, self.model_)
        return self

    @torch.inference_mode(False)
    @torch.enable_grad()
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

        Raises:
            slide.training.DivergenceError: if the loss is NaN or infinite.
        """
        first = not hasattr(self, "model_")
        config = self._config(first)
        if self.tf_idf:
            raise ValueError("tf_idf needs all rows: weight them before partial_fit")
        if self._plain("standardize") in (True, "common", "bins"):
            raise ValueError("standardize needs all rows: standardize them before partial_fit")
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
        config.seed = seed = self._seed()
        fill_in(config, len(split), split.num_labels)
        # Each call has draws of its own, or dropout would leave the same units out for ever.
        with own_draws((seed + (0 if first else self.model_.passes)) % 2**63):
            if first:
                with plain_errors():
                    network = build_network(config, split.num_features, split.num_labels)
                    if config.network.prior_bias:
                        start_biases(network, build_loss(config), split.labels)
                step = count_steps(split, l2_norm=self._plain("l2_norm"))
                model = self._model(config, network, None, step)
            else:
                model = self.model_
            model.partial_fit(
                split.features,
                split.labels,
                weights=split.weights,
                lr=config.optimizer.lr,
                input_rate=config.optimizer.input_rate,
                rows_in_step=self._plain("batch_size"),
            )
        if first:  # After an error the classifier is not fitted.
            self._keep(model, targets)
        return self

    def save(self, path: str | Path, dtype: str = "float32", vectorizer: Any = None) -> None:
        """Write the model into a folder, which `slide.load` and `SlideClassifier.load` open.

        ``vectorizer`` is what made the rows of texts: a fitted ``CountVectorizer``,
        ``HashingVectorizer`` or ``TfidfVectorizer``. The model then takes texts.
        """
        model: Model = self._fitted().model_
        if vectorizer is not None:
            model = model.with_vectorizer(TextVectorizer.of(vectorizer))
        model.save(path, dtype)

    @classmethod
    def load(cls, path: str | Path, verify: bool = True) -> "SlideClassifier":
        """Open what `save` or `slide.save` wrote, or a ``run_dir``, as the classifier that it was.

        A classifier that was saved with a vectorizer takes texts instead of rows. Parameters of the
        folder that name code, such as ``{"loss._target_": "mine.Loss"}``, have to be set again
        before it is fitted.
        A model that no classifier wrote is a ValueError: `slide.load` opens it.
        """
        model = load(path, verify)
        kept = model.settings.get("classifier")
        if not isinstance(kept, dict):
            raise ValueError(f"{path} is a model of no SlideClassifier: slide.load opens it")
        own, file = {}, Path(path) / MODEL_FILE
        for name in cls().get_params().keys() - {"run_dir"}:
            with suppress(*NO_LITERAL):  # Such as a generator of draws.
                own[name] = ast.literal_eval(str(model.settings.get(name)))
            if (code := code_in(own.get(name))) is not None:
                own[name] = Untrusted(
                    f"{name} in {file} holds {checks.shortened(repr(code))}, which would be looked "
                    "up or run: if you trust this folder, set it again by "
                    f"set_params({name}=...)"
                )
        found: Any = cls(**own)
        stored = Stored(kept, {}, f"{file}", prefix="settings.classifier.")
        found.model_, found.multilabel_ = model, stored.flag("multilabel")
        found._take_features()
        names = range(model.num_labels) if model.label_names is None else model.label_names
        found.classes_ = restored_names(list(names), stored)
        return found

    def _read(
        self, X: Any, y: Any, sample_weight: Any, reset: bool, classes: Any = None
    ) -> tuple[Split, Targets]:
        x = self._read_rows(X, reset=reset, ensure_min_samples=2 if classes is None else 1)
        targets = read_targets(y, classes)
        if classes is None and not targets.multilabel:
            one_label_each(targets.classes)
        check_consistent_length(x.indptr[1:], targets.labels.indptr[1:])
        if not len(targets.classes):
            raise ValueError("y holds no class")
        if reset:
            check_class_names(targets.classes)
        split = Split(x, targets.labels, self.n_features_in_, len(targets.classes))
        return weighted_rows(split, sample_weight), targets

    def _model(self, config: Any, network: SlideNetwork, ranker: Any, step: Any) -> Model:
        """A model whose labels have no names yet."""
        own: dict[str, Any] = {}
        for name in self.get_params():
            value = self._plain(name)
            own[name] = repr(value.tolist() if isinstance(value, np.ndarray) else value)
        own["loss"] = as_dict(config.loss)
        if any(key.startswith("optimizer") for key in self.settings or ()):
            own["optimizer"] = as_dict(config.optimizer)
        names = getattr(self, "feature_names_in_", None)
        return Model(network, ranker, [step], feature_names=names, settings=own, name="classifier")

    def _keep(self, model: Model, targets: Targets) -> None:
        self.multilabel_, self.model_ = targets.multilabel, model
        self._name(targets.classes)

    def _config(self, first: bool = True) -> Any:
        """The configuration of the command line that the parameters stand for, once checked.

        To build samples of its parts takes some time: of calls of `partial_fit`, ``first`` does it.
        """
        for value in self.get_params().values():
            if isinstance(value, Untrusted):
                raise ValueError(value.error)
        checks.within("threshold", self._plain("threshold"), 0, 1)
        checks.flag("verbose", self._plain("verbose"))
        StepOptions(**{name: self._plain(name) for name in _STEPS})
        if self.search is not None:
            checks.one_of("search", self.search, ("exact", "index"))
        checks.one_of("known", self.known, ("auto", "exclude", "keep"))
        if self.ranker not in RANKERS:
            raise ValueError(f"ranker must be ensemble, none or None, not {self.ranker!r}")
        if isinstance(self.label_weights, str):
            checks.one_of("label_weights", self.label_weights, ("propensity",))
        # What is as in the recipe is left to it: settings may name another recipe.
        values = {key: self._plain(name) for name, key in _KEYS.items()}
        if values["network.hidden"] is not None:
            widths = np.atleast_1d(np.asarray(values["network.hidden"], object))
            values["network.hidden"] = without_numpy(widths.tolist())
        values = {key: value for key, value in values.items() if value != DEFAULTS[key]}
        if self.ranker != "ensemble":
            values.pop("ranker.known", None)
        choices = {"sampler": self._plain("sampler"), "ranker": self.ranker or "none"}
        choices = {group: name for group, name in choices.items() if name != DEFAULTS[group]}
        arguments = {key: name for name, key in _KEYS.items()}
        arguments |= {"sampler": "sampler", "ranker": "ranker", "seed": "random_state"}
        if not isinstance(self.settings, dict | None):
            raise ValueError(f"settings must be a dict of keys and values, not {self.settings!r}")
        for given, value in (self.settings or {}).items():
            key = override_key(str(given))
            group, _, rest = key.partition(".")
            if key in arguments:
                raise ValueError(f"{key} is the argument {arguments[key]}, not one of settings")
            if group not in _GROUPS:
                raise ValueError(f"settings take keys of {', '.join(_GROUPS)}, not {key}")
            (values if rest else choices)[key] = without_numpy(value)
        config = choose(choices, values)
        if self.label_weights is not None and not config.ranker:
            raise ValueError(f"label_weights need ranker='ensemble', not {self.ranker!r}")
        if config.ranker:
            config.ranker.objective = "p" if self.label_weights is None else "psp"
        config.trainer.recall_every = 0  # Nobody reads the log.
        with plain_errors(), own_draws(0):
            (check_settings if first else check_used)(config, {*values, *choices})
        return config

    def _plain(self, name: str) -> Any:
        """A parameter; a scalar of numpy, as in a grid, as Python's own."""
        return without_numpy(getattr(self, name))

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.classifier_tags.multi_label = True
        return tags

    def predict(self, X: Any) -> Any:
        """The labels of rows.

        Returns:
            If the training rows had one label each: ``(B,)`` of `classes_`; the most frequent one
            for a row without any answer. Else ``(B, N)`` ones where the probability is at least
            ``threshold``, and zeros: an array of at most 1,000 classes, else a SciPy matrix.
        """
        if not self._fitted().multilabel_:
            ids = self._best(X, 1).labels[:, 0]
            ranker = self.model_.ranker
            if ranker is not None:  # Where all candidates are known labels, there is no answer.
                ids = np.where(ids < 0, ranker.frequency.argmax(), ids)
            return self.classes_[ids]
        found = self.predict_proba(X, min(_TOP, len(self.classes_)))
        found.data = (found.data >= self.threshold).astype(np.int64)
        found.eliminate_zeros()
        return found.toarray() if self._is_dense(None) else found

    def predict_top_k(self, X: Any, k: int = 5) -> Predicted:
        """Names ``(B, k)`` of the best labels, best first, and their scores ``(B, k)``.

        With a re-ranker scores are probabilities, multiplied by ``label_weights`` if there are any.
        Where a row has fewer labels than k, the names are None, in an array of objects.
        """
        ids, scores = self._best(X, k)
        if (ids >= 0).all():
            return Predicted(self.classes_[ids], scores)
        names = self.classes_.astype(object)[ids]
        names[ids < 0] = None
        return Predicted(names, scores)

    def predict_proba(self, X: Any, top_k: int | None = None) -> Any:
        """Probabilities of the best labels.

        Without a re-ranker they follow from the loss of the network: a score of -1 means 0, and a
        score of 1 means 1.

        Args:
            top_k: number of labels of a row in the matrix; None: 100, or all if there are fewer.

        Returns:
            A SciPy matrix ``(B, N)``; with at most 1,000 classes, and no ``top_k``, an array. Its
            rows add up to 1 if the training rows had one label each.
        """
        ranker = self._fitted().model_.ranker
        change = ranker.unweighted if ranker else lambda scores, _: _probabilities(scores)
        if not self._is_dense(top_k):
            return self._matrix(X, top_k, change)
        found = self._matrix(X, len(self.classes_), change).toarray()
        if self.multilabel_:
            return found
        found[found.sum(1) == 0] = 1  # No class has any probability: all have the same.
        return found / found.sum(1, keepdims=True)

    def decision_function(self, X: Any, top_k: int | None = None) -> Any:
        """Scores of the best labels.

        With a re-ranker they are log-odds, or with ``label_weights`` the logarithms of probability
        times weight; else they are the scores of the network. In a sparse matrix, labels without an
        entry have no score: they come after all that have one, also below 0, although ``toarray``
        makes them 0. `predict_top_k` gives labels and scores in order.

        Returns:
            A SciPy matrix ``(B, N)``; an array where `predict_proba` gives one, in which a class
            without a score has the lowest one of its row. If the training rows had one label each,
            of two classes, it is ``(B,)``: the score of the second less that of the first.
        """
        ranker = self._fitted().model_.ranker
        change = np.asarray
        if ranker:
            weighted = ranker.objective != "p"
            change = (lambda x: np.log(np.maximum(x, 1e-300))) if weighted else _log_odds
        if not self._is_dense(top_k):
            return self._matrix(X, top_k, lambda scores, _: change(scores))
        ids, scores = self._best(X, len(self.classes_))
        lowest = np.where(ids < 0, np.inf, scores).min(1, initial=np.inf)
        lowest[np.isinf(lowest)] = 0
        found = np.tile(change(lowest)[:, None], len(self.classes_))
        rows, ranks = np.nonzero(ids >= 0)
        found[rows, ids[rows, ranks]] = change(scores[rows, ranks])
        binary = found.shape[1] == 2 and not self.multilabel_
        return found[:, 1] - found[:, 0] if binary else found

    def _is_dense(self, top_k: int | None) -> bool:
        return top_k is None and len(self.classes_) <= _DENSE

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of right best labels: accuracy, or precision at 1 for several labels of a row.

        A label that training did not have is never found.
        """
        if self._fitted().multilabel_:
            labels = read_targets(y, self.classes_, skip_unknown=True).labels
            found = self._best(X, 1).labels
            check_consistent_length(found, labels.indptr[1:])
            right = hits(found, labels)[:, 0]
        else:
            truth, found = column_or_1d(y), self.predict(X)
            check_consistent_length(found, truth)
            right = found == truth
        return float(np.average(right, weights=checked_sample_weight(sample_weight, len(right))))

    def _fitted(self) -> Any:
        check_is_fitted(self, "model_")
        return self

    def _read_rows(self, X: Any, reset: bool, **options: Any) -> CSR:
        """Features as they are; the first rows tell their number and names."""
        if isinstance(X, Iterator):
            raise ValueError("X is an iterator, which is read only once: give a list or a matrix")
        if hasattr(X, "collect"):
            raise ValueError("X is a query of polars that was not run yet: give X.collect()")
        if hasattr(X, "to_pandas") and hasattr(X, "features"):  # A data set of Hugging Face.
            X = X.to_pandas()
        X = without_torch(X)
        if holds_texts(X):
            if not reset and self.model_.vectorizer is not None:
                return self.model_.rows_of(np.asarray(X, object).ravel().tolist())
            raise ValueError(
                "X holds texts, and features are numbers: put a vectorizer before the classifier, "
                "as in sklearn.pipeline.make_pipeline(TfidfVectorizer(), SlideClassifier())"
            )
        found: Any = validate_data(
            self,
            as_wide(X) if hasattr(X, "tocsr") else X,
            reset=reset,
            accept_sparse="csr",
            dtype="numeric",
            **options,
        )
        if reset:  # Each of them once.
            Names.of(getattr(self, "feature_names_in_", ()), "names of features")
        return as_csr(found, self.n_features_in_)

    def _best(self, X: Any, k: int) -> Predicted:
        k = without_numpy(k)
        checks.whole("k", k, 1)
        x = self._fitted()._read_rows(X, reset=False)
        return self.model_.predict_ids(x, k, self.search)

    def _matrix(self, X: Any, top_k: int | None, change: Callable[..., np.ndarray]) -> Any:
        """What ``change`` makes of scores and labels of the best ones, as a SciPy matrix."""
        import scipy.sparse

        ids, scores = self._best(X, _TOP if top_k is None else top_k)
        known = ids >= 0
        values = change(scores[known], ids[known])
        shape = len(ids), len(self.classes_)
        found = scipy.sparse.csr_array((values, ids[known], row_bounds(known.sum(1))), shape)
        found.sort_indices()
        return found

    def add_labels(self, labels: Sequence[Any]) -> Any:
        """Add names of labels, which come last in `classes_` and which `partial_fit` then learns.

        They begin with small weights and the bias of rare labels, so they hardly ever are answers
        before they are learnt; see `slide.Model.add_labels`.
        """
        self._fitted()
        check_same_kind(labels, self.classes_)
        known = self.classes_.tolist()
        there = set(known)
        names = [name for name in labels if name in there]
        if names or len(set(labels)) < len(labels):
            raise ValueError(f"names of labels must differ; {(names or [labels])[0]!r} is not new")
        classes = name_array([*known, *labels])
        check_class_names(classes)
        sampler = self.model_.network.output.sampler
        if self.active is None and isinstance(sampler, ActiveSampler):
            sampler.active = active_outputs(len(classes), sampler.mode)
        with self._unnamed():
            self.model_.add_labels(len(labels))
        self._name(classes)
        return self

    def remove_labels(self, labels: Sequence[Any]) -> Any:
        """Remove labels from `classes_` and from the model."""
        self._fitted()
        gone = np.isin(self.classes_, name_array(labels))
        if gone.sum() < len(set(labels)):
            unknown = set(labels) - set(self.classes_.tolist())
            raise ValueError(f"label {min(unknown, key=str)!r} is not among the classes")
        with self._unnamed():
            self.model_.remove_labels(np.flatnonzero(gone).tolist())
        self._name(self.classes_[~gone])
        return self

    def add_features(self, features: Any) -> Any:
        """Add features, the last columns of rows to come, which `partial_fit` then learns.

        They are names if X had names, else their number.
        """
        self._fitted().model_.add_features(features)
        self._take_features()
        return self

    def _take_features(self) -> None:
        """Number and names of the features are those of the model."""
        self.n_features_in_ = self.model_.num_features
        if self.model_.feature_names is not None and self.model_.vectorizer is None:
            self.feature_names_in_ = np.array(list(self.model_.feature_names), object)

    @contextmanager
    def _unnamed(self) -> Iterator[None]:
        """The labels of the model are numbers; after an error they have their names again."""
        names, self.model_.label_names = self.model_.label_names, None
        try:
            yield
        except BaseException:
            self.model_.label_names = names
            raise

    def _name(self, classes: np.ndarray) -> None:
        """Call the outputs of the model by these names."""
        self.classes_ = classes
        own = ((field.name, repr(self._plain(field.name)), field.default) for field in fields(self))
        kept = {
            "multilabel": self.multilabel_,
            "classes": str(classes.dtype),
            "changed": [f"{name}={value}" for name, value, old in own if value != repr(old)],
        }
        self.model_.settings["classifier"] = kept
        self.model_.rename_labels(label_names(classes))


@contextmanager
def _folder(run_dir: Any) -> Iterator[Path]:
    if run_dir is not None:
        Path(run_dir).mkdir(parents=True, exist_ok=True)
        yield Path(run_dir)
        return
    with tempfile.TemporaryDirectory(prefix="slide-") as folder:
        yield Path(folder)


def _probabilities(scores: np.ndarray) -> np.ndarray:
    """Probabilities of labels whose squared hinge is least at these scores.

    T. Zhang 2004, "Statistical behavior and consistency of classification methods based on convex
    risk minimization", section 2: the best score is 2 p - 1.
    """
    return np.clip((scores + 1) / 2, 0, 1)


def _log_odds(probabilities: np.ndarray) -> np.ndarray:
    inside = np.clip(probabilities, 1e-300, 1 - 1e-16)
    return np.log(inside) - np.log1p(-inside)


def _given_weights(given: Any, num_labels: int) -> np.ndarray | None:
    if given is None or isinstance(given, str):
        return None
    weights = np.asarray(given, np.float64)
    if weights.shape != (num_labels,) or not np.isfinite(weights).all() or (weights <= 0).any():
        raise ValueError(
            f"label_weights must be None, propensity, or {num_labels} numbers above 0, not "
            f"{given!r}"
        )
    return weights
