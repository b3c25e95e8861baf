"""Figures of runs as tables of text."""

import shutil
import sys
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from slide.utils.checks import counted, printable

# Scores of knowledge graphs and of recommenders, by their titles.
KIND_METRICS = {
    **{"MRR": "mrr", "Hits@1": "hits_at_1", "Hits@3": "hits_at_3", "Hits@10": "hits_at_10"},
    **{"Recall@20": "recall_at_20", "nDCG@20": "ndcg_at_20"},
}
# Figures of a run's summary about the choice of outputs, by the heads of their columns.
SELECTION_COLUMNS = {
    "outputs a set": "active_mean",
    "looked up": "candidates",
    "recall": "recall_at_10",
    "by chance": "chance_recall_at_10",
    "rows read": "rows_seen_share",
    "directions": "directions",
    "tables": "num_tables",
    "K": "hashes_per_table",
    "rebuilds": "rebuilds",
    "rebuilds, s": "rebuild_seconds",
}


def terminal_width() -> int:
    """Columns of the terminal that standard output is; a file or a pipe has no end."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def text_table(columns: Sequence[Sequence[str]], width: int, repeated: int = 1) -> str:
    """Columns of cells side by side; the last line has no line feed.

    Where this is wider than ``width``, the table goes on below, with the first ``repeated`` columns
    at the beginning of each part.
    """
    columns = [[printable(cell, "") for cell in cells] for cells in columns]
    padded = [[cell.ljust(max(map(len, cells))) for cell in cells] for cells in columns]
    parts = [padded[:repeated]]
    for column in padded[repeated:]:
        part = [*parts[-1], column]
        if len(parts[-1]) > repeated and sum(len(each[0]) + 2 for each in part) - 2 > width:
            parts.append([*padded[:repeated], column])
        else:
            parts[-1] = part
    tables = (zip(*part, strict=True) for part in parts)
    return "\n\n".join("\n".join("  ".join(line).rstrip() for line in table) for table in tables)


def figure_columns(
    groups: Sequence[Sequence[Mapping[str, Any]]], names: Mapping[str, str]
) -> dict[str, list[list[float]]]:
    """The numbers of summaries by their heads, for each group one of each run that has it.

    A column in which all are missing or 0 is left out.
    """
    found = {
        head: [[run[name] for run in group if run.get(name) is not None] for group in groups]
        for head, name in names.items()
    }
    return {head: column for head, column in found.items() if any(map(any, column))}


def with_seeds(name: str, runs: int) -> str:
    """What to call the runs of some seeds: as the first one."""
    return f"{name} and {counted(runs - 1, 'other seed')}" if runs > 1 else name


def figure(value: float | Sequence[float] | None, name: str) -> str:
    """A figure of a run's summary as a cell; of several, the mean ± the standard deviation."""
    if value is None or value == []:
        return ""
    if isinstance(value, Sequence):
        if len({*value}) == 1:
            return figure(value[0], name)
        return f"{figure(mean(value), name)} ± {figure(stdev(value), name)}"
    if "_at_" in name:
        return f"{value:.4f}"
    if name.endswith("_share"):
        return f"{value:.1%}"
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"
