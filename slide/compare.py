"""``slide-compare RUN RUN ...``, also ``python -m slide.compare``: runs side by side."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slide.report.page import draw_comparison
from slide.report.run_files import (
    KIND_METRICS,
    SELECTION_COLUMNS,
    RunFiles,
    figure_columns,
    read_run,
    referring_keys,
    terminal_width,
    text_table,
)
from slide.utils.checks import override_key, typed_key
from slide.utils.commands import command_parser, ending_errors
from slide.utils.files import write_atomic
from slide.utils.progress_bar import show

_ABOUT = """\
Compares runs of slide-train: the settings that differ, precision, what the look-ups found, time and
memory.

RUN is the folder of a run, such as results/debian/2026-11-21_12-00-00, or a folder of such folders.
"""
# What a run has reached, by its name in the summary.
_FACTS = {
    "P@1": "p_at_1",
    "P@3": "p_at_3",
    "P@5": "p_at_5",
    "PSP@5": "psp_at_5",
    "network P@1": "network_p_at_1",
    **KIND_METRICS,
    **SELECTION_COLUMNS,
    "steps": "steps",
    "epochs": "epochs",
    "training, s": "train_seconds",
    "re-ranker, s": "ranker_seconds",
    "evaluation, s": "eval_seconds",
    "rows/s": "samples_per_second",
    "memory, MiB": "peak_rss_mb",
}
# Where a run reads and writes; it differs without making a difference.
_PATHS = ("run_dir", "resume", "report", "dataset.root", "dataset.cache")
# What a run without a key has in its column.
_UNKNOWN = "-"
# Runs are the lines of a table that is this narrow, or narrower than one with a column for each.
_WIDTH = 100


def main(words: Sequence[str] | None = None) -> None:
    """Compares runs; errors end the process with a sentence, Ctrl-C with the exit status 130."""
    parser = command_parser("compare", _ABOUT)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folder of a run, or of runs")
    about = "draw loss and precision over steps and over seconds; .png, .svg or .pdf"
    parser.add_argument("--plot", metavar="FILE", help=about)
    options = parser.parse_args(words)
    with ending_errors():
        runs = [read_run(folder) for folder in find_runs(map(Path, options.runs))]
        show(compare(runs))
        if options.plot is not None:
            figure, path = draw_comparison(runs, names_of(runs)), Path(options.plot)
            path = path if path.suffix else path.with_suffix(".png")
            kind = path.suffix[1:]
            write_atomic(path.resolve(), lambda file: figure.savefig(file, dpi=150, format=kind))


def find_runs(folders: Any) -> list[Path]:
    """The folders of runs: each one as it is, or the runs that lie somewhere in it, by name."""
    found: list[Path] = []
    for folder in folders:
        inside = sorted(path.parent for path in folder.rglob("config.yaml"))
        if not inside or (folder / "config.yaml").exists():
            inside = [folder]
        found += [each for each in inside if each not in found]
    return found


def compare(runs: Sequence[RunFiles]) -> str:
    """A table of the settings that differ, and of what the runs have reached.

    It has a line for each run, or a column for each if that is narrower. What is wider than the
    terminal goes on below.
    """
    columns = {"run": names_of(runs)}
    columns |= differing(runs) | figure_columns([run.summary for run in runs], _FACTS)
    by_key = [[name, *cells] for name, cells in columns.items()]
    by_run = list(zip(*by_key, strict=True))
    whole = (text_table(each, sys.maxsize) for each in (by_key, by_run))
    wide, narrow = (max(map(len, table.splitlines())) for table in whole)
    width = terminal_width()
    return text_table(by_run if wide > max(min(_WIDTH, width), narrow) else by_key, width)


def differing(runs: Sequence[RunFiles]) -> dict[str, list[str]]:
    """The keys that differ between runs as a user types them, with their values.

    Keys whose values follow from other keys are left out.
    """
    found = _differing([run.choices for run in runs])
    found = {key: each for key, each in found.items() if len({*each} - {_UNKNOWN}) > 1}
    words = [word.lstrip("~") for run in runs for word in run.words]
    typed = {override_key(word): typed_key(word) for word in words}
    chosen, follow = set(found), tuple(f"{key}." for key in referring_keys())
    for key, each in _differing([run.values for run in runs]).items():
        follows = key.partition(".")[0] in chosen or f"{key}.".startswith(follow)
        if key not in _PATHS and (key in typed or not follows):
            found[typed.get(key, key)] = each
    return found


def _differing(settings: Sequence[dict[str, str]]) -> dict[str, list[str]]:
    keys = dict.fromkeys(key for each in settings for key in each)
    values = {key: [each.get(key, _UNKNOWN) for each in settings] for key in keys}
    return {key: each for key, each in values.items() if len(set(each)) > 1}


def names_of(runs: Sequence[RunFiles]) -> list[str]:
    """What to call the runs: the names of their folders, or the whole paths if these are equal."""
    names = [run.folder.name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.folder) for run in runs]


if __name__ == "__main__":
    main()
