"""A file or a pipe whose first lines are known before it is read."""

import io
from collections.abc import Iterator
from typing import IO

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Beginning:
    """Gives the bytes of a file from the first one on, but for a byte order mark.

    It reads lines until one is not blank. Of a pipe, a line may come in several pieces.

    Args:
        file: opened for bytes, and not read yet.

    Attributes:
        first: the first line; empty if the file is.
        telling: the first line that is not blank; empty if there is none.

    Example:
        >>> import io
        >>> from slide.predict.beginning import Beginning
        >>> file = Beginning(io.BytesIO(b"\\n{}\\nmore"))
        >>> file.first, file.telling, list(file)
        (b'\\n', b'{}\\n', [b'\\n', b'{}\\n', b'more'])
    """

    def __init__(self, file: IO[bytes]):
        self._file = file
        self.first = self.telling = line = file.readline().removeprefix(_BYTE_ORDER_MARK)
        lines = [line]
        while line and not line.strip():
            self.telling = line = file.readline()
            lines.append(line)
        self._before = b"".join(lines)

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes, none only at the end."""
        if not self._before:
            return self._file.read(size)
        piece, self._before = self._before[:size], self._before[size:]
        return piece

    def readline(self) -> bytes:
        """The next line."""
        if not self._before:
            return self._file.readline()
        line, newline, self._before = self._before.partition(b"\n")
        return line + newline

    def __iter__(self) -> Iterator[bytes]:
        before, self._before = self._before, b""
        yield from io.BytesIO(before)
        yield from self._file
