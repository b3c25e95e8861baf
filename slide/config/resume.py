"""The configuration of a resumed run: the saved one, with the settings that may change."""

from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from slide.config.build import CONFIG
from slide.config.compose import read_config, read_value
from slide.config.ranks import OWN, Ranks
from slide.config.restarts import FolderNote, restarts
from slide.utils.checks import override_key

# Settings that may change when a run is resumed. Other settings would not fit its checkpoint.
REPLACEABLE = {
    *("trainer.epochs", "trainer.max_epochs", "trainer.max_minutes", "trainer.max_steps"),
    *("trainer.checkpoint_every", "trainer.keep_checkpoints", "trainer.log_every"),
    *("trainer.patience", "trainer.share_cores"),
    *("network.input_dropout", "network.dropout"),
    *("trainer.eval_every", "trainer.eval_samples", "trainer.evaluation", "trainer.recall_every"),
    *("optimizer.lr", "lr_schedule.warmup", "lr_schedule.floor"),
    *("sampler.active", "sampler.candidate_share", "runtime.threads", "runtime.deterministic"),
    *("runtime.device", "runtime.timeout"),
    *("dataset.root", "dataset.cache", "report"),
}

_NOWHERE = object()


def asked_for(overrides: Sequence[str]) -> list[str]:
    """The overrides that a configuration is composed of.

    Of a resumed run they are those that `resumed` does not take: its saved configuration may have
    other groups than the default one, and with them other keys.
    """
    folders = [word for word in overrides if override_key(word) == "resume"]
    if not folders or read_value(folders[-1]) is None:
        return list(overrides)
    return [override for override in overrides if override_key(override) not in REPLACEABLE]


def resumed(composed: DictConfig, overrides: Sequence[str]) -> DictConfig:
    """The configuration of a run: ``composed``, or the saved one of a run that is resumed.

    Args:
        composed: from `slide.config.read_config` with the same ``overrides``, or without those that
            a resumed run takes.
        overrides: each is ``group=choice`` or ``key=value``.

    Raises:
        FileNotFoundError: if there is no run to resume.
        ValueError: if an override changes a setting that a resumed run keeps.

    Example:
        >>> from slide.config import read_config, resumed
        >>> resumed(read_config(["seed=3"]), ["seed=3"]).seed  # A new run.
        3
    """
    if composed.resume is None:
        return composed
    folder = str(composed.resume)
    path = Path(folder) / CONFIG
    if not path.exists():
        raise FileNotFoundError(f"resume={folder}: there is no {path}")
    config = OmegaConf.load(path)
    assert isinstance(config, DictConfig)
    config.pop("search", None)  # Of earlier versions; what it has chosen is in the other keys.
    if str(OmegaConf.select(config, "dataset.fetch._target_")).startswith("slide.data.build_"):
        config.dataset.fetch = None  # Of earlier versions; datasets/ has the commands.
    for group in composed:
        if group not in config:  # The run is from before there was this group.
            config[group] = composed[group]
    for override in overrides:
        key = override_key(override)
        if key == "resume":
            continue
        old = OmegaConf.select(config, key, default=_NOWHERE)
        if key not in REPLACEABLE or old is _NOWHERE:
            raise ValueError(f"{override}: a resumed run keeps its {key}; start a new one instead")
        new = read_value(override)
        never = {"trainer.epochs": "auto", "trainer.patience": 0}.get(key, _NOWHERE)
        if never in (old, new) and old != new:
            # The rows to learn from would differ, and so would the rates.
            raise ValueError(
                f"{override}: a resumed run keeps {key}={old}; start a new one instead"
            )
        OmegaConf.update(config, key, new)
    config.run_dir = config.resume = folder
    return config


def restarted(
    ranks: Ranks, composed: DictConfig, overrides: Sequence[str], note: FolderNote
) -> tuple[DictConfig, Sequence[str]]:
    """Configuration and overrides of processes that ``torchrun`` has started again: a resumed run.

    Args:
        ranks: the processes of the run.
        composed: from `slide.config.read_config` with ``overrides``.
        overrides: of the command line.
        note: of the run. A folder that was there before the run is in no note, so `build_trainer`
            refuses it also when processes are started again.

    Returns:
        Both as they are, unless the run has got to its first step before.
    """
    if ranks.group.size == 1 or composed.resume is not None:
        return composed, overrides
    if not max(ranks.group.gather(restarts())):
        note.forget()
        return composed, overrides
    folder = note.found()
    if not ranks.group.broadcast(folder is not None and (folder / CONFIG).exists()):
        return composed, overrides
    again = [f"resume={folder}", *(word for word in overrides if override_key(word) in OWN)]
    return read_config(asked_for(again)), again
