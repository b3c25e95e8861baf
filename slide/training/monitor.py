"""The log of a run: TensorBoard events, and lines of JSON."""

import json
from pathlib import Path

from slide.files import write_text

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
        # Imported here, because it takes a second.
        from torch.utils.tensorboard import SummaryWriter

        path = folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in lines if _step_of(line) <= step]
        write_text(path, "".join(line + "\n" for line in kept))
        self._file = path.open("a", buffering=1)
        self._events = SummaryWriter(str(folder), purge_step=step + 1)

    def write(self, step: int, scalars: dict[str, float]) -> None:
        """Write scalars, named ``group/name``, that belong to the time after ``step`` steps."""
        self._file.write(json.dumps({"step": step, **scalars}) + "\n")
        for name, value in scalars.items():
            self._events.add_scalar(name, value, step)
        self._events.flush()

    def note_settings(self, settings: dict[str, bool | int | float | str]) -> None:
        """Let TensorBoard show the settings of the run beside its scores (its page HParams).

        Args:
            settings: values by key.
        """
        from torch.utils.tensorboard.summary import hparams

        # The scalars of these names are in the log: TensorBoard takes their last values.
        for part in hparams(settings, dict.fromkeys(SHOWN_SCORES, 0.0)):
            self._events._get_file_writer().add_summary(part)
        self._events.flush()

    def close(self) -> None:
        """Close both files."""
        self._file.close()
        self._events.close()


def _step_of(line: str) -> float:
    """The step of a line; infinity for a line that a crash cut off."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")
