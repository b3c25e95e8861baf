"""Trains a network from a configuration: ``python train.py``; ``--help`` explains the keys."""

import sys
import time
from itertools import chain, count
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from slide import FaissSampler, FullSampler, SlideNetwork, checks, runtime
from slide.evaluation import check_search
from slide.files import write_text
from slide.trainer import DivergenceError, Trainer

CONFIG = "config.yaml"
# What may change when a run is resumed. The rest would not fit what it has learnt and written.
REPLACEABLE = {
    *("trainer.epochs", "trainer.max_steps", "trainer.checkpoint_every", "trainer.log_every"),
    *("trainer.eval_every", "trainer.eval_samples", "trainer.evaluation", "trainer.recall_every"),
    *("optimizer.lr", "lr_schedule.warmup", "lr_schedule.floor", "network.dropout"),
    *("sampler.active", "sampler.hard_share", "runtime.threads", "runtime.deterministic"),
    *("dataset.root", "dataset.cache"),
}
# What users can mend; anything else is a bug and deserves its traceback.
USER_ERRORS = (ValueError, TypeError, OSError, DivergenceError)


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


def run_folder(config: DictConfig) -> Path:
    """Where the run goes, also noted in ``config.run_dir``; nothing is made yet.

    Raises:
        ValueError: if that place is taken.
    """
    if config.run_dir is None:
        stamp = Path("results") / config.dataset.name / time.strftime("%Y-%m-%d_%H-%M-%S")
        numbered = (stamp.with_name(f"{stamp.name}_{number}") for number in count(1))
        folder = next(path for path in chain([stamp], numbered) if not path.exists())
        config.run_dir = str(folder)
    folder = Path(str(config.run_dir))
    if config.run_dir == "" or (folder.exists() and not folder.is_dir()):
        raise ValueError(f"run_dir must be the path of a folder, not {config.run_dir!r}")
    if (folder / CONFIG).exists() and config.resume is None:
        raise ValueError(f"run_dir={folder} holds a run: resume={folder} goes on with it")
    return folder


def build_network(config: DictConfig, features: int, labels: int) -> SlideNetwork:
    """The network with its samplers."""
    hidden, hidden_active = config.network.hidden, config.network.hidden_active
    checks.listing("hidden", hidden)
    checks.listing("hidden_active", hidden_active)
    if hidden_active and len(hidden_active) != len(hidden):
        raise ValueError(
            f"hidden_active must have {len(hidden)} entries, as network.hidden has, "
            f"not {list(hidden_active)}"
        )
    sampler = instantiate(config.sampler)
    hidden_samplers: list[Any] = []
    for i, active in enumerate(hidden_active):
        if active is None:
            hidden_samplers.append(None)
            continue
        checks.whole("hidden_active", active, 1)
        if sampler.func is FullSampler or (sampler.func is FaissSampler and i == 0):
            raise ValueError(
                f"hidden_active={list(hidden_active)} needs sampler=lsh or sampler=uniform"
            )
        options = {"active": active, "weighting": "none", "seed": config.seed + 1 + i}
        hidden_samplers.append(instantiate(config.sampler, **options))
    return SlideNetwork(
        features, list(hidden), labels, sampler, hidden_samplers, config.network.dropout
    )


def try_settings(config: DictConfig) -> None:
    """Use all settings on a small network: nothing impossible may show after an hour of reading."""
    checks.flag("prior_bias", config.network.prior_bias)
    checks.whole("redraw_every", config.schedule.redraw_every, 0)
    instantiate(config.loss)
    instantiate(config.lr_schedule)(0.0)
    # Enough features for any sensible number of hashed coordinates.
    network = build_network(config, 1024, 8)
    instantiate(config.optimizer)(network.parameters())
    check_search(network, instantiate(config.trainer).evaluation)


def train(composed: DictConfig) -> None:
    """Compose, build, fit."""
    config = settings(composed)
    runtime.set_threads(config.runtime.threads)
    runtime.set_deterministic(config.runtime.deterministic, config.seed)
    folder = run_folder(config)
    try_settings(config)
    data = instantiate(config.dataset)
    network = build_network(config, data.num_features, data.num_labels)
    optimizer = instantiate(config.optimizer)(network.parameters())
    loss, options = instantiate(config.loss), instantiate(config.trainer)
    folder.mkdir(parents=True, exist_ok=True)
    noted = OmegaConf.merge(config, {"resume": None})
    write_text(folder / CONFIG, OmegaConf.to_yaml(noted, resolve=True))
    rate = instantiate(config.lr_schedule)
    trainer = Trainer(network, optimizer, loss, data, options, folder, rate)
    if config.network.prior_bias and trainer.step == 0:
        prior = loss.prior_scores(trainer.train_split.labels, data.num_labels)
        assert network.output.bias is not None
        network.output.bias.data.copy_(prior)
    try:
        summary = trainer.fit()
    except KeyboardInterrupt:
        sys.exit(
            f"interrupted after step {trainer.step}; "
            f"python train.py resume={folder} goes on from the last checkpoint"
        )
    scores = "  ".join(f"P@{k} {summary[f'p_at_{k}']:.4f}" for k in (1, 3, 5))
    print(f"{scores}  {folder}")


@hydra.main(version_base="1.3", config_path="conf", config_name="train")
def main(composed: DictConfig) -> None:
    try:
        train(composed)
    except InstantiationException as error:
        sys.exit(f"error: {error.__cause__ or error}")
    except USER_ERRORS as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted before the first step")


if __name__ == "__main__":
    main()
