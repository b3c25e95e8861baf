"""``slide-compare RUN RUN ...``, also ``python -m slide.compare``: runs side by side."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slide.report.page import draw_comparison
from slide.report.run_files import RunFiles, read_run, referring_keys
from slide.utils.checks import counted, override_key, typed_key
from slide.utils.commands import command_parser, ending_errors
from slide.utils.figures import (
    KIND_METRICS,
    SELECTION_COLUMNS,
    figure_columns,
    terminal_width,
    text_table,
)
from slide.utils.files import write_atomic
from slide.utils.progress_bar import show

_ABOUT = """\
Compares runs of slide-train: the settings that differ, precision, what the look-ups found, time and
memory.

RUN is the folder of a run, such as results/debian/2026-11-21_12-00-00, or a folder of such folders.
Runs that differ in seed alone are one line: means, and standard deviations over the seeds.
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
_SEED = "seed"
# What a run without a key has in its column.
_UNKNOWN = "-"
# Runs are the lines of a table that is this narrow, or narrower than one with a column for each.
_WIDTH = 100


def main(words: Sequence[str] | None = None) -> None:
    """Compares runs; errors end the process with a sentence, Ctrl-C with the exit status 130."""
    parser = command_parser("compare", _ABOUT)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folder of a run, or of runs")
    about = "draw precision over seconds and over steps; .png, .svg or .pdf"
    parser.add_argument("--plot", metavar="FILE", help=about)
    options = parser.parse_args(words)
    with ending_errors():
        runs = [read_run(folder) for folder in find_runs(map(Path, options.runs))]
        show(compare(runs))
        if options.plot is not None:
            groups = by_seeds(runs)
            figure, path = draw_comparison(groups, names_of(groups)), Path(options.plot)
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

    It has a line for each run, or for runs of several seeds, or a column for each if that is
    narrower. What is wider than the terminal goes on below.
    """
    groups, at = by_seeds(runs), {run.folder: i for i, run in enumerate(runs)}
    columns = {"run": names_of(groups)}
    for key, cells in differing(runs).items():
        each = ([cells[at[run.folder]] for run in group] for group in groups)
        columns[key] = [", ".join(dict.fromkeys(values)) for values in each]
    columns |= figure_columns([_together(group) for group in groups], _FACTS)
    by_key = [[name, *cells] for name, cells in columns.items()]
    by_run = list(zip(*by_key, strict=True))
    whole = (text_table(each, sys.maxsize) for each in (by_key, by_run))
    wide, narrow = (max(map(len, table.splitlines())) for table in whole)
    width = terminal_width()
    return text_table(by_run if wide > max(min(_WIDTH, width), narrow) else by_key, width)


def by_seeds(runs: Sequence[RunFiles]) -> list[list[RunFiles]]:
    """Finished runs that differ in ``seed`` alone, together; each other run alone."""
    settings = differing(runs)
    seeds, found = settings.pop(_SEED, []), dict[Any, list[int]]()
    for i, run in enumerate(runs):
        same = tuple(cells[i] for cells in settings.values()) if run.summary else run.folder
        found.setdefault(same, []).append(i)
    groups = list[list[int]]()
    for group in found.values():
        distinct = seeds and len({seeds[i] for i in group}) == len(group)
        groups += [group] if distinct else [[i] for i in group]
    return [[runs[i] for i in group] for group in sorted(groups)]


def _together(group: Sequence[RunFiles]) -> dict[str, Any]:
    """The figures of a run, or of several: a list for each."""
    if len(group) == 1:
        return group[0].summary
    names = {name for run in group for name in run.summary if name in _FACTS.values()}
    values = {name: [run.summary.get(name) for run in group] for name in names}
    known = {name: [x for x in each if x is not None] for name, each in values.items()}
    return {name: each if any(each) else 0 for name, each in known.items() if each}


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


def names_of(groups: Sequence[Sequence[RunFiles]]) -> list[str]:
    """What to call runs of several seeds: as the first folder, by its path if names are equal."""
    folders = [group[0].folder for group in groups]
    names = [folder.name for folder in folders]
    names = names if len(set(names)) == len(names) else list(map(str, folders))
    more = [len(group) - 1 for group in groups]
    pairs = zip(names, more, strict=True)
    return [f"{name} and {counted(n, 'other seed')}" if n else name for name, n in pairs]


if __name__ == "__main__":
    main()
