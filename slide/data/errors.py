"""What all readers raise."""

__all__ = ["DataError"]


class DataError(ValueError):
    """A data file that is not as it should be.

    The message begins with ``path: ``, or with ``path:line: `` for a line of a text file.
    """
