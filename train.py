"""Trains a network from a configuration: ``python train.py``; ``--help`` explains the keys."""

import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from slide import RowSparseAdam, SlideNetwork, checks, runtime
from slide.config import defaults as rules
from slide.config.data_command import open_dataset, user_errors
from slide.files import check_run_dir, make_run_folder, write_text
from slide.nn.network import hidden_samplers
from slide.training.evaluation import check_search
from slide.training.trainer import CHECKPOINT, DivergenceError, Trainer

CONFIG = "config.yaml"
# Losses whose scores mean what those of the linear classifiers mean.
RANKED = ("squared_hinge",)
# What may change when a run is resumed. The rest would not fit what it has learnt and written.
REPLACEABLE = {
    *("trainer.epochs", "trainer.max_steps", "trainer.checkpoint_every", "trainer.log_every"),
    *("trainer.eval_every", "trainer.eval_samples", "trainer.evaluation", "trainer.recall_every"),
    *("optimizer.lr", "lr_schedule.warmup", "lr_schedule.floor", "network.dropout"),
    *(
        "sampler.active",
        "selection.active",
        "sampler.hard_share",
        "runtime.threads",
        "runtime.deterministic",
    ),
    *("dataset.root", "dataset.cache"),
}


def settings(composed: DictConfig) -> DictConfig:
    """The configuration of this run: as composed, or that of the run to be resumed.

    Raises:
        FileNotFoundError: if there is no run to resume.
        ValueError: if a setting is to be changed on the way that a run keeps.
    """
    if composed.resume is None:
        return composed
    folder = str(composed.resume)
    path = Path(folder) / CONFIG
    if not path.exists():
        raise FileNotFoundError(f"resume={folder}: there is no {path}")
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)
    for override in HydraConfig.get().overrides.task:
        key = override.partition("=")[0].lstrip("+")
        if key == "resume":
            continue
        if key not in REPLACEABLE or OmegaConf.select(config, key) is None:
            raise ValueError(f"{override}: a resumed run keeps its {key}; start a new one instead")
        OmegaConf.update(config, key, OmegaConf.select(composed, key))
    config.run_dir = config.resume = folder
    return config


def build_network(config: DictConfig, features: int, labels: int) -> SlideNetwork:
    """The network with its samplers."""
    sampler, network = instantiate(config.sampler), config.network
    hidden = hidden_samplers(sampler, network.hidden, network.hidden_active, config.seed)
    options = {key: network[key] for key in ("dropout", "precision", "init_scale", "output_scale")}
    return SlideNetwork(features, list(network.hidden), labels, sampler, hidden, **options)


def build_optimizer(config: DictConfig, network: SlideNetwork) -> RowSparseAdam:
    """The optimizer over all parameters of ``network``."""
    groups = network.parameter_groups(config.optimizer.lr, config.network.input_rate)
    return instantiate(config.optimizer)(groups)


def fill_in(config: DictConfig, rows: int, labels: int) -> None:
    """Settings that are null follow from the training data."""
    if config.trainer.batch_size is None:
        config.trainer.batch_size = rules.batch_size(rows)
    if config.selection.active is None:
        config.selection.active = rules.active_outputs(labels)
    if config.network.output_scale is None:
        shared = OmegaConf.select(config, "sampler.mode") != "per_sample"
        config.network.output_scale = rules.output_scale(labels, shared)


def try_settings(config: DictConfig) -> None:
    """Use all settings on a small network: nothing impossible may show after an hour of reading."""
    checks.flag("prior_bias", config.network.prior_bias)
    checks.whole("redraw_every", config.schedule.redraw_every, 0)
    instantiate(config.loss)
    instantiate(config.lr_schedule)(0.0)
    config = config.copy()
    fill_in(config, 1024, 8)
    # Enough features for any sensible number of hashed coordinates.
    network = build_network(config, 1024, 8)
    build_optimizer(config, network)
    instantiate(config.ranker)
    if config.ranker and config.loss.name not in RANKED:
        raise ValueError(
            f"ranker=linear goes with loss={' or '.join(RANKED)}, whose scores aim at -1 and 1 as "
            f"its own do, not with loss={config.loss.name}: add ranker=none"
        )
    check_search(network, instantiate(config.trainer).evaluation)


def prepare(composed: DictConfig) -> Trainer:
    """Compose and build."""
    config = settings(composed)
    runtime.set_threads(config.runtime.threads)
    runtime.set_deterministic(config.runtime.deterministic, config.seed)
    try_settings(config)
    resumed = config.resume is not None
    if not resumed:
        check_run_dir(config.run_dir, [CONFIG, CHECKPOINT])
    data = open_dataset(config)
    fill_in(config, len(data.train), data.num_labels)
    network = build_network(config, data.num_features, data.num_labels)
    optimizer = build_optimizer(config, network)
    loss, options = instantiate(config.loss), instantiate(config.trainer)
    rate = instantiate(config.lr_schedule)
    folder = make_run_folder(config.run_dir, Path("results") / config.dataset.name)
    ranker = instantiate(config.ranker) or None
    trainer = Trainer(network, optimizer, loss, data, options, folder, rate, resumed, ranker)
    if config.network.prior_bias and trainer.step == 0:
        prior = loss.prior_scores(trainer.train_split.labels, data.num_labels)
        assert network.output.bias is not None
        network.output.bias.data.copy_(prior)
    noted = OmegaConf.merge(config, {"resume": None, "run_dir": str(folder)})
    write_text(folder / CONFIG, OmegaConf.to_yaml(noted, resolve=True))
    return trainer


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(composed: DictConfig) -> None:
    with user_errors():
        trainer = prepare(composed)
    try:
        summary = trainer.fit()
    except (DivergenceError, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(
            f"interrupted after step {trainer.step}; "
            f"python train.py resume={trainer.folder} goes on from the last checkpoint"
        )
    scores = "  ".join(f"P@{k} {summary[f'p_at_{k}']:.4f}" for k in (1, 3, 5))
    print(f"{scores}  {trainer.folder}")


if __name__ == "__main__":
    main()
