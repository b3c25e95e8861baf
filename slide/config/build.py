"""The parts of a run, and its trainer, from a configuration: what is open in it is filled in."""

import copy
import hashlib
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf, open_dict

from slide import runtime
from slide.backend import choose_products, described_products
from slide.config.compose import CONFIG, as_dict, noted_command, typed_values
from slide.config.memory import announce_memory
from slide.config.ranks import ALONE, Ranks, find_rank_device, find_rank_info
from slide.data import SparseDataset, transform
from slide.data.transforms import StepOptions
from slide.functional.linear import PRECISIONS
from slide.nn import SlideNetwork
from slide.nn.network import SamplerFactory
from slide.optim import RowSparseAdam
from slide.sampling import FullSampler
from slide.sampling.sampler import MODES, WEIGHTINGS
from slide.training import Trainer, TrainingOptions
from slide.training.evaluation import check_search
from slide.training.group import Group
from slide.training.loggers import make_loggers
from slide.training.loop import start_biases
from slide.utils import checks, sizes
from slide.utils.checks import override_key
from slide.utils.files import write_text
from slide.utils.progress_bar import log
from slide.utils.run_folders import (
    check_run_dir,
    check_writable,
    discard_folder,
    hold_folder,
    make_run_folder,
)

# Scores of fewer rows may be off by several points.
_FEW = 100
# Settings are tried on samplers of layers that are no wider, unless bins of coordinates need more.
_WIDE = 4096
# Most characters of the part of a folder's name about settings.
LABEL_LENGTH = 100
# Keys of the first layer, and the option of its parameter group that each sets.
_OF_INPUT = {"input_betas": "betas", "input_rowwise": "rowwise"}
# What sampler=full builds. It means all outputs, whatever number a recipe has.
FULL = "slide.FullSampler"
# Key prefixes without effect where all outputs are computed; and without a proposer.
_OF_SETS = ("sampler.active", "sampler.mode", "sampler.weighting", "sampler.group_size")
_OF_TABLES = ("hash", "schedule", "sampler.candidate_share", "sampler.lookups", "sampler.proposer")


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
    return transform(instantiate(_without(config, "dataset", "holdout")), **config.transform)


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
    rates = [key for key in given if key.startswith("lr_schedule")]
    if rates and config.trainer.epochs == "auto":
        raise ValueError(
            f"{rates[0]} would have no effect: trainer.epochs=auto chooses the rates; give a "
            "number of epochs"
        )
    unused, why = _unused(config)
    of_groups = [key for key in given if key in ("sampler.group_size", "sampler.lookups")]
    if of_groups and config.sampler.mode != "grouped":
        raise ValueError(f"{of_groups[0]} would have no effect: sampler.mode={config.sampler.mode}")
    if config.sampler.active in (None, "all"):  # It means the same as sampler=full.
        given = set(given) - {"sampler.active"}
    for key in given:
        if key.startswith(unused):
            raise ValueError(f"{key} would have no effect: {why}")


def _unused(config: DictConfig) -> tuple[tuple[str, ...], str]:
    sampler, other = config.sampler, "choose sampler=lsh"
    if sampler._target_ == FULL:
        return (*_OF_SETS, *_OF_TABLES), f"all outputs are computed; {other}"
    if sampler.active == "all":
        why = "sampler.active=all computes all outputs; give it a number"
        return (*_OF_SETS, *_OF_TABLES), why
    if sampler.get("proposer") is None:
        return _OF_TABLES, f"outputs are drawn uniformly; {other}"
    kind = sampler.proposer._target_.rpartition(".")[2]
    if kind == "LSHProposer":
        return ("schedule.redraw",), "each rebuild draws new hash functions"
    if kind == "PublishedLSHProposer":
        return ("hash.probes",), f"the published method has nothing of it; {other}"
    if kind == "RecentProposer":
        return ("hash", "schedule"), f"no index is built; {other}"
    return ("hash", "schedule.redraw"), f"candidates do not come from hash tables; {other}"


def check_settings(config: DictConfig, given: Collection[str] = (), ranks: Ranks = ALONE) -> None:
    """Check all settings before the data are read, which may take hours; nothing large is built."""
    check_used(config, given)
    ranks.check_settings(config)
    checks.flag("report", config.report)
    make_loggers(config.logger)
    checks.whole("redraw_every", config.schedule.redraw_every, 0)
    if (first := config.schedule.get("redraw_first")) is not None:
        checks.whole("redraw_first", first, 0)
    checks.one_of("mode", config.sampler.mode, MODES)  # A sampler of all outputs has none.
    checks.one_of("weighting", config.sampler.weighting, WEIGHTINGS)
    config = config.copy()
    fill_in(config, 1024, 8)
    network, hidden = config.network, config.network.hidden
    checks.flag("prior_bias", network.prior_bias)
    checks.listing("hidden", hidden)
    if not hidden:
        raise ValueError("hidden must name at least one width, such as [128], not []")
    for width in hidden:
        checks.whole("hidden", width, 1)
    for name in ("dropout", "input_dropout"):
        checks.share(name, network[name])
    checks.one_of("precision", network.precision, PRECISIONS)
    for name in ("init_scale", "output_scale"):
        checks.positive(name, network[name])
    checks.not_negative("prior_margin", network.prior_margin)
    checks.not_negative("bias_scale", network.bias_scale)
    # What does not fit in memory is refused later.
    bins = OmegaConf.select(config, "hash.bin_size")
    most = max(_WIDE, bins) if type(bins) is int else _WIDE
    widths = [1024, *(min(width, most) for width in hidden)]  # As many features as hashes need.
    output, others = build_samplers(config)
    for make, inputs, outputs in zip(others, widths, widths[1:], strict=False):
        if make is not None:
            make(inputs, outputs)
    check_search(output(widths[-1], 8), _options(config).evaluation)
    checks.positive("input_rate", config.optimizer.input_rate)
    params = [torch.nn.Parameter(torch.zeros(1, 1, dtype=torch.float32))]
    optimizer = _make_optimizer(config, [{"params": params, **_input_options(config)}])
    instantiate(config.lr_schedule)(optimizer, 1)
    build_loss(config)
    instantiate(config.ranker)
    device = run_device(config)
    key, told = "", ""
    if getattr(proposer_class(config), "cpu_only", False):
        key, told = config.sampler.proposer._target_, "sampler=lsh, sketch, recent or uniform"
    elif config.trainer.evaluation == "index":
        key, told = "trainer.evaluation=index", "trainer.evaluation=exact"
    if key and device.type != "cpu":
        raise ValueError(f"{key} searches on the CPU; with runtime.device={device} use {told}")


def build_samplers(config: DictConfig) -> tuple[SamplerFactory, list[SamplerFactory | None]]:
    """What makes the samplers of the output layer, and of hidden layers with active sets."""
    hidden, active = config.network.hidden, config.network.hidden_active
    checks.listing("hidden_active", active)
    if active and len(active) != len(hidden):
        raise ValueError(
            f"hidden_active must have {checks.counted(len(hidden), 'entry', 'entries')}, as "
            f"hidden has, not {list(active)}"
        )
    sampler, proposer = partial(FullSampler), None
    if config.sampler.active != "all":
        config, proposer = copy.deepcopy(config), proposer_class(config)
        sampler = _plain_partials(instantiate(config.sampler))
    # Neurons of hidden layers are no labels, and the inputs of the first layer are sparse.
    fits = sampler.func is not FullSampler and not getattr(proposer, "needs_labels", False)
    factories: list[SamplerFactory | None] = []
    for i, size in enumerate(active):
        if size is None:
            factories.append(None)
            continue
        checks.whole("hidden_active", size, 1)
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
    network, (sampler, others) = config.network, build_samplers(config)
    keys = ("dropout", "precision", "init_scale", "output_scale", "input_dropout")
    make = ranks.network_maker(config.seed, counts or {})
    options = {key: network[key] for key in keys}
    hidden = list(network.hidden)
    made = make(features, hidden, labels, sampler, hidden_samplers=others, **options)
    if scale := network.bias_scale:
        with torch.no_grad():
            for layer in made.layers():
                assert layer.bias is not None
                layer.bias.normal_(0, scale, generator=runtime.generator())
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
    rates = {"lr": config.optimizer.lr, "input_rate": config.optimizer.input_rate}
    return _make_optimizer(config, network.parameter_groups(**rates, **_input_options(config)))


def _make_optimizer(config: DictConfig, groups: list[dict[str, Any]]) -> RowSparseAdam:
    return instantiate(_without(config, "optimizer", "input_rate", *_OF_INPUT))(groups)


def _input_options(config: DictConfig) -> dict[str, Any]:
    """Options of the first layer's parameter group; other optimizers may have no such keys."""
    found = {name: config.optimizer.get(key) for key, name in _OF_INPUT.items()}
    return {
        name: tuple(value) if name == "betas" else value
        for name, value in found.items()
        if value is not None
    }


def build_loss(config: DictConfig) -> Any:
    """The loss of the output layer, a `slide.ActiveLoss` unless the user has another."""
    return instantiate(config.loss)


def _without(config: DictConfig, group: str, *keys: str) -> DictConfig:
    config = config.copy()  # The whole of it, because values may refer to other groups.
    OmegaConf.set_struct(config, False)
    for key in keys:
        config[group].pop(key, None)
    return config[group]


def _options(config: DictConfig) -> TrainingOptions:
    return instantiate(config.trainer, holdout=config.dataset.holdout)


def build_trainer(
    config: DictConfig,
    words: Sequence[str] = (),
    swept: Sequence[str] = (),
    ranks: Ranks = ALONE,
    made: Callable[[Path], object] = bool,
) -> Trainer:
    """The trainer of a new or resumed run; makes its folder and opens its data set.

    Args:
        config: from `slide.config.read_config` or `slide.config.resumed`; changed in place by
            `slide.config.fill_in`.
        words: overrides of the command line; one that nothing would use is an error.
        swept: overrides that differ from run to run of a sweep; they are in the folder's name.
        ranks: the processes of the run; all of them call this.
        made: called by the main process with the folder of a new run, before the run is in it.

    Raises:
        ValueError: for impossible settings, or a ``run_dir`` that holds a run or a model.

    Example:
        ```python
        trainer = build_trainer(read_config(["dataset=eurlex4k", "trainer.epochs=3"]))
        summary = trainer.fit()
        ```
    """
    ranks.share_threads(config.runtime.threads)
    check_settings(config, {override_key(word) for word in words}, ranks)
    # Afterwards: the first weights must not depend on what the check draws.
    runtime.set_deterministic(config.runtime.deterministic, config.seed)
    # The run keeps it: what is resumed rounds as before.
    products = ranks.group.broadcast(choose_products(config.runtime.products))
    config.runtime.products = choose_products(products)
    if config.resume is None:
        check_run_dir(config.run_dir)
    if ranks.group.is_main_process:  # To read the data may take hours.
        check_writable(Path(config.run_dir or folder_parent(config)))
    data = ranks.once_a_machine(partial(open_dataset, config))
    _announce_data(data, config.dataset.holdout)
    fill_in(config, len(data.train), data.num_labels)
    ranks.check_same(config, data)
    announce_memory(config, data, ranks)
    counts = ranks.counts(data)
    network = build_network(config, data.num_features, data.num_labels, ranks, counts)
    optimizer = build_optimizer(config, network)
    folder = ranks.share_folder(partial(_make_folder, config, label_of(swept), made))
    _announce_run(config, network, folder)
    try:
        trainer = put_together(config, network, optimizer, data, folder, ranks.group)
    except BaseException:
        if ranks.group.is_main_process and config.resume is None:
            discard_folder(folder)
        raise
    if trainer.ended:
        early = trainer.step < (trainer.total_steps or 0)
        helps = "; it goes on with a larger trainer.patience" if early else ""
        log(f"the training of this run has ended; what comes after it is done again{helps}")
    elif config.resume is not None:
        told = (
            f"goes on after step {trainer.step:,}"
            if trainer.step
            else "no checkpoint: it begins again"
        )
        log(f"resumed   {told}")
    if ranks.group.is_main_process:
        noted = {"resume": None, "run_dir": str(folder), "command": noted_command(config, words)}
        with open_dict(config):
            noted = OmegaConf.merge(config, noted)
        write_text(folder / CONFIG, OmegaConf.to_yaml(noted, resolve=True))
        for logger in make_loggers(config.logger):
            trainer.monitor.add(logger, as_dict(config))
        if config.resume is None:
            reranked = trainer.ranker is not None
            trainer.monitor.note_settings(typed_values(swept or words), reranked)
    ranks.group.patient.barrier()  # They read checkpoints at different speeds.
    return trainer


def put_together(
    config: DictConfig,
    network: SlideNetwork,
    optimizer: RowSparseAdam,
    data: SparseDataset,
    folder: Path,
    group: Group | None = None,
) -> Trainer:
    """A trainer of the parts of a run; a new network gets its first biases."""
    trainer = Trainer(
        network,
        optimizer,
        build_loss(config),
        data,
        _options(config),
        folder,
        lr_schedule=instantiate(config.lr_schedule),
        resume=config.resume is not None,
        ranker=instantiate(config.ranker) or None,
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


def label_of(words: Sequence[str]) -> str:
    """The part of a folder's name about the settings of a run; a digest ends a long one."""
    parts = (word.partition("=") for word in words)
    short = ",".join(f"{key.rpartition('.')[2]}={value}" for key, _, value in parts)
    label = re.sub(r"[^\w.=,+-]+", "_", short)
    if len(label) <= LABEL_LENGTH:
        return label
    digest = hashlib.sha256(short.encode()).hexdigest()[:8]
    return f"{label[: LABEL_LENGTH - len(digest) - 1]}_{digest}"


def _make_folder(config: DictConfig, label: str, made: Callable[[Path], object]) -> Path:
    folder = make_run_folder(config.run_dir, folder_parent(config), label)
    hold_folder(folder)  # Until the process ends: what is written last belongs to the run, too.
    if config.resume is None:
        check_run_dir(config.run_dir)  # Another run may have ended there since the first check.
        made(folder)
    return folder


def _announce_data(data: SparseDataset, holdout: float) -> None:
    held = f"{holdout:.3g} of them held out in place of the test rows"
    if not holdout:
        held = checks.counted(len(data.test), "test row")
    log(
        f"data      {data.name}: {checks.counted(len(data.train), 'training row')}, {held}, "
        f"{checks.counted(data.num_features, 'feature')}, "
        f"{checks.counted(data.num_labels, 'label')}"
    )
    if not holdout and not len(data.test.labels.indices):
        log("warning   no test row has a label, so all scores will be 0")
    evaluated = max(round(holdout * len(data.train)), 1) if holdout else len(data.test)
    if evaluated < _FEW:
        log(f"warning   scores of only {checks.counted(evaluated, 'row')} are rough")


def _announce_run(config: DictConfig, network: SlideNetwork, folder: Path) -> None:
    trainer, device = config.trainer, run_device(config)
    hidden = ", ".join(f"{size:,}" for size in config.network.hidden)
    log(f"network   hidden: {hidden}; {checks.counted(network.output.out_features, 'output')}")
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
