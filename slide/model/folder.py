"""The folder of a model: ``model.json``, and files of tensors that are opened as memory maps."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from slide.data import RowTransform, TextVectorizer
from slide.model.ranker_state import ranker_state, restored_ranker
from slide.model.state import (
    index_settings,
    index_tensors,
    network_settings,
    network_tensors,
    restored_index,
    restored_network,
)
from slide.utils.array_checks import Expected, Stored
from slide.utils.files import alone_in
from slide.utils.names import KINDS, Names
from slide.utils.run_folders import resume_word
from slide.utils.tensor_folder import (
    NEW_FILES,
    SUFFIX,
    FolderKind,
    Written,
    check_files,
    listed_files,
    read_folder,
    read_tensors,
    write_folder,
)

MODEL_FILE = "model.json"
# Models of format 4, of slide 0.1.0, have other names for the numbers and arrays of a re-ranker.
MODEL_FOLDER = FolderKind("model", MODEL_FILE, format=5, oldest=4)


def read_model_folder(folder: Path, verify: bool = True) -> dict[str, Any]:
    """Read and check ``model.json``; with ``verify`` compare the SHA-256 of all files."""
    try:
        content = read_folder(MODEL_FOLDER, folder)
    except FileNotFoundError as error:
        if (folder / "config.yaml").is_file() and not (folder / MODEL_FILE).is_file():
            said = f"{error}; the run has not ended, {resume_word(folder)} goes on with it"
            raise FileNotFoundError(said) from None
        raise
    if verify:
        check_files(MODEL_FOLDER, folder, content, content["files"])
    return content


def check_target(folder: Path) -> None:
    """Raise ValueError if a model cannot be saved as ``folder``: something else is there."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file: a model needs a folder")
    with alone_in(folder):  # While another process replaces a model there is no list.
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        # An interrupted call may have left the others.
        others = [name for name in names if name != NEW_FILES and SUFFIX not in name]
        if others and listed_files(folder / MODEL_FILE) is None:
            raise ValueError(f"{folder} holds something else than a model: name a new folder")


def write_model(
    folder: Path, model: Any, dtype: str = "float32", weights: Written | None = None
) -> None:
    """Write a `slide.model.Model` beside what is in a folder; see `Model.save`.

    ``weights`` is the file ``network``, if several processes have written it together, in float32.
    """
    network, ranker = model.network, model.ranker
    files = {} if weights else {"network": network_tensors(network, dtype)}
    numbers, tensors = (None, None) if ranker is None else ranker_state(ranker)
    sampler = None
    if not weights:  # Of several processes each has an index of its own rows, of no use to one.
        sampler = network.output.sampler
    content: dict[str, Any] = {
        "name": model.name,
        "features": model.num_features,
        "labels": model.num_labels,
        "network": network_settings(network, dtype),
        "index": index_settings(sampler),
        "ranker": numbers,
        "steps": [step.settings() for step in model.steps],
        "settings": model.settings,
    }
    if model.vectorizer is not None:
        content["vectorizer"] = model.vectorizer.settings()
        if model.vectorizer.num_features < model.num_features and model.vectorizer.terms:
            content["vectorizer"]["terms"] = model.vectorizer.num_features
        if model.vectorizer.idf is not None:
            files["vectorizer"] = {"idf": torch.from_numpy(np.array(model.vectorizer.idf))}
    if index := index_tensors(sampler):
        files["index"] = index
    if tensors is not None:
        files["ranker"] = tensors
    steps = {
        f"{number}.{name}": torch.from_numpy(np.array(array))
        for number, step in enumerate(model.steps)
        for name, array in step.arrays().items()
    }
    names = {}
    for prefix in ("label_names", "feature_names"):
        found: Names | None = getattr(model, prefix)
        content[prefix] = None if found is None else found.kind
        if found is not None:
            names |= found.tensors(prefix)
    files |= {name: part for name, part in (("steps", steps), ("names", names)) if part}
    write_folder(MODEL_FOLDER, folder, content, files, [weights] if weights else [])


def restored_parts(folder: Path, content: dict[str, Any], verify: bool) -> dict[str, Any]:
    """What a model in a folder is made of: the arguments of `slide.model.Model`."""
    whole = Stored(content, {}, f"{folder / MODEL_FILE}")
    settings = whole.mapping("settings")

    def stored(name: str, numbers: Any) -> Stored:
        """Numbers of the list, and the arrays of the file of that name, if there is one."""
        file = f"{name}{SUFFIX}"
        arrays = read_tensors(folder, name) if file in content["files"] else {}
        return Stored(numbers, arrays, f"{folder / MODEL_FILE}", f"{folder / file}")

    if verify:  # By a mapping that is closed again: pages that were only checked are not kept.
        restored_network(stored("network", whole.mapping("network")))
    network = restored_network(stored("network", whole.mapping("network")), finite=False)
    sizes = network.output.out_features, network.first.in_features
    if whole.get("index") is not None:
        index = stored("index", whole.mapping("index"))
        network.output.sampler = restored_index(index, network.output.in_features, sizes[0])
    ranker = None
    if whole.get("ranker") is not None:
        ranker = restored_ranker(stored("ranker", whole.mapping("ranker")), *sizes)
    arrays = stored("steps", {})
    steps = [
        RowTransform.restored(arrays.part(f"{number}", numbers))
        for number, numbers in enumerate(whole.objects("steps"))
    ]
    text = stored("names", {})
    names = {
        which: Names.restored(text.part(which, {}), whole.one_of(which, KINDS))
        for which in ("label_names", "feature_names")
        if whole.get(which) is not None
    }
    vectorizer = content.get("vectorizer")
    if vectorizer is not None:
        vectorizer = _restored_vectorizer(
            stored("vectorizer", vectorizer), names.get("feature_names")
        )
    return {
        "network": network,
        "ranker": ranker,
        "steps": steps,
        "label_names": names.get("label_names"),
        "feature_names": names.get("feature_names"),
        "settings": settings,
        "name": whole.text("name"),
        "vectorizer": vectorizer,
    }


def _restored_vectorizer(stored: Stored, names: Names | None) -> TextVectorizer:
    """A vectorizer whose terms are the first names of features."""
    settings, idf = dict(stored.numbers), None
    count = stored.count("terms", 1, len(names or ())) if "terms" in settings else None
    settings.pop("terms", None)
    terms = names if count is None or names is None else names.first(count)
    if settings.get("kind", "TfidfVectorizer") == "TfidfVectorizer":
        idf = stored.array("idf", Expected((len(terms or ()),), "float64"))
    try:
        return TextVectorizer.restored(settings, terms, idf)
    except (ValueError, TypeError) as error:
        return stored.refuse(f"be a vectorizer of texts: {error}")
