"""The log of a run: TensorBoard events, and lines of JSON."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from slide.utils.files import write_text

EVENTS = "events.out.tfevents"  # How names of files of events begin.
# Scores that TensorBoard's page of settings shows.
SHOWN_SCORES = ("eval/p_at_1", "eval/p_at_5", "reranked/p_at_1", "reranked/p_at_5")


class Monitor:
    """Writes scalars to ``metrics.jsonl`` and to TensorBoard events in a run's folder.

    Args:
        folder: folder of the run; it must exist.
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

    def __init__(self, folder: Path, step: int = 0):
        self._folder, self._path = folder, folder / "metrics.jsonl"
        lines = self._lines() if self._path.exists() else []
        kept = [line for line in lines if _step_of(line) <= step]
        # What a killed run wrote after its last step it writes again: its last evaluation.
        self._again = {tuple(json.loads(line)) for line in kept if _step_of(line) == step}
        self._open(kept, step + 1)

    def _open(self, lines: list[str], purge_step: int) -> None:
        """Begin both files with these lines; events from ``purge_step`` on are written anew."""
        with self._explained_errors(self._path):
            write_text(self._path, "".join(line + "\n" for line in lines))
            self._file = self._path.open("a", buffering=1)
        from torch.utils.tensorboard import SummaryWriter  # Here, because it takes a second.

        with self._explained_errors(self._folder):
            self._events = SummaryWriter(str(self._folder), purge_step=purge_step)
            self._events.flush()
        for line in lines:
            if _step_of(line) >= purge_step:
                self._add_events(**json.loads(line))

    def _lines(self) -> list[str]:
        """The lines of the file; bytes that are no text count as a line that a crash cut off."""
        return self._path.read_text(errors="replace").splitlines()

    def scalars(self) -> list[dict[str, float]]:
        """The lines of the log so far: ``step``, and scalars by name."""
        return [json.loads(line) for line in self._lines() if _step_of(line) < float("inf")]

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Write scalars, named ``group/name``, that belong to the time after ``step`` steps.

        They replace the same scalars of that step that were written before the run was resumed.

        Raises:
            OSError: if they cannot be written, for example on a full disk.
        """
        line = {"step": step, **scalars}
        if tuple(line) in self._again:
            self._forget(line)
        with self._explained_errors(self._path):
            self._file.write(json.dumps(line) + "\n")
        self._add_events(**line)

    @contextmanager
    def _explained_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            said = f"cannot write the log {path}: {error}; checkpoints are kept"
            raise OSError(said) from error

    def _forget(self, line: dict[str, float]) -> None:
        """Remove the line of this step with these names."""
        self._again.remove(tuple(line))
        step, lines = int(line["step"]), self._lines()
        kept = [
            old for old in lines if _step_of(old) < step or tuple(json.loads(old)) != tuple(line)
        ]
        if len(kept) < len(lines):
            self.close()
            self._open(kept, step)

    def _add_events(self, step: int, **scalars: float) -> None:
        with self._explained_errors(self._folder / EVENTS):
            for name, value in scalars.items():
                self._events.add_scalar(name, value, step)
            self._events.flush()  # Raises what the thread of the writer has met.

    def note_settings(self, settings: dict[str, bool | int | float | str]) -> None:
        """Let TensorBoard show the settings of the run beside its scores (its page HParams).

        Args:
            settings: values by key.

        Raises:
            OSError: if they cannot be written.
        """
        from torch.utils.tensorboard.summary import hparams

        # The scalars of these names are in the log: TensorBoard takes their last values.
        with self._explained_errors(self._folder / EVENTS):
            for part in hparams(settings, dict.fromkeys(SHOWN_SCORES, 0.0)):
                self._events._get_file_writer().add_summary(part)
            self._events.flush()

    def close(self) -> None:
        """Close both files."""
        with suppress(OSError):  # Each line was written at once, or its error was raised.
            self._file.close()
        with suppress(OSError):
            self._events.close()


class SilentMonitor(Monitor):
    """Writes nothing: of the processes of a run, one writes the log."""

    def __init__(self) -> None:
        pass

    def scalars(self) -> list[dict[str, float]]:
        """No lines."""
        return []

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Does nothing."""

    def note_settings(self, settings: dict[str, bool | int | float | str]) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


def _step_of(line: str) -> float:
    """The step of a line; infinity for a line that a crash cut off."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
