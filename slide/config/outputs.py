"""What a finished run leaves beside its log: the model, and the report."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from omegaconf import OmegaConf

from slide.config.build import CONFIG
from slide.data import SparseDataset
from slide.data.row_transform import old_label_ids
from slide.distributed import ShardedNetwork
from slide.distributed.sharded_network import full_blocks, full_shapes
from slide.model import Model
from slide.model.folder import MODEL_FILE, write_model
from slide.report import Answers, write_report
from slide.training import Trainer
from slide.utils.tensor_folder import Written, stream_file


def write_run_model(trainer: Trainer) -> None:
    """Write the trained model into the folder of its run; `slide.load` opens it.

    All processes of the run call this. The first one writes, and gets the rows of the others some
    at a time.
    """
    network = trainer.network
    weights = _shared_weights(trainer, network) if isinstance(network, ShardedNetwork) else None
    if not trainer.is_main_process:
        return
    data, settings = trainer.data, OmegaConf.load(trainer.folder / CONFIG)
    parts = network, trainer.ranker, data.steps
    found = cast(dict[str, Any], OmegaConf.to_container(settings))
    text = {"label_names": data.label_names, "vectorizer": data.vectorizer}
    model = Model(*parts, settings=found, name=data.name, **text)
    write_model(trainer.folder, model, weights=weights)


def _shared_weights(trainer: Trainer, network: ShardedNetwork) -> Written | None:
    """Write the weights of a network that several processes share; None but on the first one."""
    blocks = full_blocks(network)
    if trainer.is_main_process:
        (trainer.folder / MODEL_FILE).unlink(missing_ok=True)  # Of weights that there were before.
        return stream_file(trainer.folder, "network", full_shapes(network), blocks)
    for _ in blocks:
        pass
    return None


def write_run_report(trainer: Trainer) -> None:
    """Write ``report.html`` from the answers of the last evaluation."""
    answers, judged, ranker = trainer.answers, trainer.eval_split, trainer.ranker
    assert answers is not None, "the run has not ended"
    labels = trainer.every_split.labels.indices
    counts = np.bincount(labels, minlength=trainer.data.num_labels)
    certain = ranker is not None and ranker.objective == "p"
    found = answers.ids, answers.scores, judged.labels, judged.features, counts, certain
    write_report(trainer.folder, Answers(*found, **_namers(trainer.data)))


def _namers(data: SparseDataset) -> dict[str, Callable[[int], str]]:
    """How the report calls labels and features; empty where they have no names."""
    found: dict[str, Callable[[int], str]] = {}
    names = data.label_names
    if names is not None:
        old = old_label_ids(data.steps)
        found["label_name"] = lambda label: str(names[label if old is None else old[label]])
    if data.vectorizer is not None and not any(step.hashed_features for step in data.steps):
        found["feature_name"] = data.vectorizer.terms.__getitem__
    return found
