"""The error that all readers raise."""

__all__ = ["DataError"]


class DataError(ValueError):
    r"""A data file is malformed, or it is another file than expected.

    The message begins with ``path: ``, or with ``path:line: `` for a line of a text file.

    Example:
        >>> import pathlib, tempfile
        >>> from slide.data import DataError, xmc
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("train.txt", "test.txt"):
        ...         _ = pathlib.Path(folder, name).write_text("1 3 2\n0 7:1\n")
        ...     try:
        ...         xmc(name="mine", root=folder, cache=folder)
        ...     except DataError as error:
        ...         print(error)
        /...train.txt:2: feature 7 is not in [0, 3)
    """
