"""Further logs of a run, beside its ``metrics.jsonl`` and its events for TensorBoard."""

import csv
import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from slide.utils import checks
from slide.utils.sizes import flat

METRICS_CSV = "metrics.csv"
# What MLflow takes: parameters in a request, characters of a value, and characters of a name.
_PARAMETERS, _LONGEST_VALUE, _NO_NAME = 100, 500, re.compile(r"[^\w/. -]")


class Logger(Protocol):
    """Takes the scalars of a run. `slide.training.Monitor.add` gives a run one.

    Example:
        >>> from slide.training import Monitor
        >>> class Printed:
        ...     def begin(self, folder, settings): print("run", folder)
        ...     def log(self, step, values): print(step, values)
        ...     def close(self): print("end")
        >>> import pathlib, tempfile
        >>> monitor = Monitor(pathlib.Path(tempfile.mkdtemp()))
        >>> monitor.write(1, {"train/loss": 0.5})
        >>> monitor.add(Printed(), {"seed": 0})  # doctest: +ELLIPSIS
        run ...
        1 {'train/loss': 0.5}
        >>> monitor.close()
        end
    """

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Called once, with the folder of the run and its settings, which may be nested."""
        ...

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Scalars by name, that belong to the time after ``step`` steps, which never fall."""
        ...

    def close(self) -> None:
        """Called at the end of the run, or where it is interrupted."""
        ...


class CSVLogger:
    """Writes ``metrics.csv`` into the folder of the run: step, name, value."""

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Begin the file anew."""
        self._file = (folder / METRICS_CSV).open("w", buffering=1, encoding="utf-8", newline="")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._writer.writerow(("step", "name", "value"))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write a line for each scalar."""
        self._writer.writerows((step, *each) for each in values.items())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class WandbLogger:
    """Writes a run of Weights & Biases, in the project WANDB_PROJECT, or else slide."""

    def __init__(self):
        import wandb  # pyright: ignore[reportMissingImports]

        self._wandb: Any = wandb

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Begin a run."""
        quiet = self._wandb.Settings(console="off", silent=True)
        self._run = self._wandb.init(
            project=os.environ.get("WANDB_PROJECT", "slide"),
            name=folder.name,
            config=dict(settings),
            reinit="create_new",  # A sweep has several runs in one process.
            settings=quiet,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Send the rest."""
        self._run.finish()


class MLflowLogger:
    """Writes a run of MLflow, in the experiment MLFLOW_EXPERIMENT_NAME, or else slide."""

    def __init__(self):
        from mlflow import MlflowClient, entities  # pyright: ignore[reportMissingImports]

        self._client: Any = MlflowClient
        self._entities: Any = entities

    def begin(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Begin a run, and note the settings as its parameters."""
        self._client = self._client()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "slide")
        found = self._client.get_experiment_by_name(name)
        place = self._client.create_experiment(name) if found is None else found.experiment_id
        self._run = self._client.create_run(place, run_name=folder.name).info.run_id
        given = [
            self._entities.Param(_NO_NAME.sub("_", key), str(value)[:_LONGEST_VALUE])
            for key, value in flat(settings).items()
        ]
        for start in range(0, len(given), _PARAMETERS):
            self._client.log_batch(self._run, params=given[start : start + _PARAMETERS])

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write scalars."""
        now, metric = int(1000 * time.time()), self._entities.Metric
        given = [metric(_NO_NAME.sub("_", name), x, now, step) for name, x in values.items()]
        self._client.log_batch(self._run, metrics=given)

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._run)


_LOGGERS = {"csv": CSVLogger, "wandb": WandbLogger, "mlflow": MLflowLogger}


def make_loggers(names: str | Sequence[str] | None) -> list[Logger]:
    """The loggers of these names: csv, wandb and mlflow.

    Raises:
        ValueError: for another name, or if the package of one is not installed.

    Example:
        >>> from slide.training.loggers import make_loggers
        >>> [type(each).__name__ for each in make_loggers("csv")]
        ['CSVLogger']
    """
    names = [names] if isinstance(names, str) else names or []
    checks.listing("logger", names)
    for name in names:
        checks.one_of("logger", name, _LOGGERS)
    return [_make_logger(name) for name in dict.fromkeys(names)]


def _make_logger(name: str) -> Logger:
    try:
        return _LOGGERS[name]()
    except ImportError as error:
        told = f"logger={name} needs {name}: pip install 'slide-xmc[{name}]'"
        raise ValueError(told) from error
