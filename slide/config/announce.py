"""What a run prints before its first step: data, memory, network, sampler, training and folder."""

from pathlib import Path

from omegaconf import DictConfig

from slide import runtime
from slide.backend import described_products
from slide.config.memory import announce_memory
from slide.config.ranks import ALONE, Ranks
from slide.config.recipe import run_device
from slide.data import SparseDataset
from slide.nn import SlideNetwork
from slide.nn.answers import Reranker
from slide.training import Trainer
from slide.utils.checks import counted
from slide.utils.progress_bar import log

# Scores of fewer rows may be off by several points.
_FEW = 100


def announce_data(
    config: DictConfig, data: SparseDataset, ranker: Reranker | None, ranks: Ranks = ALONE
) -> None:
    """The data, and the memory that the run needs; ValueError if not even the weights fit."""
    holdout, rows = config.dataset.holdout, len(data.train)
    held = f"{holdout:.3g} of them held out in place of the test rows"
    sizes = counted(data.num_features, "feature"), counted(data.num_labels, "label")
    parts = counted(rows, "training row"), held if holdout else counted(len(data.test), "test row")
    log(f"data      {data.name}: {', '.join((*parts, *sizes))}")
    if not holdout and not len(data.test.labels.indices):
        log("warning   no test row has a label, so all scores will be 0")
    evaluated = max(round(holdout * rows), 1) if holdout else len(data.test)
    if evaluated < _FEW:
        log(f"warning   scores of only {counted(evaluated, 'row')} are rough")
    announce_memory(config, data, ranker, ranks)


def announce_run(config: DictConfig, network: SlideNetwork, folder: Path) -> None:
    """The network, its sampler, how it is trained, and where."""
    trainer, device = config.trainer, run_device(config)
    hidden = ", ".join(f"{size:,}" for size in config.network.hidden)
    log(f"network   hidden: {hidden}; {counted(network.output.out_features, 'output')}")
    layer = getattr(network.output, "local", network.output)
    described = getattr(layer.sampler, "description", None)
    log(f"sampler   {repr(layer.sampler) if described is None else described()}")
    most = "" if trainer.max_epochs is None else f", at most {trainer.max_epochs}"
    epochs = f"auto{most}" if trainer.epochs == "auto" else trainer.epochs
    batch, threads = trainer.batch_size, runtime.num_threads()
    on_device = "" if device.type == "cpu" else f"; on {device}"
    log(
        f"training  epochs: {epochs}; rows in a step: {batch}; threads: {threads}; "
        f"products: {described_products()}{on_device}"
    )
    if on_device and config.ranker:
        log("re-ranker nearest neighbours, classifiers and final ranker compute on the CPU")
    log(f"folder    {folder}")


def announce_start(trainer: Trainer, new: bool) -> None:
    """Where a resumed run goes on, or that nothing is left to train."""
    if trainer.ended:
        early = trainer.step < (trainer.total_steps or 0)
        helps = "; it goes on with a larger trainer.patience" if early else ""
        log(f"the training of this run has ended; what comes after it is done again{helps}")
    elif not new:
        begins = "no checkpoint: it begins again"
        log(f"resumed   {f'goes on after step {trainer.step:,}' if trainer.step else begins}")
