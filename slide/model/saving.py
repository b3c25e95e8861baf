"""Writes a model into a folder."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from slide.model.folder import MODEL_FILE, MODEL_FOLDER
from slide.model.index_state import index_settings, index_tensors
from slide.model.network_state import network_settings, network_tensors
from slide.model.ranker_state import ranker_settings, ranker_tensors
from slide.utils.names import Names
from slide.utils.tensor_folder import NEW_FILES, SUFFIX, Written, listed_files, write_folder


def check_target(folder: Path) -> None:
    """Raise ValueError if a model cannot be saved as ``folder``: something else is there."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: a model needs a folder")
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    # These are what an interrupted call may have left.
    others = [name for name in names if name != NEW_FILES and SUFFIX not in name]
    if others and listed_files(folder / MODEL_FILE) is None:
        raise ValueError(f"{folder} holds something else than a model: name a new folder")


def write_model(
    folder: Path, model: Any, dtype: str = "float32", weights: Written | None = None
) -> None:
    """Write a `slide.model.Model` beside what is in a folder; see `Model.save`.

    Args:
        folder: where it is written.
        model: the model.
        dtype: of the weights in the file.
        weights: the file ``network``, if it is there already, with weights in float32: several
            processes have written it together. None: it is written here.
    """
    network, ranker = model.network, model.ranker
    files = {} if weights else {"network": network_tensors(network, dtype)}
    sampler = None
    if not weights:  # Of several processes each has an index of its own rows, of no use to one.
        sampler = network.output.sampler
    content: dict[str, Any] = {
        "name": model.name,
        "features": model.num_features,
        "labels": model.num_labels,
        "network": network_settings(network, dtype),
        "index": index_settings(sampler),
        "ranker": None if ranker is None else ranker_settings(ranker),
        "steps": [step.settings() for step in model.steps],
        "label_names": _kind(model.label_names),
        "feature_names": _kind(model.feature_names),
        "settings": model.settings,
    }
    if model.vectorizer is not None:
        content["vectorizer"] = model.vectorizer.settings()
        files["vectorizer"] = {"idf": torch.from_numpy(np.array(model.vectorizer.idf))}
    if index := index_tensors(sampler):
        files["index"] = index
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
    write_folder(MODEL_FOLDER, folder, content, files, [weights] if weights else [])


def _kind(names: Names | None) -> str | None:
    return None if names is None else names.kind
