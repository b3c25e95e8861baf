"""A configuration as a recipe: null settings filled in, values checked, and the parts built."""

from collections.abc import Collection, Iterator
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from slide import runtime
from slide.backend import choose_products
from slide.config.compose import as_dict
from slide.config.ranks import ALONE, Ranks, find_rank_device, find_rank_info
from slide.data import SparseDataset, transform
from slide.data.transforms import StepOptions
from slide.nn import SlideNetwork
from slide.nn.answers import Reranker
from slide.nn.network import NetworkOptions, SamplerFactory
from slide.optim import RowSparseAdam
from slide.sampling import FullSampler
from slide.sampling.sampler import SamplerOptions
from slide.training import Trainer, TrainingOptions
from slide.training.evaluation import check_search
from slide.training.group import Group
from slide.training.loggers import make_loggers
from slide.training.loop import start_biases
from slide.training.lr_schedules import LRSchedule
from slide.utils import checks, sizes

# Settings are tried on layers of at most this width, unless bins of coordinates need more.
_WIDE = 1024
# Keys of the first layer, and the option of its parameter group that each sets.
_OF_INPUT = {"input_betas": "betas", "input_rowwise": "rowwise"}
# What sampler=full builds. It means all outputs, whatever number a recipe has.
FULL = "slide.FullSampler"
# Key prefixes without effect where all outputs are computed; and without a proposer.
_OF_SETS = ("sampler.mode", "sampler.weighting", "sampler.group_size")
_OF_TABLES = ("hash", "schedule", "sampler.candidate_share", "sampler.lookups", "sampler.proposer")


class Parts(NamedTuple):
    """What a run builds before its data are read."""

    loss: Any
    lr_schedule: LRSchedule
    ranker: Reranker | None


def open_dataset(config: DictConfig) -> SparseDataset:
    """The data set; it is fetched, read and transformed if that was not done before.

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
    if config.dataset.get("cache", "") is None:
        raise ValueError("dataset.cache must be the path of a folder, not None")
    StepOptions(**config.transform)  # This comes first, because reading may take hours.
    # The trainer makes the holdout.
    return transform(_built_without(config.dataset, "holdout"), **config.transform)


def fill_in(config: DictConfig, num_rows: int, num_labels: int) -> None:
    """Replace settings that are null by what follows from the others.

    Example:
        >>> from slide.config import fill_in, read_config
        >>> config = read_config([])
        >>> fill_in(config, num_rows=40_000, num_labels=20_000)
        >>> config.trainer.batch_size, config.sampler.active
        (256, 192)
    """
    sampler, network, trainer = config.sampler, config.network, config.trainer
    if trainer.batch_size is None:
        trainer.batch_size = sizes.batch_size(num_rows)
    if sampler._target_ == FULL:
        sampler.active = "all"
    if sampler.active is None:
        sampler.active = sizes.active_outputs(num_labels, sampler.mode)
    if config.optimizer.get("input_betas", ()) is None:
        betas, batch = config.optimizer.betas, trainer.batch_size
        config.optimizer.input_betas = sizes.input_betas(betas, num_rows, batch)
    if network.hidden is None:
        network.hidden = [sizes.hidden_width(num_labels)]
    if trainer.evaluation is None:
        by_index = bool(config.ranker) and run_device(config).type == "cpu"
        trainer.evaluation = sizes.default_search(num_labels, by_index)


def run_device(config: DictConfig) -> torch.device:
    """Where a run, or this process of it, computes; ValueError: there is no such device."""
    return find_rank_device(config.runtime.device, find_rank_info())


def proposer_class(config: DictConfig) -> Any:
    """The class of the proposer of the output layer; None: it has none."""
    proposer = config.sampler.get("proposer")
    return proposer and get_object(proposer._target_)


def check_used(config: DictConfig, given: Collection[str]) -> None:
    """Raise ValueError for a key that a user set and that nothing will use."""
    for unused, why in _unused(config):
        for key in given:
            if key.startswith(unused):
                raise ValueError(f"{key} would have no effect: {why}")


def _unused(config: DictConfig) -> Iterator[tuple[tuple[str, ...], str]]:
    """Prefixes of keys that nothing uses, and why."""
    sampler, other = config.sampler, "choose sampler=lsh"
    proposer = sampler.get("proposer")
    if config.trainer.epochs == "auto":
        yield ("lr_schedule",), "trainer.epochs=auto chooses the rates; give a number of epochs"
    if sampler.mode != "grouped":
        yield ("sampler.group_size", "sampler.lookups"), f"sampler.mode={sampler.mode}"
    if sampler._target_ == FULL:  # With sampler.active=all it means the same.
        size = () if sampler.active in (None, "all") else ("sampler.active",)
        yield (*size, *_OF_SETS, *_OF_TABLES), f"all outputs are computed; {other}"
    elif sampler.active == "all":
        why = "sampler.active=all computes all outputs; give it a number"
        yield (*_OF_SETS, *_OF_TABLES), why
    elif proposer is None:
        yield _OF_TABLES, f"outputs are drawn uniformly; {other}"
    elif proposer._target_.endswith(".LSHProposer"):
        yield ("schedule.redraw",), "each rebuild draws new hash functions"
    elif proposer._target_.endswith(".PublishedLSHProposer"):
        yield ("hash.probes",), f"the published method has nothing of it; {other}"
    elif proposer._target_.endswith(".RecentProposer"):
        yield ("hash", "schedule"), f"no index is built; {other}"
    else:
        yield ("hash", "schedule.redraw"), f"candidates do not come from hash tables; {other}"


def prepare(config: DictConfig, given: Collection[str] = (), ranks: Ranks = ALONE) -> Parts:
    """Threads, draws and products of a run, and its settings, checked; see `check_settings`."""
    ranks.share_threads(config.runtime.threads)
    parts = check_settings(config, given, ranks)
    # Afterwards: the first weights must not depend on what the check draws.
    runtime.set_deterministic(config.runtime.deterministic, config.seed)
    # The run keeps it: what is resumed rounds as before.
    products = ranks.group.broadcast(choose_products(config.runtime.products))
    config.runtime.products = choose_products(products)
    return parts


def check_settings(config: DictConfig, given: Collection[str] = (), ranks: Ranks = ALONE) -> Parts:
    """Check all settings before the data are read, which may take hours; nothing large is built.

    Each value is checked by the class that takes it. The result is what needs no data.
    """
    check_used(config, given)
    ranks.check_settings(config)
    checks.flag("report", config.report)
    make_loggers(config.logger)
    checks.whole("redraw_every", config.schedule.redraw_every, 0)
    if (first := config.schedule.get("redraw_first")) is not None:
        checks.whole("redraw_first", first, 0)
    names = {field.name for field in fields(SamplerOptions)} & config.sampler.keys() - {"active"}
    # Also where all outputs are computed, by a sampler that takes nothing of it.
    SamplerOptions(**{name: config.sampler[name] for name in names})
    config = config.copy()
    fill_in(config, _WIDE, 8)
    bins = OmegaConf.select(config, "hash.bin_size")
    most = max(_WIDE, bins) if type(bins) is int else _WIDE  # What does not fit is refused later.
    widths = [min(width, most) for width in network_options(config).hidden]
    network = SlideNetwork(_WIDE, widths, 8, *build_samplers(config))
    check_search(network.output.sampler, training_options(config).evaluation)
    parts = build_parts(config)
    parts.lr_schedule(build_optimizer(config, network), 1)
    key, told, device = "", "", run_device(config)
    if getattr(proposer_class(config), "cpu_only", False):
        key, told = config.sampler.proposer._target_, "sampler=lsh, sketch, recent or uniform"
    elif config.trainer.evaluation == "index":
        key, told = "trainer.evaluation=index", "trainer.evaluation=exact"
    if key and device.type != "cpu":
        raise ValueError(f"{key} searches on the CPU; with runtime.device={device} use {told}")
    return parts


def build_parts(config: DictConfig) -> Parts:
    """Loss, learning rates and re-ranker."""
    rates, ranker = instantiate(config.lr_schedule), instantiate(config.ranker) or None
    return Parts(build_loss(config), rates, ranker)


def build_samplers(config: DictConfig) -> tuple[SamplerFactory, list[SamplerFactory | None]]:
    """What makes the samplers of the output layer, and of hidden layers with active sets."""
    active = network_options(config).hidden_active
    sampler, proposer = partial(FullSampler), None
    if config.sampler.active != "all":
        proposer = proposer_class(config)
        sampler = _plain_partials(instantiate(as_dict(config.sampler)))
    # Neurons of hidden layers are no labels, and the inputs of the first layer are sparse.
    fits = sampler.func is not FullSampler and not getattr(proposer, "needs_labels", False)
    factories: list[SamplerFactory | None] = []
    for i, size in enumerate(active):
        if size is None:
            factories.append(None)
            continue
        if not fits or (i == 0 and not getattr(proposer, "sparse_inputs", True)):
            raise ValueError(
                f"hidden_active={list(active)} needs sampler=lsh or sampler=uniform; in the first "
                "layer, whose inputs are sparse, sampler=uniform or sampler=slide2020"
            )
        own = {"active": size, "weighting": "none", "seed": config.seed + 1 + i}
        factories.append(partial(sampler, **own))
    return sampler, factories


def _plain_partials(made: Any) -> Any:
    """A partial of Hydra as a plain one, if its function is slide's own; also in its arguments."""
    # Hydra's partials check their function at each call, and schedules are called in each step.
    if not isinstance(made, partial) or not made.func.__module__.startswith("slide."):
        return made
    keywords = {name: _plain_partials(value) for name, value in made.keywords.items()}
    return partial(made.func, *made.args, **keywords)


def build_network(
    config: DictConfig,
    features: int,
    labels: int,
    ranks: Ranks = ALONE,
    counts: dict[str, np.ndarray] | None = None,
) -> SlideNetwork:
    """The network with its samplers, of a configuration after `slide.config.fill_in`.

    The processes of ``ranks`` share its rows. Of several ``counts`` has how often training rows
    have each feature (``feature_counts``) and each label (``label_counts``), if that is known.

    Example:
        >>> from slide.config import build_network, fill_in, read_config
        >>> config = read_config(["network.hidden=[8]"])
        >>> fill_in(config, num_rows=1000, num_labels=40)
        >>> build_network(config, features=60, labels=40).output.weight.shape
        torch.Size([40, 8])
    """
    options, (sampler, others) = network_options(config), build_samplers(config)
    keys = ("dropout", "precision", "init_scale", "output_scale", "input_dropout")
    made = ranks.network_maker(config.seed, counts or {})(
        *(features, options.hidden, labels, sampler),
        hidden_samplers=others,
        **{key: getattr(options, key) for key in keys},
    )
    if options.bias_scale:
        with torch.no_grad():
            for layer in made.layers():
                assert layer.bias is not None
                layer.bias.normal_(0, options.bias_scale, generator=runtime.generator())
    return made.to(run_device(config))  # Drawn on the CPU: the first weights are the same anywhere.


def build_optimizer(config: DictConfig, network: SlideNetwork) -> RowSparseAdam:
    """The optimizer of all parameters of ``network``.

    Example:
        >>> import slide
        >>> from slide.config import build_optimizer, read_config
        >>> network = slide.SlideNetwork(60, [8], 40, slide.FullSampler)
        >>> optimizer = build_optimizer(read_config(["optimizer.lr=0.01"]), network)
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.01, 0.04]
    """
    optimizer = config.optimizer
    own = {name: optimizer.get(key) for key, name in _OF_INPUT.items()}  # Others may have none.
    own = {name: value for name, value in own.items() if value is not None}
    if "betas" in own:
        own["betas"] = tuple(own["betas"])
    groups = network.parameter_groups(optimizer.lr, optimizer.input_rate, **own)
    return _built_without(optimizer, "input_rate", *_OF_INPUT)(groups)


def build_loss(config: DictConfig) -> Any:
    """The loss of the output layer, a `slide.ActiveLoss` unless the user has another."""
    return instantiate(config.loss)


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


def _built_without(group: DictConfig, *keys: str) -> Any:
    """What a group of settings builds, without the keys that something else takes."""
    return instantiate({name: v for name, v in as_dict(group).items() if name not in keys})


def network_options(config: DictConfig) -> NetworkOptions:
    """The values of ``network``."""
    return NetworkOptions(
        **{each.name: config.network[each.name] for each in fields(NetworkOptions)}
    )


def training_options(config: DictConfig) -> TrainingOptions:
    """The values of ``trainer``."""
    return instantiate(config.trainer, holdout=config.dataset.holdout)
