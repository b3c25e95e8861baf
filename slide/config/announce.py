"""What a run says of itself before its first step, on standard error."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig

from slide import runtime
from slide.config.defaults import run_device
from slide.data import SparseDataset
from slide.utils.profiling import tell_first
from slide.utils.progress_bar import log

# Scores of fewer rows may be off by several points.
_FEW = 100


def announce_data(data: SparseDataset, holdout: float) -> None:
    """Say how large the data set is, and which rows judge the run.

    Args:
        data: the data set.
        holdout: share of the training rows that judge in place of the test rows; 0: none.
    """
    judged = f"{holdout:.3g} of them judge in place of the" if holdout else f"{len(data.test):,}"
    log(
        f"data      {data.name}: {len(data.train):,} training rows, {judged} test rows, "
        f"{data.num_features:,} features, {data.num_labels:,} labels"
    )
    if not holdout and not len(data.test.labels.indices):
        log("warning   no test row has a label, so all scores will be 0")
    judging = max(round(holdout * len(data.train)), 1) if holdout else len(data.test)
    if judging < _FEW:
        log(f"warning   {judging} rows judge the run, so its scores are rough")


def announce_run(config: DictConfig, labels: int, folder: Path) -> None:
    """Say what the settings that follow from the data are, and where the run writes.

    Args:
        config: after `slide.config.fill_in`.
        labels: number of labels.
        folder: of the run.
    """
    trainer, sampler = config.trainer, config.sampler
    chosen = labels if sampler.active == "all" else min(sampler.active, labels)
    active = f"{chosen:,} of {labels:,}"
    hidden = ", ".join(f"{size:,}" for size in config.network.hidden)
    how = "" if chosen == labels else f", {sampler.mode.replace('_', ' ')}, {_draws(config)}"
    log(f"network   hidden: {hidden}; active: {active}{how}")
    epochs = trainer.epochs
    if epochs == "auto":
        most = trainer.max_epochs
        epochs = "auto" if most is None else f"auto, at most {most}"
    batch, threads, device = trainer.batch_size, runtime.num_threads(), run_device(config)
    place = "" if device.type == "cpu" else f"; on {device}"
    log(f"training  epochs: {epochs}; rows in a step: {batch}; threads: {threads}{place}")
    if place and config.ranker:
        log("re-ranker near rows, classifiers and judge compute on the CPU")
    log(f"folder    {folder}")


def _draws(config: DictConfig) -> str:
    """How outputs are chosen beside the labels."""
    proposer = config.sampler.get("proposer")
    if proposer is None:
        return "drawn uniformly"
    return f"looked up by {proposer._target_.rpartition('.')[2]} and drawn uniformly"


@contextmanager
def announced_compilation() -> Iterator[None]:
    """Inside of it, the first kernel that compiles is announced."""
    tell_first(lambda: log("compiling kernels, once: later runs find them on the disk"))
    try:
        yield
    finally:
        tell_first(None)
