"""Tables as plain text, for the terminal."""

from collections.abc import Sequence


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side; the last line has no line feed.

    Args:
        head: names of the columns.
        rows: as many cells each.

    Example:
        >>> from slide.tables import text_table
        >>> print(text_table(["run", "P@1"], [["a", "0.5000"], ["longer", "0.2500"]]))
        run     P@1
        a       0.5000
        longer  0.2500
    """
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
