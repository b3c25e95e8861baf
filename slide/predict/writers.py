"""Answers as lines of JSON, text of the extreme classification repository, or a SciPy matrix."""

import json
import os
from typing import IO

import numpy as np

from slide.model import Names
from slide.sparse import row_bounds

ANSWER_FORMATS = ("jsonl", "xmc", "npz")
# The first line of text has room for any number of rows, which is written in the end.
_ROOM = 20


class AnswerWriter:
    """Writes answers block by block.

    Args:
        file: opened for bytes.
        format: one of `ANSWER_FORMATS`.
        num_labels: N.
        names: names of the labels, for lines of JSON; None: numbers.
        first_label: number of the first label in text and lines of JSON; a matrix begins at 0.

    Raises:
        ValueError: for a format that needs a file in which one can go back and write.
    """

    def __init__(
        self,
        file: IO[bytes],
        format: str,
        num_labels: int,
        names: Names | None,
        first_label: int = 0,
    ):
        if format != "jsonl" and not file.seekable():
            raise ValueError(f"{format} needs a file: --output")
        if format != "jsonl" and _only_appends(file):
            raise ValueError(f"{format} cannot be appended to a file: --output")
        self.file, self.format, self.num_labels, self.names = file, format, num_labels, names
        self.first_label, self.rows = first_label, 0
        self._parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        # Others may have written before into the file that is standard output, and may after.
        self._begin = file.tell() if format == "xmc" else 0
        if format == "xmc":
            self._write_header()

    def write(self, ids: np.ndarray, scores: np.ndarray) -> None:
        """Write the answers to some rows.

        Args:
            ids: ``(B, k)`` int64, best first; -1: none.
            scores: ``(B, k)``.
        """
        self.rows += len(ids)
        known = ids >= 0
        if self.format == "npz":
            self._parts.append((known.sum(1), ids[known].astype(np.int32), scores[known]))
            return
        line = self._json_line if self.format == "jsonl" else self._text_line
        lines = [line(i[m], s[m]) for i, s, m in zip(ids, scores, known, strict=True)]
        self.file.write("".join(lines).encode())
        self.file.flush()

    def _json_line(self, ids: np.ndarray, scores: np.ndarray) -> str:
        labels = ids + self.first_label if self.names is None else self.names.take(ids)
        shown = [float(f"{score:.6g}") for score in scores]
        return json.dumps({"labels": labels.tolist(), "scores": shown}, ensure_ascii=False) + "\n"

    def _text_line(self, ids: np.ndarray, scores: np.ndarray) -> str:
        labels = ids + self.first_label
        pairs = (f"{i}:{score:.6g}" for i, score in zip(labels, scores, strict=True))
        return " ".join(pairs) + "\n"

    def _write_header(self) -> None:
        self.file.seek(self._begin)
        self.file.write(f"{self.rows} {self.num_labels}".ljust(_ROOM + _ROOM).encode() + b"\n")

    def close(self) -> None:
        """Write what needs the number of all rows."""
        if self.format == "xmc":
            end = self.file.tell()
            self._write_header()
            self.file.seek(end)
        elif self.format == "npz":
            self._save_matrix()
        self.file.flush()

    def _save_matrix(self) -> None:
        import scipy.sparse

        sizes, ids, scores = (
            np.concatenate([np.empty(0, dtype), *(part[at] for part in self._parts)])
            for at, dtype in enumerate((np.int64, np.int32, np.float64))
        )
        matrix = scipy.sparse.csr_array(
            (scores, ids, row_bounds(sizes)), (self.rows, self.num_labels)
        )
        matrix.sort_indices()
        scipy.sparse.save_npz(self.file, matrix)


def _only_appends(file: IO[bytes]) -> bool:
    """Whether all that is written goes to the end of the file, as after ``>>`` in a shell."""
    try:
        import fcntl  # Not on Windows.

        return bool(fcntl.fcntl(file.fileno(), fcntl.F_GETFL) & os.O_APPEND)
    except (ImportError, OSError):  # A file in memory has no number.
        return False
