"""Trains a network from a configuration: ``python train.py``; ``--help`` explains the keys."""

import sys
import time
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from slide import FullSampler, SlideNetwork, runtime
from slide.files import write_text
from slide.trainer import DivergenceError, Trainer

CONFIG = "config.yaml"
# What users can mend; anything else is a bug and deserves its traceback.
USER_ERRORS = (ValueError, TypeError, OSError, DivergenceError)


def settings(composed: DictConfig) -> DictConfig:
    """The configuration of this run: as composed, or that of the run to be resumed.

    Raises:
        FileNotFoundError: if there is no run to resume.
        ValueError: if a group is to be changed on the way.
    """
    if not composed.resume:
        return composed
    path = Path(composed.resume) / CONFIG
    if not path.exists():
        raise FileNotFoundError(f"resume={composed.resume}: there is no {path}")
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)
    OmegaConf.set_struct(config, True)
    for override in HydraConfig.get().overrides.task:
        key, _, _ = override.partition("=")
        if key == "resume":
            continue
        if OmegaConf.is_config(OmegaConf.select(config, key)) or key == "recipe":
            raise ValueError(f"{override}: a resumed run keeps its {key}; start a new one instead")
        OmegaConf.update(config, key, OmegaConf.select(composed, key))
    config.run_dir = composed.resume
    config.resume = composed.resume
    return config


def run_folder(config: DictConfig) -> Path:
    """Make the folder of the run, and note its configuration there.

    Raises:
        ValueError: if the folder is taken by another run.
    """
    if config.run_dir is None:
        stamp = Path("results") / config.dataset.name / time.strftime("%Y-%m-%d_%H-%M-%S")
        folder = stamp
        for number in range(1, 1000):
            if not folder.exists():
                break
            folder = stamp.with_name(f"{stamp.name}_{number}")
        config.run_dir = str(folder)
    folder = Path(config.run_dir)
    if (folder / CONFIG).exists() and not config.resume:
        raise ValueError(f"run_dir={folder} holds a run: resume={folder} goes on with it")
    folder.mkdir(parents=True, exist_ok=True)
    noted = OmegaConf.merge(config, {"resume": None})
    write_text(folder / CONFIG, OmegaConf.to_yaml(noted))
    return folder


def build_network(config: DictConfig, features: int, labels: int) -> SlideNetwork:
    """The network with its samplers."""
    sampler = instantiate(config.sampler)
    hidden_samplers: list[Any] = []
    for i, active in enumerate(config.network.hidden_active):
        if active is not None and sampler.func is FullSampler:
            raise ValueError("network.hidden_active needs a sampler that chooses, not sampler=full")
        options = {"active": active, "weighting": "none", "seed": config.seed + 1 + i}
        hidden_samplers.append(None if active is None else instantiate(config.sampler, **options))
    hidden = list(config.network.hidden)
    return SlideNetwork(features, hidden, labels, sampler, hidden_samplers, config.network.dropout)


def train(composed: DictConfig) -> None:
    """Compose, build, fit."""
    config = settings(composed)
    runtime.set_threads(config.runtime.threads)
    runtime.set_deterministic(config.runtime.deterministic, config.seed)
    options = instantiate(config.trainer)
    loss = instantiate(config.loss)
    # A network of 8 by 8 first: impossible values must not show after an hour of reading data.
    instantiate(config.optimizer)(build_network(config, 8, 8).parameters())
    data = instantiate(config.dataset)
    network = build_network(config, data.num_features, data.num_labels)
    optimizer = instantiate(config.optimizer)(network.parameters())
    folder = run_folder(config)
    rate = instantiate(config.lr_schedule)
    summary = Trainer(network, optimizer, loss, data, options, folder, rate).fit()
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
        sys.exit("interrupted; python train.py resume=<run folder> goes on from the checkpoint")


if __name__ == "__main__":
    main()
