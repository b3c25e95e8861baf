"""The error that all readers raise, and its messages about common mistakes."""

_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_ZIP = b"PK\x03\x04"

# 1 GiB: rows of 100 million features, and lists of JSON in one line, are not longer.
LONGEST_LINE = 1 << 30


class DataError(ValueError):
    """A data file is malformed, or it is another file than expected.

    The message begins with ``path: ``, or with ``path:line: `` for a line of a text file.
    """


def check_not_compressed(begin: bytes, path: str, advice: str = "unpack it first") -> None:
    """Raise DataError if a file begins as one that is compressed."""
    if begin.startswith(_ZIP):
        raise DataError(
            f"{path} is a zip archive: save a workbook of Excel as CSV, read matrices of SciPy as "
            "npz, and unpack others"
        )
    for magic, name in _PACKED.items():
        if begin.startswith(magic):
            raise DataError(f"{path} is compressed by {name}; {advice}")


def check_line_length(size: int, path: str) -> None:
    """Raise DataError if bytes without the end of a line are too many."""
    if size > LONGEST_LINE:
        raise DataError(f"{path}: a line has more than {LONGEST_LINE:,} bytes: is it text?")


def out_of_range(what: str, number: str, first: int, count: int) -> str:
    """What is wrong with the number of a column; a guess if the file may count otherwise."""
    other = {"0": 0 if first == 1 else None, str(first + count): 1 if first == 0 else None}
    begin = other.get(number)
    asked = "" if begin is None else f"; does this file count {what}s from {begin}?"
    return f"{what} {number} is not in [{first}, {first + count}){asked}"
