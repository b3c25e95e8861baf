"""What the folder of a run says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from slide.utils.checks import shortened, typed_value
from slide.utils.files import read_text
from slide.utils.run_folders import check_plain_yaml, read_log
from slide.utils.sizes import find_conf, flat

_CONFIG, _LOG, _SUMMARY = "config.yaml", "metrics.jsonl", "summary.json"

# What a run notes of its command line.
_COMMAND = "command."
# Parts of keys that say what a file builds, or what to do where a data set is missing.
_INTERNAL = {"_target_", "_partial_", "_args_", "hint"}

_Number = int | float
# What of a summary is no figure; other objects and lists in it are for nobody here.
_KINDS: dict[str, Any] = dict.fromkeys(("dataset", "kind", "evaluated_on", "date", "products"), str)
_KINDS["warnings"] = list


class RunFiles(NamedTuple):
    """A run.

    Attributes:
        folder: where it was read from.
        summary: of a finished run; else empty.
        settings: values by dotted key.
        log: lines of the log: ``step``, and scalars by name.

    Example:
        >>> from pathlib import Path
        >>> from slide.report import RunFiles
        >>> run = RunFiles(Path("results/a"), {}, {"seed": 1}, [{"step": 20, "train/loss": 0.5}])
        >>> run.settings["seed"], run.curve("train/loss")
        (1, ([20], [0.5]))
    """

    folder: Path
    summary: dict[str, Any]
    settings: dict[str, Any]
    log: list[dict[str, float]]

    @property
    def words(self) -> list[str]:
        """The words of the command line; anybody may have written something else into the file."""
        words = self.settings.get(f"{_COMMAND}words")
        return [each for each in words if isinstance(each, str)] if isinstance(words, list) else []

    @property
    def choices(self) -> dict[str, str]:
        """The choice of each group, as it is typed; of old runs none."""
        above = f"{_COMMAND}choices."
        return {
            key.removeprefix(above): "null" if value == "None" else typed_value(value)
            for key, value in self.settings.items()
            if key.startswith(above)
        }

    @property
    def values(self) -> dict[str, str]:
        """The values of the keys that a user may type, as they are typed."""
        return {
            key: typed_value(value)
            for key, value in self.settings.items()
            if not key.startswith(_COMMAND) and _INTERNAL.isdisjoint(key.split("."))
        }

    def curve(self, name: str) -> tuple[list[float], list[float]]:
        """The steps at which a scalar was written, and its values."""
        lines = [line for line in self.log if name in line]
        return [line["step"] for line in lines], [line[name] for line in lines]

    def seconds_at(self, steps: list[float]) -> list[float]:
        """Seconds of the network's training after these steps; straight lines between log lines."""
        known, seconds = ([0.0, *part] for part in self.curve("train/seconds"))
        if "steps" in self.summary and "network_seconds" in self.summary:
            known.append(self.summary["steps"])
            seconds.append(self.summary["network_seconds"])
        return np.interp(steps, known, seconds).tolist()


def read_run(folder: Path) -> RunFiles:
    """Read the folder of a run.

    Args:
        folder: a folder that ``train.py`` wrote.

    Raises:
        FileNotFoundError: if it is no folder of a run.
        ValueError: if a file in it cannot be read.

    Example:
        >>> import pathlib, tempfile
        >>> from slide.report import read_run
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "config.yaml").write_text("trainer: {epochs: 3}")
        >>> read_run(folder).settings
        {'trainer.epochs': 3}
    """
    if not (folder / _CONFIG).is_file():
        raise FileNotFoundError(f"{folder} is no folder of a run: there is no {_CONFIG} in it")
    settings = _read_object(folder / _CONFIG, _parsed_yaml)
    summary = {}
    if (folder / _SUMMARY).is_file():
        found = _read_object(folder / _SUMMARY, json.loads)
        summary = _with_parts(_known(folder / _SUMMARY, found))
    log = [line for line in read_log(folder / _LOG) if not any(map(_too_large, line.values()))]
    return RunFiles(folder, summary, flat(settings), log)


def _known(path: Path, summary: dict[str, Any]) -> dict[str, Any]:
    """The figures and texts of a summary; ValueError if one of them is something else."""
    for name, value in summary.items():
        kind = _KINDS.get(name, _Number | dict | list | None)
        fits = isinstance(value, kind) and not _too_large(value)
        if not fits or (kind is list and not all(isinstance(each, str) for each in value)):
            raise ValueError(f"{path} cannot be read: {name} is {repr(value)[:60]}")
    return {n: each for n, each in summary.items() if n in _KINDS or isinstance(each, _Number)}


def _parsed_yaml(text: str) -> Any:
    check_plain_yaml(text)
    return yaml.safe_load(text)


def _with_parts(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary, also of the version before, whose ``train_seconds`` were the network's alone."""
    if "train_seconds" not in summary or "network_seconds" in summary:
        return summary
    parts = [summary.get(name, 0.0) for name in ("train_seconds", "held_seconds", "ranker_seconds")]
    names = {"network_seconds": parts[0], "validation_seconds": parts[1]}
    return {**summary, **names, "train_seconds": round(sum(parts), 3)}


def _read_object(path: Path, parsed: Callable[[str], Any]) -> dict[Any, Any]:
    """Values by key."""
    try:
        found = parsed(read_text(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} cannot be read: {shortened(error)}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} cannot be read: it has no values by key")
    return found


def referring_keys() -> tuple[str, ...]:
    """The keys of ``conf/`` whose values are those of other keys, as they are by default."""
    found, conf = [], find_conf()
    for path in conf.rglob("*.yaml"):
        above = "" if path.parent == conf else f"{path.parent.name}."
        values = flat(yaml.safe_load(path.read_text(encoding="utf-8")) or {}, above)
        found += [key for key, value in values.items() if str(value).startswith("${")]
    return tuple(sorted(set(found)))


def _too_large(value: Any) -> bool:
    """Whether it is a number that no run has, and that no picture can hold; NaN is not."""
    return isinstance(value, _Number) and not isinstance(value, bool) and abs(value) > 1e30
