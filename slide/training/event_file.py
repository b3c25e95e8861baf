"""Events for TensorBoard, in a file that is written at once and by the caller."""

import os
import socket
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

_numbers = count()


class EventFile:
    """A new file of TensorBoard events in the folder of a run.

    TensorBoard's own writer has a thread. When a disk is full, that thread ends with a traceback,
    and the run would learn of it later. Here the one who writes gets the error.

    Args:
        folder: folder of the run; it must exist.
        purge_step: TensorBoard forgets events of this step and later ones in files before.

    Attributes:
        path: the file.

    Raises:
        OSError: if it cannot be written.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from slide.training.event_file import EventFile
        >>> events = EventFile(Path(tempfile.mkdtemp()), purge_step=1)
        >>> events.add_scalars(1, {"train/loss": 0.5})
        >>> events.close()
        >>> events.path.stat().st_size > 0
        True
    """

    def __init__(self, folder: Path, purge_step: int):
        # Imported here, because it takes a second.
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        # Types of messages, which are made when the module is imported.
        self._messages: Any = event_pb2
        self._summaries: Any = summary_pb2
        words = f"{int(time.time()):010d}", socket.gethostname(), os.getpid(), next(_numbers)
        self.path = folder / ".".join(["events.out.tfevents", *map(str, words)])
        self._file = self.path.open("wb")
        self._records = RecordWriter(self._file)
        try:
            self._add(file_version="brain.Event:2", step=purge_step)
            log = self._messages.SessionLog
            self._add(session_log=log(status=log.START), step=purge_step)
            self._file.flush()
        except OSError:
            self.close()
            raise

    def add_scalars(self, step: int, scalars: dict[str, float]) -> None:
        """Write scalars of the time after ``step`` steps.

        Raises:
            OSError: if they cannot be written.
        """
        kind = self._summaries.Summary
        values = [kind.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self.add_summaries([kind(value=values)], step=step)

    def add_summaries(self, summaries: list[Any], **more: Any) -> None:
        """Write summaries of TensorBoard.

        Args:
            summaries: messages of type ``Summary``.
            more: other fields of their events.

        Raises:
            OSError: if they cannot be written.
        """
        for summary in summaries:
            self._add(summary=summary, **more)
        self._file.flush()

    def _add(self, **fields: Any) -> None:
        event = self._messages.Event(wall_time=time.time(), **fields)
        self._records.write(event.SerializeToString())

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):  # All was written before, or its error was raised.
            self._file.close()
