"""The model that a run leaves in its folder."""

from collections.abc import Mapping
from typing import Any

from slide.model.card import SUMMARY, facts_of
from slide.model.folder import MODEL_FILE, write_model
from slide.model.model import Model
from slide.training import Trainer
from slide.training.checkpoint import CHECKPOINT, find_checkpoints, find_folders
from slide.training.stopping import BEST, BEST_NETWORK
from slide.utils.tensor_folder import share_files, stream_file


def write_run_model(trainer: Trainer, settings: Any, summary: Mapping[str, Any]) -> None:
    """Write the trained model into the folder of its run; all processes of the run call this.

    ``settings``: the configuration of the run. ``summary``: what `Trainer.fit` returned.
    """
    network, data, folder, weights = trainer.network, trainer.data, trainer.folder, None
    if (gathered := network.gathered_weights()) is not None:
        if trainer.is_main_process:
            (folder / MODEL_FILE).unlink(missing_ok=True)  # Of weights that there were before.
            weights = stream_file(folder, "network", *gathered)
        for _ in gathered.blocks:
            pass
    if not trainer.is_main_process:
        return
    model = Model(
        network,
        trainer.ranker,
        data.steps,
        settings=settings,
        name=data.name,
        label_names=data.label_names,
        feature_names=data.feature_names,
        vectorizer=data.vectorizer,
    )
    if data.columns is not None:
        model.settings["columns"] = data.columns.settings()
    model.settings[SUMMARY] = facts_of(summary)
    write_model(folder, model, weights=weights)
    best = [path / BEST_NETWORK.list_file for path in find_folders(folder / BEST)]
    checkpoints = [path / CHECKPOINT.list_file for path in find_checkpoints(folder)]
    share_files([folder / MODEL_FILE, *best, *checkpoints])
