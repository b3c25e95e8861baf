"""The trainer of a run, from its configuration."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from omegaconf import DictConfig

from slide.config.announce import announce_data, announce_run, announce_start
from slide.config.compose import note_run
from slide.config.ranks import ALONE, Ranks
from slide.config.recipe import (
    build_network,
    build_optimizer,
    fill_in,
    open_dataset,
    prepare,
    put_together,
)
from slide.training import Trainer
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
    parts = prepare(config, {override_key(word) for word in words}, ranks)
    if new:
        check_run_dir(config.run_dir)
    if main:  # To read the data may take hours.
        check_writable(Path(config.run_dir or folder_parent(config)))
    data = ranks.once_a_machine(partial(open_dataset, config))
    fill_in(config, len(data.train), data.num_labels)
    announce_data(config, data, parts.ranker, ranks)
    ranks.check_same(config, data)
    counts = ranks.counts(data)
    network = build_network(config, data.num_features, data.num_labels, ranks, counts)
    optimizer = build_optimizer(config, network)
    folder = ranks.share_folder(partial(_make_folder, config, swept), new)
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


def folder_parent(config: DictConfig) -> Path:
    """Where the folder of a run without ``run_dir`` is made."""
    checks.filled_text("dataset.name", config.dataset.name)
    return Path("results") / config.dataset.name


def _make_folder(config: DictConfig, swept: Sequence[str]) -> Path:
    folder = make_run_folder(config.run_dir, folder_parent(config), label_of(swept))
    hold_folder(folder)  # Until the process ends: what is written last belongs to the run, too.
    if config.resume is None:
        check_run_dir(config.run_dir)  # Another run may have ended there since the first check.
    return folder
