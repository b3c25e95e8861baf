"""A data set, a network, an optimizer and a trainer from a configuration."""

from collections.abc import Collection
from functools import partial
from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from slide import checks, runtime
from slide.compilation import clock
from slide.config.announce import announce_data, announce_run
from slide.config.compose import settings
from slide.config.defaults import check_used, fill_in, run_device
from slide.config.needs import announce_memory
from slide.config.samplers import build_sampler, hidden_samplers
from slide.config.search import choose_settings, race_steps, variants
from slide.data import Batches, SparseDataset, transform, validation_split
from slide.data.transforms import check_transform
from slide.files import check_run_dir, hold_folder, make_run_folder, write_text
from slide.nn import ActiveLoss, SlideNetwork
from slide.optim import RowSparseAdam
from slide.sampling import FullSampler, Sampler
from slide.sparse import Pattern
from slide.training import Trainer, TrainingOptions
from slide.training.checkpoint_folders import CHECKPOINTS
from slide.training.evaluation import check_search, choose_rows
from slide.training.planner import HeldRows
from slide.training.race import Contender

CONFIG = "config.yaml"

_ON_CPU_ONLY = ("FaissProposer", "IndexProposer", "NeighbourProposer", "RecentProposer")


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
    check_transform(**config.transform)  # This comes first, because reading may take hours.
    # The trainer makes the holdout.
    return transform(instantiate(_without(config, "dataset", "holdout")), **config.transform)


def build_network(config: DictConfig, features: int, labels: int) -> SlideNetwork:
    """The network with its samplers.

    Args:
        config: from `slide.config.read_config`, after `slide.config.fill_in`.
        features: number of features.
        labels: number of labels.

    Raises:
        ValueError: for impossible settings.

    Example:
        >>> from slide.config import build_network, fill_in, read_config
        >>> config = read_config(["network.hidden=[8]"])
        >>> fill_in(config, num_rows=1000, num_labels=40)
        >>> build_network(config, features=60, labels=40).output.weight.shape
        torch.Size([40, 8])
    """
    sampler, network = build_sampler(config), config.network
    hidden = hidden_samplers(sampler, network.hidden, network.hidden_active, config.seed)
    for i, size in enumerate(network.hidden_active):
        if size is not None and not _fits_hidden(sampler, first=i == 0):
            shown = list(network.hidden_active)
            raise ValueError(f"hidden_active={shown} needs sampler=lsh or sampler=uniform")
    keys = ("dropout", "precision", "init_scale", "output_scale", "input_dropout")
    options = {key: network[key] for key in keys}
    made = SlideNetwork(features, list(network.hidden), labels, sampler, hidden, **options)
    return made.to(run_device(config))  # Drawn on the CPU: the first weights are the same anywhere.


def build_optimizer(config: DictConfig, network: SlideNetwork) -> RowSparseAdam:
    """The optimizer of all parameters of ``network``.

    Args:
        config: from `slide.config.read_config`.
        network: the network to train.

    Raises:
        ValueError: for impossible settings.

    Example:
        >>> import slide
        >>> from slide.config import build_optimizer, read_config
        >>> network = slide.SlideNetwork(60, [8], 40, slide.FullSampler)
        >>> optimizer = build_optimizer(read_config(["optimizer.lr=0.01"]), network)
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.01, 0.04]
    """
    groups = network.parameter_groups(config.optimizer.lr, config.optimizer.input_rate)
    return instantiate(_without(config, "optimizer", "input_rate"))(groups)


def start_biases(network: SlideNetwork, loss: ActiveLoss, labels: Pattern) -> None:
    """Start the biases of the outputs from the frequencies of the labels.

    Args:
        network: changed in place, before its first step.
        loss: says which scores fit the frequencies.
        labels: of the training rows.
    """
    output = network.output
    assert output.bias is not None
    output.bias.data.copy_(loss.prior_scores(labels, output.out_features))


def check_settings(config: DictConfig) -> None:
    """Use all settings on a small network, because reading the data may take hours.

    Raises:
        ValueError: for a setting that is impossible, or that does not fit the others.
    """
    checks.flag("prior_bias", config.network.prior_bias)
    checks.whole("redraw_every", config.schedule.redraw_every, 0)
    config = config.copy()
    fill_in(config, 1024, 8)
    # Enough features for any sensible number of hashed coordinates.
    network = build_network(config, 1024, 8)
    instantiate(config.lr_schedule)(build_optimizer(config, network), 1)
    check_search(network, _options(config).evaluation)
    _check_device(config)
    instantiate(config.loss)
    instantiate(config.ranker)
    variants(config)
    race_steps(config.search, 1)


def _check_device(config: DictConfig) -> None:
    """Raise ValueError for parts that compute on the CPU only, where the run is elsewhere."""
    device, proposer = run_device(config), config.sampler.get("proposer")
    if device.type == "cpu":
        return
    if proposer is not None and proposer._target_.removeprefix("slide.") in _ON_CPU_ONLY:
        raise ValueError(
            f"{proposer._target_} searches on the CPU; with runtime.device={device} use "
            "sampler=uniform or sampler=lsh"
        )
    if config.trainer.evaluation == "index":
        raise ValueError(
            "trainer.evaluation=index searches on the CPU; with "
            f"runtime.device={device} use trainer.evaluation=exact"
        )


def build_trainer(config: DictConfig, given: Collection[str] = (), label: str = "") -> Trainer:
    """The trainer of a new or resumed run; makes its folder and opens its data set.

    Args:
        config: from `slide.config.read_config` or `slide.config.resumed`; null settings are filled
            in (`slide.config.fill_in`).
        given: keys that a user set; the search leaves them as they are.
        label: the name of a new folder ends with it.

    Raises:
        ValueError: for impossible settings, or a ``run_dir`` that holds a run.
        OSError: if files cannot be read, fetched or written.

    Example:
        ```python
        trainer = build_trainer(read_config(["dataset=eurlex4k", "trainer.epochs=3"]))
        summary = trainer.fit()
        ```
    """
    runtime.set_threads(config.runtime.threads)
    check_used(config, given)
    check_settings(config)
    # Afterwards: the first weights must not depend on what the check draws.
    runtime.set_deterministic(config.runtime.deterministic, config.seed)
    resumed = config.resume is not None
    if not resumed:
        check_run_dir(config.run_dir, [CONFIG, CHECKPOINTS])
    data = open_dataset(config)
    announce_data(data)
    fill_in(config, len(data.train), data.num_labels)
    announce_memory(config, data)
    begin = clock()
    if not resumed and variants(config, given):
        config = _searched(config, data, given)
        fill_in(config, len(data.train), data.num_labels)  # What a race has left open again.
    search_seconds = clock() - begin
    network = build_network(config, data.num_features, data.num_labels)
    parts = network, build_optimizer(config, network), instantiate(config.loss), data
    schedule, ranker = instantiate(config.lr_schedule), instantiate(config.ranker) or None
    folder = make_run_folder(config.run_dir, Path("results") / config.dataset.name, label)
    hold_folder(folder)
    announce_run(config, data.num_labels, folder)
    trainer = Trainer(*parts, _options(config), folder, schedule, resumed, ranker)
    trainer.counters.search_seconds += search_seconds
    if config.network.prior_bias and trainer.step == 0:
        start_biases(network, trainer.learner.loss, trainer.train_split.labels)
    noted = OmegaConf.merge(config, {"resume": None, "run_dir": str(folder)})
    assert isinstance(noted, DictConfig)
    write_text(folder / CONFIG, OmegaConf.to_yaml(noted, resolve=True))
    trainer.monitor.note_settings(_scalars(noted))
    return trainer


def _scalars(config: DictConfig) -> dict[str, bool | int | float | str]:
    """All settings; those that are neither flags, numbers nor texts as texts."""
    found = {}
    for key in settings(config):
        value = OmegaConf.select(config, key)
        found[key] = value if isinstance(value, bool | int | float | str) else str(value)
    return found


def _fits_hidden(sampler: partial[Sampler], first: bool) -> bool:
    """Whether a hidden layer can have this sampler; the inputs of the first layer are sparse."""
    proposer = sampler.keywords.get("proposer")
    kind = getattr(proposer, "func", proposer)
    takes_sparse = getattr(kind, "sparse_inputs", True)
    # Neurons of hidden layers are no labels.
    without_labels = not getattr(kind, "needs_labels", False)
    return sampler.func is not FullSampler and without_labels and (takes_sparse or not first)


def _searched(config: DictConfig, data: SparseDataset, given: Collection[str]) -> DictConfig:
    """The configuration after the races of ``search``, on rows that the trainer holds out, too."""
    rows, _ = choose_rows(data, config.dataset.holdout, config.seed)
    train, held = validation_split(rows, config.seed)
    judge = HeldRows(train, held)
    batches = Batches(train, config.trainer.batch_size, config.seed)

    def make(config: DictConfig, steps: int) -> Contender:
        config = config.copy()
        fill_in(config, len(data.train), data.num_labels)
        torch.manual_seed(config.seed)
        network, loss = (
            build_network(config, data.num_features, data.num_labels),
            instantiate(config.loss),
        )
        if config.network.prior_bias:
            start_biases(network, loss, train.labels)
        return Contender(network, build_optimizer(config, network), loss, batches, judge, steps)

    with torch.random.fork_rng(devices=[]):
        return choose_settings(config, make, race_steps(config.search, len(batches)), given)


def _options(config: DictConfig) -> TrainingOptions:
    return instantiate(config.trainer, holdout=config.dataset.holdout)


def _without(config: DictConfig, group: str, key: str) -> DictConfig:
    """A group of a configuration without a key."""
    config = config.copy()  # The whole of it, because values may refer to other groups.
    OmegaConf.set_struct(config, False)
    config[group].pop(key)
    return config[group]
