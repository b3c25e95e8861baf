"""What a server takes, and how long it waits."""

from typing import NamedTuple

from slide.utils import checks


class Limits(NamedTuple):
    """Bounds of requests, batches and waiting times.

    Attributes:
        body_bytes: largest body of a request.
        rows: most rows of a request.
        k: most labels of a row.
        batch_rows: requests that wait are answered together up to this number of rows. A request
            with more rows is a batch of its own.
        batch_wait: seconds that a request waits for others, if the batch before had several
            requests, and unless the batch is full.
        waiting_rows: most rows that wait; further requests are refused.
        timeout: seconds within which a body must arrive, and then seconds for the answer.

    Example:
        >>> from slide.serve import Limits
        >>> Limits(rows=10).checked().rows
        10
    """

    body_bytes: int = 8 << 20
    rows: int = 1024
    k: int = 1000
    batch_rows: int = 256
    batch_wait: float = 0.002
    waiting_rows: int = 8192
    timeout: float = 30.0

    def checked(self) -> "Limits":
        """The same limits.

        Raises:
            ValueError: for a number out of range.
        """
        for name in ("body_bytes", "rows", "k", "batch_rows", "waiting_rows"):
            checks.whole(name, getattr(self, name), 1)
        checks.not_negative("batch_wait", self.batch_wait)
        checks.positive("timeout", self.timeout)
        return self
