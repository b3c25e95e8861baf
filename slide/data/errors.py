"""The error that all readers raise, and its messages about common mistakes."""

__all__ = ["DataError", "check_not_compressed", "out_of_range"]

_GZIP = b"\x1f\x8b"


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


def check_not_compressed(begin: bytes, path: str, advice: str = "unpack it first") -> None:
    """Raise DataError if a file begins as one that is compressed by gzip."""
    if begin.startswith(_GZIP):
        raise DataError(f"{path} is compressed by gzip; {advice}")


def out_of_range(what: str, number: str, first: int, count: int) -> str:
    """What is wrong with the number of a column; a guess if the file may count otherwise."""
    other = {"0": 0 if first == 1 else None, str(first + count): 1 if first == 0 else None}
    begin = other.get(number)
    asked = "" if begin is None else f"; does this file count {what}s from {begin}?"
    return f"{what} {number} is not in [{first}, {first + count}){asked}"
