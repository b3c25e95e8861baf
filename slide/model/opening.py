"""Opens the folder of a model."""

from pathlib import Path
from typing import Any

import torch

from slide.data import RowTransform, TextVectorizer
from slide.model.folder import read_model_folder
from slide.model.index_state import restored_index
from slide.model.model import Model
from slide.model.network_state import restored_network
from slide.model.ranker_state import restored_ranker
from slide.utils.names import Names
from slide.utils.tensor_folder import read_tensors


def load(path: str | Path, verify: bool = True) -> Model:
    """Open a model: what `Model.save` wrote, or the folder of a run of ``train.py``.

    The weights are mapped: pages come from the disk when they are used, and processes that open the
    same folder share them; only the index of dense training rows is copied. All files are read once
    before that, to compare their SHA-256.

    Args:
        path: the folder.
        verify: whether to compare the SHA-256 of all files with ``model.json``, which reads and
            hashes every byte, so its time grows with their size. Without it a model of any size
            opens at once, and a changed byte in a file of its former size gives other answers.

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
    content = read_model_folder(folder, verify)
    try:
        return _restored(folder, content)
    except (KeyError, TypeError, IndexError, RuntimeError) as error:
        raise ValueError(f"the files of {folder} do not fit each other: {error!r}") from error


def _restored(folder: Path, content: dict[str, Any]) -> Model:
    def tensors(name: str) -> dict[str, torch.Tensor]:
        there = f"{name}.safetensors" in content["files"]
        return read_tensors(folder, name) if there else {}

    network = restored_network(content["network"], tensors("network"))
    if content["index"] is not None:
        layer = network.output
        sizes = layer.in_features, layer.out_features
        layer.sampler = restored_index(content["index"], tensors("index"), *sizes)
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
    vectorizer = content.get("vectorizer")
    if vectorizer is not None:
        idf = tensors("vectorizer")["idf"].numpy()
        vectorizer = TextVectorizer.restored(vectorizer, names["feature_names"], idf)
    more = {"settings": content["settings"], "name": content["name"]}
    return Model(network, ranker, steps, **names, **more, vectorizer=vectorizer)
