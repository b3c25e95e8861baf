"""Rows of a file in XMC text format by their numbers, as the small sets of its repository come."""

from pathlib import Path

__all__ = ["copy_numbered_rows"]


def copy_numbered_rows(whole: Path, numbers: Path, target: Path, column: int = 0) -> None:
    """Writes some rows of a file, with a header of their own.

    Args:
        whole: a file in XMC text format; it is held in memory.
        numbers: a line for each row to take; each of its columns is a selection of its own, of
            row numbers from 1.
        target: the file to write.
        column: the selection to take.

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
            words = line.split()
            number = int(words[column]) if column < len(words) and words[column].isdigit() else 0
            if not 1 <= number <= len(rows):
                raise ValueError(f"{numbers.name}:{place}: no row number in [1, {len(rows)}]")
            file.write(rows[number - 1] + b"\n")
