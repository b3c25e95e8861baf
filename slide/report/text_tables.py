"""Tables as plain text, for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

# Figures of a run's summary about the choice of outputs, by the heads of their columns.
SELECTION_COLUMNS = {
    "outputs a set": "active_mean",
    "looked up": "candidates",
    "recall": "recall_at_10",
    "by chance": "chance_recall_at_10",
    "rows looked at": "rows_seen_share",
    "rebuilds": "rebuilds",
    "rebuilds, s": "rebuild_seconds",
}


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns side by side; the last line has no line feed.

    Args:
        head: names of the columns.
        rows: as many cells each.

    Example:
        >>> from slide.report.text_tables import text_table
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


def figure_columns(
    summaries: Sequence[Mapping[str, Any]], names: Mapping[str, str]
) -> dict[str, list[str]]:
    """The cells of columns of figures; a column in which all are missing or 0 is left out.

    Args:
        summaries: of runs; empty for one that has not ended.
        names: of the figures in a summary, by the heads of their columns.

    Example:
        >>> from slide.report.text_tables import figure_columns
        >>> figure_columns([{"p_at_1": 0.5}, {}], {"P@1": "p_at_1", "steps": "steps"})
        {'P@1': ['0.5000', '']}
    """
    values = {head: [each.get(name) for each in summaries] for head, name in names.items()}
    return {
        head: [figure(value, names[head]) for value in column]
        for head, column in values.items()
        if any(value not in (None, 0) for value in column)
    }


def figure(value: float | None, name: str) -> str:
    """A figure of a run's summary as a cell.

    Args:
        value: None: an empty cell.
        name: of the figure; it tells scores, such as ``p_at_1``, and shares, such as
            ``rows_seen_share``, from seconds and counts.

    Example:
        >>> from slide.report.text_tables import figure
        >>> figure(0.5, "p_at_1"), figure(1234.56, "train_seconds"), figure(1200, "steps")
        ('0.5000', '1,234.6', '1,200')
    """
    if value is None:
        return ""
    if "_at_" in name:
        return f"{value:.4f}"
    if name.endswith("_share"):
        return f"{value:.1%}"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
