"""A data set and a trainer from a configuration."""

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from slide import runtime
from slide.config.announce import announce_data, announce_run
from slide.config.compose import settings
from slide.config.defaults import check_used, fill_in, run_device
from slide.config.needs import announce_memory
from slide.config.parts import build_network, build_optimizer, shared_rows, without
from slide.config.ranks import (
    ALONE,
    Ranks,
    check_ranks,
    check_same,
    once_a_machine,
    share_folder,
)
from slide.config.samplers import proposer_has
from slide.config.threads import share_threads
from slide.data import SparseDataset, transform
from slide.data.transforms import check_transform
from slide.sampling.sampler import MODES, WEIGHTINGS
from slide.training import Trainer, TrainingOptions
from slide.training.evaluation import check_search
from slide.training.loop import start_biases
from slide.utils import checks
from slide.utils.files import write_text
from slide.utils.progress_bar import log
from slide.utils.run_folders import check_run_dir, hold_folder, make_run_folder

CONFIG = "config.yaml"


def open_dataset(config: DictConfig) -> SparseDataset:
    """The data set; it is fetched, read and transformed if that was not done before.

    Args:
        config: from `slide.config.read_config`.

    Raises:
        ValueError: for impossible settings, or files that cannot be read.
        OSError: for files that cannot be fetched or written.

    Example:
        >>> import tempfile
        >>> from slide.config import open_dataset, read_config
        >>> sizes = ["train_samples=50", "test_samples=5", "num_features=60", "num_labels=40"]
        >>> sizes = [f"dataset.{size}" for size in [*sizes, "nonzeros=8", "labels_per_row=2"]]
        >>> with tempfile.TemporaryDirectory() as cache:
        ...     data = open_dataset(read_config([*sizes, f"dataset.cache={cache}/arrays"]))
        >>> data.num_labels
        40
    """
    checks.filled_text("dataset.name", config.dataset.name)
    check_transform(**config.transform)  # This comes first, because reading may take hours.
    # The trainer makes the holdout.
    return transform(instantiate(without(config, "dataset", "holdout")), **config.transform)


# The settings are tried on layers that are no wider, unless bins of coordinates need more.
_WIDE = 4096


def check_settings(config: DictConfig) -> None:
    """Use all settings on a small network, because reading the data may take hours.

    Raises:
        ValueError: for a setting that is impossible, or that does not fit the others.
    """
    checks.flag("report", config.report)
    checks.flag("prior_bias", config.network.prior_bias)
    checks.flag("host_rows", config.network.get("host_rows", False))
    checks.whole("redraw_every", config.schedule.redraw_every, 0)
    checks.one_of("mode", config.sampler.mode, MODES)  # A sampler of all outputs has none.
    checks.one_of("weighting", config.sampler.weighting, WEIGHTINGS)
    config = config.copy()
    fill_in(config, 1024, 8)
    hidden = config.network.hidden
    if OmegaConf.is_list(hidden):  # What does not fit in memory is refused later.
        bins = OmegaConf.select(config, "hash.bin_size")
        most = max(_WIDE, bins) if type(bins) is int else _WIDE
        config.network.hidden = [min(n, most) if type(n) is int else n for n in hidden]
    # Enough features for any sensible number of hashed coordinates.
    network = build_network(config, 1024, 8)
    instantiate(config.lr_schedule)(build_optimizer(config, network), 1)
    check_search(network, _options(config).evaluation)
    _check_device(config)
    instantiate(config.loss)
    instantiate(config.ranker)


def _check_device(config: DictConfig) -> None:
    """Raise ValueError for parts that compute on the CPU only, where the run is elsewhere."""
    device = run_device(config)
    if device.type == "cpu":
        return
    if proposer_has(config, "cpu_only"):
        raise ValueError(
            f"{config.sampler.proposer._target_} searches on the CPU; with runtime.device={device} "
            "use sampler=uniform, lsh, recent or neighbours"
        )
    if config.trainer.evaluation == "index":
        raise ValueError(
            "trainer.evaluation=index searches on the CPU; with "
            f"runtime.device={device} use trainer.evaluation=exact"
        )


def build_trainer(
    config: DictConfig,
    given: Collection[str] = (),
    label: str = "",
    ranks: Ranks = ALONE,
    made: Callable[[Path], object] = bool,
) -> Trainer:
    """The trainer of a new or resumed run; makes its folder and opens its data set.

    Args:
        config: from `slide.config.read_config` or `slide.config.resumed`; null settings are filled
            in (`slide.config.fill_in`).
        given: keys that a user set; one that nothing would use is an error.
        label: the name of a new folder ends with it.
        ranks: the processes of the run; all of them call this.
        made: called by the first process with the folder of a new run, before the run is in it.

    Raises:
        ValueError: for impossible settings, or a ``run_dir`` that holds a run or a model.
        OSError: if files cannot be read, fetched or written.

    Example:
        ```python
        trainer = build_trainer(read_config(["dataset=eurlex4k", "trainer.epochs=3"]))
        summary = trainer.fit()
        ```
    """
    share_threads(ranks, config.runtime.threads)
    check_used(config, given)
    check_ranks(ranks, config)
    check_settings(config)
    # Afterwards: the first weights must not depend on what the check draws.
    runtime.set_deterministic(config.runtime.deterministic, config.seed)
    resumed = config.resume is not None
    if not resumed:
        check_run_dir(config.run_dir)
    data = once_a_machine(ranks, partial(open_dataset, config))
    announce_data(data, config.dataset.holdout)
    fill_in(config, len(data.train), data.num_labels)
    check_same(ranks, config, data)
    announce_memory(config, data, ranks)
    shared = shared_rows(ranks.group, data)
    network = build_network(config, data.num_features, data.num_labels, shared)
    parts = network, build_optimizer(config, network), instantiate(config.loss), data
    schedule, ranker = instantiate(config.lr_schedule), instantiate(config.ranker) or None
    folder = share_folder(ranks, partial(_make_folder, config, label, bool if resumed else made))
    announce_run(config, data.num_labels, folder)
    more = schedule, resumed, ranker, ranks.group
    trainer = Trainer(*parts, _options(config), folder, *more)
    if trainer.ended:
        early = trainer.step < (trainer.total_steps or 0)
        helps = "; it goes on with a larger trainer.patience" if early else ""
        log(f"the training of this run has ended; what comes after it is done again{helps}")
    if config.network.prior_bias and trainer.step == 0:
        start_biases(network, trainer.loop.loss, trainer.train_split.labels)
    if ranks.leads:
        noted = OmegaConf.merge(config, {"resume": None, "run_dir": str(folder)})
        assert isinstance(noted, DictConfig)
        write_text(folder / CONFIG, OmegaConf.to_yaml(noted, resolve=True))
        trainer.monitor.note_settings(_scalars(noted))
    ranks.group.patient.barrier()  # They read checkpoints at different speeds.
    return trainer


def folder_parent(config: DictConfig) -> Path:
    """Where the folder of a run without ``run_dir`` is made."""
    checks.filled_text("dataset.name", config.dataset.name)
    return Path("results") / config.dataset.name


def _make_folder(config: DictConfig, label: str, made: Callable[[Path], object]) -> Path:
    folder = make_run_folder(config.run_dir, folder_parent(config), label)
    hold_folder(folder)  # Until the process ends: what is written last belongs to the run, too.
    if config.resume is None:
        check_run_dir(config.run_dir)  # Another run may have ended there since the first check.
    made(folder)
    return folder


def _scalars(config: DictConfig) -> dict[str, bool | int | float | str]:
    """All settings; those that are neither flags, numbers nor texts as texts."""
    found = {}
    for key in settings(config):
        value = OmegaConf.select(config, key)
        found[key] = value if isinstance(value, bool | int | float | str) else str(value)
    return found


def _options(config: DictConfig) -> TrainingOptions:
    return instantiate(config.trainer, holdout=config.dataset.holdout)
