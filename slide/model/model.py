"""A trained model: from rows as people have them to the labels that they get."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from slide import checks
from slide.data import RowTransform
from slide.inputs import as_csr
from slide.model.folder import MODEL_FILE, read_folder, read_tensors_of, write_folder
from slide.model.names import Names
from slide.model.network_state import (
    network_settings,
    network_tensors,
    restored_network,
)
from slide.model.ranker_state import ranker_settings, ranker_tensors, restored_ranker
from slide.nn import SlideNetwork
from slide.nn.sampled_linear import SEARCHES
from slide.ranking import EnsembleRanker
from slide.sparse import CSR, check_pattern

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


class Model:
    """A trained network with its re-ranker, and all that rows and answers go through.

    Args:
        network: a trained network.
        ranker: trained on it; None: the network alone answers.
        steps: what is done to rows before the network sees them (`SparseDataset.steps`).
        label_names: a name for each label before the ``steps``; None: labels are numbers.
        feature_names: a name for each feature before the ``steps``; None: features are numbers.
        settings: how the model was trained; JSON values, kept with it.
        name: of the data set.

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
        self.feature_names = _names(feature_names, self.num_features, "feature_names")
        # The old number of each output; None: the outputs are numbered as the labels.
        self._label_ids: np.ndarray | None = None
        for kept in (step.label_ids for step in self.steps if step.label_ids is not None):
            self._label_ids = kept if self._label_ids is None else self._label_ids[kept]

    def predict(self, rows: Any, k: int = 5, search: str = "exact") -> Predicted:
        """The k best labels of each row, with their names if they have any.

        Args:
            rows: ``(B, D)`` raw features, in any form that `slide.as_csr` takes. What was done to
                the training rows is done to them.
            k: number of labels.
            search: ``"exact"``, or ``"index"`` if the model has one; see
                `slide.SampledLinear.top_k`.

        Raises:
            ValueError: for a k below 1, another number of features, values that are not finite, or
                ``"index"`` without an index.
            TypeError: for rows that are no matrix.
        """
        ids, scores = self.predict_ids(rows, k, search)
        return Predicted(ids if self.label_names is None else self.label_names.take(ids), scores)

    def predict_ids(self, rows: Any, k: int = 5, search: str = "exact") -> Predicted:
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
        checks.one_of("search", search, SEARCHES)
        x = as_csr(rows, self.num_features)
        check_pattern("features", x, None, self.num_features)
        parts = [self._answer(part, k, search) for part in _blocks(x)]
        if not parts:
            return Predicted(np.empty((0, k), np.int64), np.empty((0, k)))
        ids, scores = (np.concatenate(each) for each in zip(*parts, strict=True))
        ids = ids.astype(np.int64, copy=False)
        if self._label_ids is not None:
            ids = np.where(ids < 0, -1, self._label_ids[ids].astype(np.int64))
        return Predicted(ids, scores)

    def _answer(self, x: CSR, k: int, search: str) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of outputs ``(B, k)`` int64 and scores ``(B, k)`` float64."""
        for step in self.steps:
            x = step.features(x)
        most = min(k, self.network.output.out_features)
        if self.ranker is None:
            found = self.network.predict(x, most, search)
            scores, ids = (each.numpy() for each in found)
        else:
            scores, ids, _ = self.ranker.rank(self.network, x, most, search)
        missing = ((0, 0), (0, k - ids.shape[1]))
        scores = np.where(ids < 0, 0, scores).astype(np.float64)
        return np.pad(ids, missing, constant_values=-1), np.pad(scores, missing)

    def save(self, path: str | Path, dtype: str = "float32") -> None:
        """Write the model into a folder; `slide.load` opens it.

        Args:
            path: the folder; it is made if it does not exist. A model in it is replaced.
            dtype: type of the weights of the network in the file: ``"float32"``, or
                ``"bfloat16"``, which takes half the space. They are float32 again when they are
                opened, which takes time and memory.

        Raises:
            ValueError: for another dtype, or a folder that holds something else.
            OSError: if a file cannot be written.
        """
        folder = Path(path)
        check_target(folder)
        write_model(folder, self, dtype)


def check_target(folder: Path) -> None:
    """Raise ValueError if a model cannot be saved as ``folder``: something else is there."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: a model needs a folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MODEL_FILE).exists():
        raise ValueError(f"{folder} holds something else than a model: name a new folder")


def write_model(folder: Path, model: Model, dtype: str = "float32") -> None:
    """Write a model beside what is in a folder; see `Model.save`."""
    network, ranker = model.network, model.ranker
    files = {"network": network_tensors(network, dtype)}
    content: dict[str, Any] = {
        "name": model.name,
        "features": model.num_features,
        "labels": model.num_labels,
        "network": network_settings(network, dtype),
        "ranker": None if ranker is None else ranker_settings(ranker),
        "steps": [step.settings() for step in model.steps],
        "label_names": _kind(model.label_names),
        "feature_names": _kind(model.feature_names),
        "settings": model.settings,
    }
    if ranker is not None:
        files["ranker"] = ranker_tensors(ranker)
    steps = {
        f"{place}.{name}": torch.from_numpy(np.array(array))
        for place, step in enumerate(model.steps)
        for name, array in step.arrays().items()
    }
    names = {}
    for prefix in ("label_names", "feature_names"):
        found: Names | None = getattr(model, prefix)
        if found is not None:
            names |= found.tensors(prefix)
    files |= {name: part for name, part in (("steps", steps), ("names", names)) if part}
    write_folder(folder, content, files)


def load(path: str | Path, verify: bool = False) -> Model:
    """Open a model: what `Model.save` wrote, or the folder of a run of ``train.py``.

    The weights are mapped, not read: pages come from the disk when they are used, and processes
    that open the same folder share them.

    Args:
        path: the folder.
        verify: whether to read all files first and compare their SHA-256 with ``model.json``.
            Without it, sizes are compared, and the SHA-256 of files up to 4 MB.

    Raises:
        FileNotFoundError: if there is no model, or one of its files is missing.
        ValueError: if the format is another one, or a file is not the one that was written.

    Example:
        See `Model`.

        >>> import slide
        >>> slide.load("results")
        Traceback (most recent call last):
        FileNotFoundError: there is no model in results: no model.json
    """
    folder = Path(path)
    content = read_folder(folder, verify)
    try:
        return _restored(folder, content)
    except (KeyError, TypeError, IndexError, RuntimeError) as error:
        raise ValueError(f"the files of {folder} do not fit each other: {error!r}") from error


def _restored(folder: Path, content: dict[str, Any]) -> Model:
    def tensors(name: str) -> dict[str, torch.Tensor]:
        there = f"{name}.safetensors" in content["files"]
        return read_tensors_of(folder, name) if there else {}

    network = restored_network(content["network"], tensors("network"))
    ranker = content["ranker"]
    if ranker is not None:
        ranker = restored_ranker(ranker, tensors("ranker"))
    arrays = {name: tensor.numpy() for name, tensor in tensors("steps").items()}
    steps = []
    for place, settings in enumerate(content["steps"]):
        prefix = f"{place}."
        own = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
        steps.append(RowTransform.restored(settings, own))
    text = tensors("names")
    names = {
        which: Names.restored(text, which, content[which])
        for which in ("label_names", "feature_names")
        if content[which] is not None
    }
    return Model(
        network, ranker, steps, **names, settings=content["settings"], name=content["name"]
    )


def _names(names: Iterable[Any] | None, count: int, what: str) -> Names | None:
    if names is None:
        return None
    found = Names.of(names, what)
    if len(found) != count:
        raise ValueError(f"{len(found)} {what} do not fit {count} of them")
    return found


def _kind(names: Names | None) -> str | None:
    return None if names is None else names.kind


def _blocks(x: CSR) -> Iterable[CSR]:
    """The rows in parts."""
    for start in range(0, x.num_rows, _BATCH):
        bounds = x.indptr[start : start + _BATCH + 1]
        inside = slice(bounds[0], bounds[-1])
        yield CSR(bounds - bounds[0], x.indices[inside], x.values[inside])
