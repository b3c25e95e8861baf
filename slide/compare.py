"""``slide-compare RUN RUN ...``, also ``python -m slide.compare``: runs side by side."""

import csv
import io
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from slide.report.page import draw_comparison
from slide.report.run_files import RunFiles, read_run, referring_keys
from slide.utils.checks import override_key, printable, typed_key
from slide.utils.commands import command_parser, ending_errors
from slide.utils.figures import (
    KIND_METRICS,
    SELECTION_COLUMNS,
    figure,
    figure_columns,
    terminal_width,
    text_table,
    with_seeds,
)
from slide.utils.files import write_atomic, write_text
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
_PATHS = ("run_dir", "resume", "report", "logger", "dataset.root", "dataset.cache")
_SEED = "seed"
# What a run without a key has in its column.
_UNKNOWN = "-"
# What stands for a character that means something to LaTeX: "[" and "*" do so after "\\" alone.
_WORDS = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum"}
_WORDS |= {"<": "less", ">": "greater", "|": "bar"}
_LATEX = str.maketrans(
    {each: f"\\{each}" for each in "{}$&#_%"}
    | {each: f"{{{each}}}" for each in "[*"}
    | {each: f"\\text{word}{{}}" for each, word in _WORDS.items()}
    | {"±": r"$\pm$"}
)
# A spreadsheet takes a cell that begins so for a formula, which may run programs.
_FORMULA = re.compile(r"[=+\-@]")
# Runs are the lines of a table that is this narrow, or narrower than one with a column for each.
_WIDTH = 100


def main(words: Sequence[str] | None = None) -> None:
    """Compares runs; errors end the process with a sentence, Ctrl-C with the exit status 130."""
    parser = command_parser("compare", _ABOUT)
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folder of a run, or of runs")
    about = "draw precision over seconds and over steps; .png, .svg or .pdf"
    parser.add_argument("--plot", metavar="FILE", help=about)
    for form, (about, _) in _FORMS.items():
        parser.add_argument(f"--{form}", metavar="FILE", help=f"write the table as {about}")
    options = parser.parse_args(words)
    with ending_errors():
        runs = [read_run(folder) for folder in find_runs(map(Path, options.runs))]
        table = compare(runs)
        show(as_text(table))
        for form, (_, written) in _FORMS.items():
            if (path := getattr(options, form)) is not None:
                write_text(Path(path).resolve(), written(table))
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


class Comparison(NamedTuple):
    """The columns of a table with a line for each run, or for the runs of several seeds."""

    settings: dict[str, list[str]]  # By key; first the names of the runs.
    figures: dict[str, list[list[float]]]  # By head; a number for each seed that has one.


def compare(runs: Sequence[RunFiles]) -> Comparison:
    """The settings that differ, and what the runs have reached; not what all lack, or is 0 for all.

    Example:
        >>> from pathlib import Path
        >>> from slide.compare import as_csv, compare
        >>> from slide.report import RunFiles
        >>> runs = [RunFiles(Path(f"{i}"), {"p_at_1": i / 4}, {"seed": i}, []) for i in (1, 2)]
        >>> print(as_csv(compare(runs)), end="")
        run,seed,P@1,P@1 deviation
        1 and 1 other seed,"1, 2",0.375,0.1767766952966369
    """
    groups, at = by_seeds(runs), {run.folder: i for i, run in enumerate(runs)}
    settings = {"run": names_of(groups)}
    for key, cells in differing(runs).items():
        each = ([cells[at[run.folder]] for run in group] for group in groups)
        settings[key] = [", ".join(dict.fromkeys(values)) for values in each]
    summaries = [[run.summary for run in group] for group in groups]
    return Comparison(settings, figure_columns(summaries, _FACTS))


def as_text(table: Comparison) -> str:
    """A table for a terminal: runs are its lines, or its columns if that is narrower.

    What is wider than the terminal goes on below.
    """
    by_key = _columns(table)
    by_run = list(zip(*by_key, strict=True))
    whole = (text_table(each, sys.maxsize) for each in (by_key, by_run))
    wide, narrow = (max(map(len, table.splitlines())) for table in whole)
    width = terminal_width()
    return text_table(by_run if wide > max(min(_WIDTH, width), narrow) else by_key, width)


def as_csv(table: Comparison) -> str:
    """CSV with numbers as they are, and columns of their standard deviations over several seeds."""
    columns = []
    for key, cells in table.settings.items():
        columns.append([_no_formula(cell) for cell in (key, *cells)])
    for head, column in table.figures.items():
        columns.append([head, *(mean(cell) if cell else "" for cell in column)])
        if any(len(cell) > 1 for cell in column):
            deviations = (stdev(cell) if len(cell) > 1 else "" for cell in column)
            columns.append([f"{head} deviation", *deviations])
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(zip(*columns, strict=True))
    return written.getvalue()


def as_latex(table: Comparison) -> str:
    """A ``tabular`` of LaTeX with the rules of its package booktabs."""
    columns = [[printable(cell, "").translate(_LATEX) for cell in each] for each in _columns(table)]
    head, *lines = (" & ".join(line) + r" \\" for line in zip(*columns, strict=True))
    kinds = "l" * len(table.settings) + "r" * len(table.figures)
    rules = [r"% \usepackage{booktabs}", rf"\begin{{tabular}}{{{kinds}}}", r"\toprule", head]
    return "\n".join([*rules, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}", ""])


# Files of the table: option, what it says, writer.
_FORMS = {"csv": ("CSV", as_csv), "latex": ("a table of LaTeX (booktabs)", as_latex)}


def _columns(table: Comparison) -> list[list[str]]:
    """The columns as people read them."""
    figures = (
        [head, *(figure(cell, _FACTS[head]) for cell in column)]
        for head, column in table.figures.items()
    )
    return [*([key, *cells] for key, cells in table.settings.items()), *figures]


def _no_formula(cell: str) -> str:
    """A cell for a spreadsheet: unknown ones are empty, and what would be a formula is a text."""
    cell = "" if cell == _UNKNOWN else printable(cell, "")
    try:
        float(cell)
    except ValueError:
        return f"'{cell}" if _FORMULA.match(cell) else cell
    return cell


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
    return [with_seeds(name, len(group)) for name, group in zip(names, groups, strict=True)]


if __name__ == "__main__":
    main()
