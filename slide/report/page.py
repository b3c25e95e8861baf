"""The report of a run: one HTML file with its figures in it."""

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from slide.report import answers as found
from slide.report import figures
from slide.report.answers import Answers, LabelFacts
from slide.report.run_files import RunFiles, read_run
from slide.report.text_tables import SELECTION_COLUMNS, figure_columns
from slide.utils.files import write_text

_REPORT = "report.html"
_SCORES = {"P": "p", "nDCG": "ndcg", "PSP": "psp"}
_STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; } img { max-width: 100%; }
th, td { text-align: left; padding: .2em .8em .2em 0; vertical-align: top; }
th { border-bottom: 1px solid; font-weight: 600; } small { color: #555; }
"""


def write_report(folder: Path, answers: Answers) -> Path:
    """Write ``report.html`` into the folder of a finished run, and return its path.

    It has the scores, the curves of loss and precision, what look-ups found, precision by the
    frequency of labels, the calibration of the scores, the time of each part, and the labels that
    were found least and most, with examples. It is one file, and asks for nothing from outside.

    Args:
        folder: of the run; it holds the settings, the log and the summary.
        answers: answers to the rows that the run was evaluated on.

    Raises:
        FileNotFoundError: if it is no folder of a run.
        OSError: if the file cannot be written.

    Example:
        ```python
        found = network.predict(rows, k=5)  # scores and ids; rows: CSR, truth: Pattern
        counts = np.bincount(train.labels.indices, minlength=num_labels)
        answers = Answers(found[1].numpy(), found[0].numpy(), truth, rows, counts, False)
        write_report(Path("results/mine"), answers)
        ```
    """
    run = read_run(folder)
    title = f"{run.summary.get('dataset', 'run')}, {folder.name}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        _scores(run),
        "<h2>Loss and precision</h2>",
        _image(figures.draw_curves(run), "loss and precision over the steps"),
        *_selection(run),
        "<h2>Labels by frequency</h2>",
        *_frequency(answers),
        "<h2>Calibration</h2>",
        *_calibration(answers),
        "<h2>Time</h2>",
        _image(figures.draw_times(run.summary), "seconds of each part of the run"),
        *_labels(answers),
        "<h2>Settings</h2>",
        _table(["key", "value"], [[key, str(value)] for key, value in run.settings.items()]),
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    body = "\n".join(parts)
    path = folder / _REPORT
    write_text(path, f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n{body}\n</html>\n')
    return path


def _scores(run: RunFiles) -> str:
    rows = []
    for prefix, name in (("", "answers"), ("network_", "network alone")):
        for shown, metric in _SCORES.items():
            values = [run.summary.get(f"{prefix}{metric}_at_{k}") for k in (1, 3, 5)]
            if None not in values:
                rows.append([f"{shown}, {name}", *(f"{value:.4f}" for value in values)])
    where = run.summary.get("evaluated_on", "")
    always = run.summary.get("majority_p_at_1")
    rows += [["P@1 of always the most frequent label", f"{always:.4f}"]] if always else []
    said = run.summary.get("warnings", [])
    warnings = "".join(f"<p><b>Warning:</b> {escape(each)}</p>" for each in said)
    return f"{warnings}<p>Evaluated on: {escape(where)}.</p>" + _table(["", "@1", "@3", "@5"], rows)


def _selection(run: RunFiles) -> list[str]:
    """Nothing for a run that did not measure its active sets."""
    if not run.curve("selection/chance")[0]:
        return []
    figures_of = figure_columns([run.summary], SELECTION_COLUMNS)
    said = (
        "Recall is the share of a sample's ten largest scores, its own labels left out, that its "
        "active set holds; by chance: if all of the set but labels had been drawn uniformly. The "
        "table has means over the second half of the run."
    )
    return [
        "<h2>Choice of outputs</h2>",
        f"<p>{said}</p>",
        _image(figures.draw_selection(run), "recall against chance, look-ups and their cost"),
        _table(list(figures_of), [[cell for (cell,) in figures_of.values()]]),
    ]


def _frequency(answers: Answers) -> list[str]:
    bins = found.by_frequency(answers)
    rows = [
        [
            each.name,
            f"{each.labels:,}",
            f"{100 * each.share:.1f} %",
            *("" if share != share else f"{100 * share:.1f} %" for share in each.found),
            *(f"{100 * share:.1f}" for share in each.precision),
        ]
        for each in bins
    ]
    head = ["training rows", "labels", "share of right labels"]
    head += [f"found in first {k}" for k in (1, 3, 5)] + [f"part of P@{k}" for k in (1, 3, 5)]
    picture = _image(figures.draw_frequency(bins), "precision and recall by label frequency")
    return [picture, _table(head, rows)]


def _calibration(answers: Answers) -> list[str]:
    if not (answers.ids >= 0).any():
        return ["<p>There are no answers.</p>"]
    bins = found.calibration(answers)
    said = "The scores are no probabilities."
    if answers.probabilities:
        every, first = found.calibration_errors(answers)
        said = (
            f"The scores are probabilities. Their calibration error is {every:.3f} for all answers "
            f"and {first:.3f} for the first answer to each row."
        )
    picture = figures.draw_calibration(*bins, answers.probabilities)
    return [
        f"<p>{said}</p>",
        _image(picture, "share of right answers by score"),
    ]


def _labels(answers: Answers) -> Iterable[str]:
    hardest, best = found.hardest_and_best(answers)
    yield "<h2>Hardest labels</h2>"
    yield _label_table(answers, hardest, "a row where it was missed")
    yield "<h2>Best labels</h2>"
    yield _label_table(answers, best, "a row where it was found")


def _label_table(answers: Answers, labels: Sequence[LabelFacts], example: str) -> str:
    head = ["label", "training rows", "rows", "found", "answered", example]
    lines = []
    for each in labels:
        cells = [answers.label_name(each.label), f"{each.trained:,}", f"{each.rows:,}"]
        cells += [f"{each.found:,}", f"{each.answered:,}"]
        shown = "" if each.example < 0 else _example(answers, each.example)
        lines.append([*map(escape, cells), shown])
    return _table(head, lines, safe=True)


def _example(answers: Answers, row: int) -> str:
    parts = {
        f"row {row}": found.strongest_features(answers, row),
        "labels": found.right_labels(answers, row),
        "answers": found.answered_labels(answers, row),
    }
    return (
        "<small>"
        + "<br>".join(f"{name}: {escape(', '.join(words))}" for name, words in parts.items())
        + "</small>"
    )


def _image(figure: Any, text: str) -> str:
    code = base64.b64encode(figures.svg(figure).encode()).decode()
    return f'<img alt="{escape(text)}" src="data:image/svg+xml;base64,{code}">'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], safe: bool = False) -> str:
    """A table of HTML.

    Args:
        head: names of the columns.
        rows: their cells.
        safe: whether the cells are HTML; else they are text.
    """
    lines = ["".join(f"<th>{escape(each)}</th>" for each in head)]
    lines += ["".join(f"<td>{each if safe else escape(each)}</td>" for each in row) for row in rows]
    return "<table>" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "</table>"
