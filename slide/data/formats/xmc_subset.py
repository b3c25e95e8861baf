"""Copies rows of a file in XMC text format by their numbers.

The small sets of the repository are one file of all rows, and lists of the rows of each split.
"""

from pathlib import Path

__all__ = ["copy_numbered_rows"]


def copy_numbered_rows(whole: Path, numbers: Path, target: Path) -> None:
    """Copies some rows of a file into a file with a new header.

    Args:
        whole: a file in XMC text format; it is held in memory.
        numbers: a file with a row number, counted from 1, at the beginning of each line.
        target: the file to write.

    Raises:
        ValueError: a file is not as described; the message names it.
    """
    header, *rows = whole.read_bytes().removesuffix(b"\n").split(b"\n")
    fields = header.split()
    if len(fields) != 3 or fields[0] != b"%d" % len(rows):
        raise ValueError(f"{whole.name}: header '{header[:40]!r}' of a file of {len(rows)} rows")
    lines = numbers.read_bytes().splitlines()
    with target.open("wb") as file:
        file.write(b" ".join([b"%d" % len(lines), *fields[1:]]) + b"\n")
        for place, line in enumerate(lines, 1):
            word = (line.split() or [b""])[0]
            number = int(word) if word.isdigit() else 0
            if not 1 <= number <= len(rows):
                raise ValueError(f"{numbers.name}:{place}: no row number in [1, {len(rows)}]")
            file.write(rows[number - 1] + b"\n")
