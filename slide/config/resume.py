"""The configuration of a run that goes on: as it was, but for what may change."""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from slide.config.build import CONFIG

# What may change when a run is resumed. The rest would not fit what it has learnt and written.
REPLACEABLE = {
    *("trainer.epochs", "trainer.max_steps", "trainer.checkpoint_every", "trainer.log_every"),
    *("trainer.eval_every", "trainer.eval_samples", "trainer.evaluation", "trainer.recall_every"),
    *("optimizer.lr", "lr_schedule.warmup", "lr_schedule.floor", "network.dropout"),
    *("sampler.active", "sampler.candidate_share", "runtime.threads", "runtime.deterministic"),
    *("dataset.root", "dataset.cache"),
}


def resumed(composed: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The configuration of this run: as composed, or that of the run to be resumed.

    Args:
        composed: of the ``overrides``.
        overrides: ``group=choice`` or ``key=value`` each.

    Raises:
        FileNotFoundError: if there is no run to resume.
        ValueError: if an override changes a setting that a resumed run keeps.

    Example:
        >>> from slide.config import read_config, resumed
        >>> config = read_config(["seed=3"])
        >>> resumed(config, ["seed=3"]) is config  # A new run.
        True
    """
    if composed.resume is None:
        return composed
    folder = str(composed.resume)
    path = Path(folder) / CONFIG
    if not path.exists():
        raise FileNotFoundError(f"resume={folder}: there is no {path}")
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)
    for override in overrides:
        key = override.partition("=")[0].lstrip("+")
        if key == "resume":
            continue
        if key not in REPLACEABLE or OmegaConf.select(config, key) is None:
            raise ValueError(f"{override}: a resumed run keeps its {key}; start a new one instead")
        OmegaConf.update(config, key, OmegaConf.select(composed, key))
    config.run_dir = config.resume = folder
    return config
