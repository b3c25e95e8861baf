"""The trainer of a run, from its configuration."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from omegaconf import DictConfig

from slide import runtime
from slide.config.announce import announce_data, announce_run, announce_start
from slide.config.compose import note_run
from slide.config.ranks import ALONE, Ranks
from slide.config.recipe import (
    Parts,
    build_network,
    build_optimizer,
    build_parts,
    check_settings,
    fill_in,
    open_dataset,
    training_options,
)
from slide.data import SparseDataset
from slide.nn import SlideNetwork
from slide.optim import RowSparseAdam
from slide.training import Trainer
from slide.training.group import Group
from slide.training.loop import start_biases
from slide.utils import checks
from slide.utils.checks import override_key
from slide.utils.run_folders import (
    check_run_dir,
    check_writable,
    discard_folder,
    hold_folder,
    label_of,
    make_run_folder,
)


def build_trainer(
    config: DictConfig,
    words: Sequence[str] = (),
    swept: Sequence[str] = (),
    ranks: Ranks = ALONE,
) -> Trainer:
    """The trainer of a new or resumed run; makes its folder and opens its data set.

    Args:
        config: from `slide.config.read_config` or `slide.config.resumed`; changed in place by
            `slide.config.fill_in`.
        words: overrides of the command line; one that nothing would use is an error.
        swept: overrides that differ from run to run of a sweep; they are in the folder's name.
        ranks: the processes of the run; all of them call this.

    Raises:
        ValueError: for impossible settings, or a ``run_dir`` that holds a run or a model.

    Example:
        ```python
        trainer = build_trainer(read_config(["dataset=eurlex4k", "trainer.epochs=3"]))
        summary = trainer.fit()
        ```
    """
    main, new = ranks.group.is_main_process, config.resume is None
    ranks.share_threads(config.runtime.threads)
    parts = check_settings(config, {override_key(word) for word in words}, ranks)
    # Afterwards: the first weights must not depend on what the check draws.
    runtime.set_deterministic(config.runtime.deterministic, config.seed)
    if new:
        check_run_dir(config.run_dir)
    if main:  # To read the data may take hours.
        check_writable(Path(config.run_dir or folder_parent(config)))
    data = ranks.once_a_machine(partial(open_dataset, config))
    fill_in(config, len(data.train), data.num_labels)
    ranks.check_same(config, data)
    announce_data(config, data, parts.ranker, ranks)
    network = build_network(config, data.num_features, data.num_labels, ranks, ranks.counts(data))
    optimizer = build_optimizer(config, network)
    folder = ranks.share_folder(partial(_make_folder, config, label_of(swept)), new)
    announce_run(config, network, folder)
    try:
        trainer = put_together(config, network, optimizer, data, folder, ranks.group, parts)
    except BaseException:
        if main and new:
            discard_folder(folder)
        raise
    announce_start(trainer, new)
    if main:
        note_run(trainer, config, words, swept)
    ranks.group.patient.barrier()  # They read checkpoints at different speeds.
    return trainer


def put_together(
    config: DictConfig,
    network: SlideNetwork,
    optimizer: RowSparseAdam,
    data: SparseDataset,
    folder: Path,
    group: Group | None = None,
    parts: Parts | None = None,
) -> Trainer:
    """A trainer of the parts of a run; a new network gets its first biases."""
    parts = parts or build_parts(config)
    trainer = Trainer(
        *(network, optimizer, parts.loss, data, training_options(config), folder),
        lr_schedule=parts.lr_schedule,
        resume=config.resume is not None,
        ranker=parts.ranker,
        group=group,
    )
    if config.network.prior_bias and trainer.counters.step == 0:
        labels, margin = trainer.train_split.labels, config.network.prior_margin
        start_biases(network, trainer.loop.loss, labels, margin)
    return trainer


def folder_parent(config: DictConfig) -> Path:
    """Where the folder of a run without ``run_dir`` is made."""
    checks.filled_text("dataset.name", config.dataset.name)
    return Path("results") / config.dataset.name


def _make_folder(config: DictConfig, label: str) -> Path:
    folder = make_run_folder(config.run_dir, folder_parent(config), label)
    hold_folder(folder)  # Until the process ends: what is written last belongs to the run, too.
    if config.resume is None:
        check_run_dir(config.run_dir)  # Another run may have ended there since the first check.
    return folder
