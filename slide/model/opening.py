"""Opens the folder of a model."""

from pathlib import Path
from typing import Any

import numpy as np

from slide.data import RowTransform, TextVectorizer
from slide.model.folder import MODEL_FILE, read_model_folder
from slide.model.index_state import restored_index
from slide.model.model import Model
from slide.model.network_state import restored_network
from slide.model.ranker_state import restored_ranker
from slide.utils.array_checks import Expected, Stored
from slide.utils.names import Names
from slide.utils.tensor_folder import SUFFIX, read_tensors


def load(path: str | Path, verify: bool = True) -> Model:
    """Open a model: what `Model.save` wrote, or the folder of a run of ``train.py``.

    The weights are mapped: pages come from the disk when they are used, and processes that open the
    same folder share them; only the index of dense training rows is copied. All files are read once
    before that, to compare their SHA-256. Each array is compared with what it must be, so that no
    kernel reads outside of one, whoever wrote the folder.

    Args:
        path: the folder.
        verify: whether to compare the SHA-256 of all files with ``model.json``, which reads and
            hashes every byte, so its time grows with their size. Without it a model of any size
            opens at once, and a changed byte in a file of its former size gives other answers.
            Weights of the network that are not finite are then noticed by rows that use them.

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
    folder = Path(path)
    content = read_model_folder(folder, verify)
    try:
        return _restored(folder, content, verify)
    except MemoryError as error:
        raise ValueError(f"the model of {folder} takes more memory than there is") from error
    except ValueError as error:
        if str(folder) in str(error):
            raise
        raise ValueError(f"the files of {folder} do not fit each other: {error}") from error
    except (KeyError, TypeError, IndexError, AttributeError, RuntimeError, OverflowError) as error:
        raise ValueError(f"the files of {folder} do not fit each other: {error!r}") from error


def _restored(folder: Path, content: dict[str, Any], verify: bool) -> Model:
    def stored(name: str, numbers: Any) -> Stored:
        """Numbers of the list, and the arrays of the file of that name, if there is one."""
        file = f"{name}{SUFFIX}"
        arrays = read_tensors(folder, name) if file in content["files"] else {}
        return Stored(numbers, arrays, f"{folder / MODEL_FILE}", f"{folder / file}")

    if verify:  # By a mapping that is closed again: pages that were only checked are not kept.
        restored_network(stored("network", content["network"]))
    network = restored_network(stored("network", content["network"]), finite=False)
    sizes = network.output.out_features, network.first.in_features
    if content["index"] is not None:
        index = stored("index", content["index"])
        network.output.sampler = restored_index(index, network.output.in_features, sizes[0])
    ranker = content["ranker"]
    if ranker is not None:
        ranker = restored_ranker(stored("ranker", ranker), *sizes)
    arrays = stored("steps", {})
    steps = [
        _restored_step(arrays.part(f"{place}", numbers))
        for place, numbers in enumerate(content["steps"])
    ]
    text = stored("names", {})
    names = {
        which: Names.restored(text.part(which, {}), content[which])
        for which in ("label_names", "feature_names")
        if content[which] is not None
    }
    vectorizer = content.get("vectorizer")
    if vectorizer is not None:
        terms = names["feature_names"]
        idf = stored("vectorizer", vectorizer).array("idf", Expected((len(terms),), "float64"))
        vectorizer = TextVectorizer.restored(vectorizer, terms, idf)
    more = {"settings": content["settings"], "name": content["name"]}
    return Model(network, ranker, steps, **names, **more, vectorizer=vectorizer)


def _restored_step(stored: Stored) -> RowTransform:
    """A step whose arrays fit its numbers."""
    features, labels = (stored.count(name, 1, 2**31) for name in ("num_features", "num_labels"))
    arrays = {}
    if "tf_idf_weights" in stored:
        expected = Expected((features,), "float64")
        arrays["tf_idf_weights"] = stored.array("tf_idf_weights", expected)
    if "label_ids" in stored:
        arrays["label_ids"] = stored.array("label_ids", Expected((None,), "int", 0, labels - 1))
        if (np.diff(arrays["label_ids"]) <= 0).any():
            stored.refuse_array("label_ids", "ascend")
    stored.flag("l2_norm")
    stored.count("hashed_features", 0, 2**31)
    return RowTransform.restored(stored.numbers, arrays)
