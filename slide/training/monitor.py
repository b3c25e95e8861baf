"""What a run records: its counters, its log (JSON lines and TensorBoard events), its summary."""

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slide.training.loggers import Logger
from slide.utils.checks import shortened
from slide.utils.files import write_json, write_text
from slide.utils.progress_bar import log
from slide.utils.run_folders import read_log

SUMMARY = "summary.json"
EVENTS = "events.out.tfevents"  # How names of files of events begin.
_NUMBERED = re.compile(rf"{re.escape(EVENTS)}\.(\d{{10}})\.")


@dataclass
class Counters:
    """Sums since the start of a run; a resumed run continues them. They are in the checkpoint."""

    step: int = 0
    samples: int = 0
    active_total: float = 0.0  # Over the steps, mean sizes of the output layer's active sets.
    loss_total: float = 0.0
    network_seconds: float = 0.0  # Of the steps, with rebuilds: the first part of training.
    exchange_seconds: float = 0.0  # The part of these for exchanges between processes.
    rebuild_seconds: float = 0.0  # The part of these in which samplers updated their indexes.
    validation_seconds: float = 0.0  # Of evaluation on held-out samples: the second part.
    eval_seconds: float = 0.0
    ranker_seconds: float = 0.0  # Of training the re-ranker: the third part.
    measuring_seconds: float = 0.0  # Of measurements for the log, in none of the others.
    compile_seconds: float = 0.0  # Of compiling kernels, in none of the others.
    # At the last validation step, precision on all held-out samples less that on the part of them
    # whose precision is measured more often.
    held_offset: float = 0.0

    @property
    def train_seconds(self) -> float:
        """Seconds of all training: steps, evaluation on held-out samples, re-ranker."""
        return self.network_seconds + self.validation_seconds + self.ranker_seconds

    def __sub__(self, before: "Counters") -> "Counters":
        earlier = asdict(before)
        return Counters(**{name: value - earlier[name] for name, value in asdict(self).items()})


def log_scalars(
    now: Counters, before: Counters, rate: float, steps_per_epoch: int
) -> dict[str, float]:
    """Scalars for the log, of the steps since the counters ``before``."""
    part = now - before
    return {
        "train/loss": part.loss_total / part.step,
        "train/learning_rate": rate,
        "train/epoch": now.step / steps_per_epoch,
        "train/seconds": now.network_seconds,
        "speed/samples_per_second": part.samples / part.network_seconds,
        "speed/rebuild_share": part.rebuild_seconds / part.network_seconds,
        "selection/active_mean": part.active_total / part.step,
    }


class EventFile:
    """Events for TensorBoard, written at once: its own writer has a thread, whose errors are lost.

    TensorBoard drops the events from ``purge_step`` on that are in earlier files of the folder.
    """

    def __init__(self, folder: Path, purge_step: int):
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        # TensorBoard reads files in the order of their names, and a clock may have been set back.
        names = (_NUMBERED.match(path.name) for path in folder.glob(f"{EVENTS}.*"))
        number = max([int(time.time()), *(int(name[1]) + 1 for name in names if name)])
        self._file = (folder / f"{EVENTS}.{number:010d}.slide").open("xb")
        self._proto: Any = event_pb2  # Its classes are made when it is imported.
        self._records = RecordWriter(self._file)
        self.write(file_version="brain.Event:2")
        self.write(step=purge_step, session_log={"status": self._proto.SessionLog.START})

    def write(self, **values: Any) -> None:
        """Write an event with these values, and the time."""
        event = self._proto.Event(wall_time=time.time(), **values)
        self._records.write(event.SerializeToString())
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Monitor:
    """Writes scalars to ``metrics.jsonl`` and to TensorBoard events in a run's folder.

    Args:
        folder: folder of the run; None: nothing is written, as on all processes but the first.
        step: number of steps in the checkpoint of a resumed run. Lines of later steps, which an
            interrupted run wrote after its last checkpoint, are removed.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from slide.training import Monitor
        >>> folder = Path(tempfile.mkdtemp())
        >>> monitor = Monitor(folder)
        >>> monitor.write(1, {"train/loss": 0.5})
        >>> monitor.close()
        >>> (folder / "metrics.jsonl").read_text()
        '{"step": 1, "train/loss": 0.5}\\n'
    """

    def __init__(self, folder: Path | None, step: int = 0):
        self._silent, self._loggers = folder is None, list[Logger]()
        if folder is None:
            return
        self._folder, self._path = folder, folder / "metrics.jsonl"
        kept = [line for line in read_log(self._path) if line["step"] <= step]
        # What a killed run wrote after its last step it writes again: its last evaluation.
        self._again = {tuple(line) for line in kept if line["step"] == step}
        self._open(kept, step + 1)

    def _open(self, lines: list[dict[str, float]], purge_step: int) -> None:
        """Begin both files with these lines; events from ``purge_step`` on are written anew."""
        with self._explained_errors(self._path):
            write_text(self._path, "".join(json.dumps(line) + "\n" for line in lines))
            self._file = self._path.open("a", buffering=1)
        with self._explained_errors(self._folder / EVENTS):
            self._events = EventFile(self._folder, purge_step)
        for line in lines:
            if line["step"] >= purge_step:
                self._add_events(line)

    def add(self, logger: Logger, settings: Mapping[str, Any]) -> None:
        """Let a further log have the scalars so far, and all that follow.

        An error ends the run if the log cannot begin; later ones end this log alone.
        """
        if self._silent:
            return
        try:
            logger.begin(self._folder, settings)
        except Exception as error:  # Each package has its own.
            raise ValueError(f"{type(logger).__name__} cannot begin: {shortened(error)}") from error
        self._loggers.append(logger)
        for line in self.scalars():
            self._tell(line)

    def _tell(self, line: dict[str, float]) -> None:
        """Give a line to the further logs."""
        values = {name: value for name, value in line.items() if name != "step"}
        for logger in [*self._loggers]:
            try:
                logger.log(int(line["step"]), values)
            except Exception as error:  # A run of days does not end because a server is gone.
                self._loggers.remove(logger)
                log(f"warning   {type(logger).__name__} has ended: {shortened(error)}")

    def scalars(self) -> list[dict[str, float]]:
        """The lines of the log so far: ``step``, and scalars by name."""
        return [] if self._silent else read_log(self._path)

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Write scalars, named ``group/name``, that belong to the time after ``step`` steps.

        They replace the same scalars of that step that were written before the run was resumed. An
        error, as of a full disk, is an OSError.
        """
        if self._silent:
            return
        line = {"step": step, **scalars}
        if tuple(line) in self._again:
            self._forget(line)
        self._check_folder()
        with self._explained_errors(self._path):
            self._file.write(json.dumps(line) + "\n")
        self._add_events(line)
        self._tell(line)

    def _check_folder(self) -> None:
        """Raise OSError if the log has another place: an open file takes lines all the same."""
        try:
            there = os.path.samestat(self._path.stat(), os.fstat(self._file.fileno()))
        except FileNotFoundError:
            there = False
        if not there:
            raise FileNotFoundError(
                f"{self._folder} was removed or renamed while the run wrote into it: a run that is "
                "renamed goes on from its last checkpoint, by resume=<folder>"
            )

    @contextmanager
    def _explained_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            said = f"cannot write the log {path}: {error}; checkpoints are kept"
            raise OSError(said) from error

    def _forget(self, line: dict[str, float]) -> None:
        self._again.remove(tuple(line))
        step, lines = int(line["step"]), read_log(self._path)
        kept = [old for old in lines if old["step"] < step or tuple(old) != tuple(line)]
        if len(kept) < len(lines):
            self._close_files()
            self._open(kept, step)

    def _add_events(self, line: dict[str, float]) -> None:
        values = [{"tag": name, "simple_value": x} for name, x in line.items() if name != "step"]
        with self._explained_errors(self._folder / EVENTS):
            self._events.write(step=int(line["step"]), summary={"value": values})

    def note_settings(
        self, settings: dict[str, bool | int | float | str], reranked: bool = False
    ) -> None:
        """Let TensorBoard show these settings beside the scores of the run (page HParams)."""
        if self._silent:
            return
        from torch.utils.tensorboard.summary import hparams

        # TensorBoard takes the last values of scalars of these names in the log.
        parts = ("eval", "reranked") if reranked else ("eval",)
        scores = {f"{part}/{score}": 0.0 for part in parts for score in ("p_at_1", "p_at_5")}
        with self._explained_errors(self._folder / EVENTS):
            for part in hparams(settings, scores):
                self._events.write(summary=part)

    def close(self) -> None:
        """Close both files and the further logs."""
        if self._silent:
            return
        self._close_files()
        while self._loggers:
            logger = self._loggers.pop()
            try:
                logger.close()
            except Exception as error:
                log(f"warning   {type(logger).__name__} was not closed: {shortened(error)}")

    def _close_files(self) -> None:
        with suppress(OSError):  # Each line was written at once, or its error was raised.
            self._file.close()
        with suppress(OSError):
            self._events.close()


def write_summary(folder: Path, summary: dict[str, Any]) -> None:
    """Write ``summary.json``."""
    write_json(folder / SUMMARY, summary)
