"""The page of a run, what its last evaluation says of labels and scores, and figures of runs."""

import base64
import io
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slide.report.run_files import SELECTION_COLUMNS, RunFiles, figure_columns, read_run
from slide.sparse import CSR, Pattern, hits
from slide.utils.files import write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Labels by the number of their training rows: from the first number on, to before the next bin.
_BINS = {"0": 0, "1": 1, "2-4": 2, "5-9": 5, "10-49": 10, "50-499": 50, "500+": 500}
# Labels are compared that have this many evaluated rows; fewer, if there are few such labels.
_ENOUGH_ROWS = (20, 10, 5, 2, 1)
SHOWN_LABELS = SHOWN_FEATURES = 8

_REPORT = "report.html"
_SCORES = {"P": "p", "nDCG": "ndcg", "PSP": "psp"}
_STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; } img { max-width: 100%; }
th, td { text-align: left; padding: .2em .8em .2em 0; vertical-align: top; }
th { border-bottom: 1px solid; font-weight: 600; } small { color: #555; }
"""

# Precisions by their names in the log; the first that the log has is drawn.
_PRECISIONS = {
    "eval/p_at_1": "P@1, evaluated rows",
    "held/precision": "precision, held-out rows",
}
# What a run measures of its active sets: names in the log by what a panel shows.
_SELECTION = {
    "recall of the ten best": ("selection/recall_without_labels", "selection/chance"),
    "outputs looked up, of a set": ("selection/candidates",),
    "share of the rows looked at": ("look_up/rows_seen_share",),
}
# Parts of the time of a run, by their names in the summary.
_PARTS = {
    "training": "train_seconds",
    "of it network": "network_seconds",
    "of it rebuilds": "rebuild_seconds",
    "of it held-out rows": "validation_seconds",
    "of it re-ranker": "ranker_seconds",
    "evaluation": "eval_seconds",
    "compilation": "compile_seconds",
}
# Lines of many runs differ by these, too.
_DASHES = ("-", "--", ":")
_DRAWING: Any = {"svg.fonttype": "none", "svg.hashsalt": "slide", "font.size": 9}


class Answers(NamedTuple):
    """Answers to the rows that a run was evaluated on.

    Attributes:
        ids: ``(n, k)`` labels, best first; -1: no more.
        scores: ``(n, k)`` their scores.
        labels: right labels of the n rows.
        features: the n rows.
        counts: ``(N,)`` how many training rows have each label.
        probabilities: whether the scores are probabilities.
        label_name: the name of a label's number.
        feature_name: the name of a feature's number.

    Example:
        >>> import numpy as np
        >>> from slide import CSR, Pattern
        >>> from slide.report import Answers
        >>> rows = CSR(np.arange(3), np.zeros(2, np.int32), np.ones(2, np.float32))
        >>> ids, scores = np.array([[0], [1]]), np.array([[0.9], [0.4]])
        >>> truth = Pattern.from_lists([[0], [0]])
        >>> Answers(ids, scores, truth, rows, np.array([7, 2]), True).label_name(1)
        'label 1'
    """

    ids: np.ndarray
    scores: np.ndarray
    labels: Pattern
    features: CSR
    counts: np.ndarray
    probabilities: bool
    label_name: Callable[[int], str] = lambda label: f"label {label}"
    feature_name: Callable[[int], str] = lambda feature: f"feature {feature}"


class Bin(NamedTuple):
    """Labels of similar frequency.

    Attributes:
        name: numbers of training rows.
        labels: number of such labels.
        share: of the right labels of all rows, in [0, 1].
        found: the share of these that is among the first 1, 3 and 5 answers; NaN without any.
        precision: what they contribute to P@1, P@3 and P@5.
    """

    name: str
    labels: int
    share: float
    found: list[float]
    precision: list[float]


class LabelFacts(NamedTuple):
    """How well a label was found.

    Attributes:
        label: its number.
        trained: training rows that have it.
        rows: evaluated rows that have it.
        found: of these, rows with it among the answers.
        answered: rows with it among the answers, rightly or not.
        example: an evaluated row; -1: none fits.
    """

    label: int
    trained: int
    rows: int
    found: int
    answered: int
    example: int


def by_frequency(answers: Answers) -> list[Bin]:
    """Precision and recall of labels by how many training rows they have."""
    right, edges = hits(answers.ids, answers.labels), np.array(list(_BINS.values()))
    bin_of = np.searchsorted(edges, answers.counts, "right") - 1
    truth = np.bincount(bin_of[answers.labels.indices], minlength=len(_BINS))
    sizes = np.bincount(bin_of, minlength=len(_BINS))
    hit = np.stack([_hits_by_bin(answers.ids, right, bin_of, k) for k in (1, 3, 5)])
    found, rows = hit / np.where(truth, truth, np.nan), max(len(answers.ids), 1)
    precision = hit / (rows * np.array([[1], [3], [5]]))
    return [
        Bin(
            name,
            int(sizes[at]),
            float(truth[at] / max(truth.sum(), 1)),
            found[:, at].tolist(),
            precision[:, at].tolist(),
        )
        for at, name in enumerate(_BINS)
        if sizes[at]
    ]


def _hits_by_bin(ids: np.ndarray, right: np.ndarray, bin_of: np.ndarray, k: int) -> np.ndarray:
    return np.bincount(bin_of[ids[:, :k][right[:, :k]]], minlength=len(_BINS))


def calibration(answers: Answers, bins: int = 10) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How often answers are right, by their scores."""
    known = answers.ids >= 0
    scores = answers.scores[known].astype(np.float64)
    right = hits(answers.ids, answers.labels)[known]
    if answers.probabilities:
        bin_of = np.clip((scores * bins).astype(np.int64), 0, bins - 1)
    else:
        order = np.argsort(np.argsort(scores, kind="stable"), kind="stable")
        bin_of = order * bins // max(len(scores), 1)
    counts = np.bincount(bin_of, minlength=bins)
    sums = np.bincount(bin_of, scores, bins), np.bincount(bin_of, right, bins)
    kept = counts > 0
    return sums[0][kept] / counts[kept], sums[1][kept] / counts[kept], counts[kept]


def calibration_errors(answers: Answers) -> tuple[float, float]:
    """The expected calibration error of all answers, and of the first answer to each row."""
    found = []
    for count in (answers.ids.shape[1], 1):
        part = answers._replace(ids=answers.ids[:, :count], scores=answers.scores[:, :count])
        scores, shares, counts = calibration(part)
        found.append(float(np.abs(scores - shares) @ counts / max(counts.sum(), 1)))
    return found[0], found[1]


def hardest_and_best(answers: Answers, most: int = 10) -> tuple[list[LabelFacts], list[LabelFacts]]:
    """The labels that were found least, and those that were found most."""
    right, size = hits(answers.ids, answers.labels), len(answers.counts)
    rows = np.bincount(answers.labels.indices, minlength=size)
    found = np.bincount(answers.ids[right], minlength=size)
    answered = np.bincount(answers.ids[answers.ids >= 0], minlength=size)
    least = next((n for n in _ENOUGH_ROWS if (rows >= n).sum() >= 2 * most), _ENOUGH_ROWS[-1])
    labels = np.flatnonzero(rows >= least)
    share = found[labels] / rows[labels]
    # Among equal ones, those with more rows say more.
    worst_first = labels[np.lexsort((-rows[labels], share))]
    best_first = labels[np.lexsort((-rows[labels], -share))]
    most = min(most, len(labels) // 2)

    def facts(label: int, wanted: bool) -> LabelFacts:
        example, trained = _example_row(answers, right, label, wanted), int(answers.counts[label])
        in_rows, hit, given = (int(array[label]) for array in (rows, found, answered))
        return LabelFacts(int(label), trained, in_rows, hit, given, example)

    return (
        [facts(label, False) for label in worst_first[:most]],
        [facts(label, True) for label in best_first[:most]],
    )


def _example_row(answers: Answers, right: np.ndarray, label: int, wanted: bool) -> int:
    """The first row that has a label, and where it was found or not."""
    labels = answers.labels
    rows = np.searchsorted(labels.indptr, np.flatnonzero(labels.indices == label), "right") - 1
    was_found = ((answers.ids[rows] == label) & right[rows]).any(1)
    fitting = rows[was_found == wanted]
    return int(fitting[0]) if len(fitting) else -1


def strongest_features(answers: Answers, row: int) -> list[str]:
    """The names of the features of a row with the largest values."""
    begin, end = answers.features.indptr[row : row + 2]
    indices = answers.features.indices[begin:end]
    order = np.argsort(-np.abs(answers.features.values[begin:end]), kind="stable")
    return [answers.feature_name(int(each)) for each in indices[order[:SHOWN_FEATURES]]]


def right_labels(answers: Answers, row: int) -> list[str]:
    """The names of the labels of a row, the most frequent ones first."""
    begin, end = answers.labels.indptr[row : row + 2]
    labels = answers.labels.indices[begin:end]
    order = np.argsort(-answers.counts[labels], kind="stable")
    return [answers.label_name(int(each)) for each in labels[order[:SHOWN_LABELS]]]


def answered_labels(answers: Answers, row: int) -> list[str]:
    """The names of the answers to a row, the best first."""
    return [answers.label_name(int(each)) for each in answers.ids[row] if each >= 0]


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
        _image(draw_curves(run), "loss and precision over the steps"),
        *_selection(run),
        "<h2>Labels by frequency</h2>",
        *_frequency(answers),
        "<h2>Calibration</h2>",
        *_calibration(answers),
        "<h2>Time</h2>",
        _image(draw_times(run.summary), "seconds of each part of the run"),
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
        _image(draw_selection(run), "recall against chance, look-ups and their cost"),
        _table(list(figures_of), [[cell for (cell,) in figures_of.values()]]),
    ]


def _frequency(answers: Answers) -> list[str]:
    bins = by_frequency(answers)
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
    picture = _image(draw_frequency(bins), "precision and recall by label frequency")
    return [picture, _table(head, rows)]


def _calibration(answers: Answers) -> list[str]:
    if not (answers.ids >= 0).any():
        return ["<p>There are no answers.</p>"]
    bins = calibration(answers)
    said = "The scores are no probabilities."
    if answers.probabilities:
        every, first = calibration_errors(answers)
        said = (
            f"The scores are probabilities. Their calibration error is {every:.3f} for all answers "
            f"and {first:.3f} for the first answer to each row."
        )
    picture = draw_calibration(*bins, answers.probabilities)
    return [
        f"<p>{said}</p>",
        _image(picture, "share of right answers by score"),
    ]


def _labels(answers: Answers) -> Iterable[str]:
    hardest, best = hardest_and_best(answers)
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
        f"row {row}": strongest_features(answers, row),
        "labels": right_labels(answers, row),
        "answers": answered_labels(answers, row),
    }
    return (
        "<small>"
        + "<br>".join(f"{name}: {escape(', '.join(words))}" for name, words in parts.items())
        + "</small>"
    )


def _image(figure: Any, text: str) -> str:
    code = base64.b64encode(svg(figure).encode()).decode()
    return f'<img alt="{escape(text)}" src="data:image/svg+xml;base64,{code}">'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], safe: bool = False) -> str:
    """A table of HTML."""
    lines = ["".join(f"<th>{escape(each)}</th>" for each in head)]
    lines += ["".join(f"<td>{each if safe else escape(each)}</td>" for each in row) for row in rows]
    return "<table>" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def svg(figure: "Figure") -> str:
    """A figure as an SVG document, the same for the same content."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context(_DRAWING):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def save(figure: "Figure", path: Path) -> None:
    """Write a figure; the suffix of the path says in which format."""
    figure.savefig(path, dpi=150)


def draw_curves(run: RunFiles) -> "Figure":
    """Loss and precision over the steps of a run."""
    figure, (left, right) = _panels(2)
    left.plot(*run.curve("train/loss"), lw=1)
    left.set(xlabel="step", ylabel="loss")
    for name, label in _PRECISIONS.items():
        steps, values = run.curve(name)
        if steps:
            right.plot(steps, values, "o-", ms=3, lw=1, label=label)
    right.set(xlabel="step", ylabel="precision")
    if right.lines:
        right.legend(frameon=False)
    return figure


def draw_selection(run: RunFiles) -> "Figure":
    """What active sets hold of the best outputs, and what that costs, over the steps of a run."""
    shown = [label for label, names in _SELECTION.items() if run.curve(names[0])[0]]
    figure, panels = _panels(len(shown))
    for panel, label in zip(panels, shown, strict=True):
        for name in _SELECTION[label]:
            panel.plot(*run.curve(name), "o-", ms=3, lw=1)
        panel.set(xlabel="step", ylabel=label)
        panel.set_ylim(0, 1.1 * panel.dataLim.ymax or 1)
    panels[0].legend(["of the sets", "by chance"], frameon=False)
    return figure


def draw_frequency(bins: Sequence[Bin]) -> "Figure":
    """Precision and recall of labels by how many training rows they have."""
    figure, (left, right) = _panels(2)
    positions = np.arange(len(bins))
    for at, k in enumerate((1, 3, 5)):
        found = [0.0 if np.isnan(each.found[at]) else each.found[at] for each in bins]
        left.bar(positions + 0.27 * (at - 1), found, 0.25, label=f"first {k}")
        parts = [each.precision[at] for each in bins]
        right.bar(positions + 0.27 * (at - 1), parts, 0.25, label=f"P@{k}")
    left.set(ylabel="share of right labels found", ylim=(0, 1))
    right.set(ylabel="contribution to P@k")
    for panel in (left, right):
        panel.set_xticks(positions, [each.name for each in bins])
        panel.set_xlabel("training rows of the label")
        panel.legend(frameon=False)
    return figure


def draw_calibration(
    mean: np.ndarray, share: np.ndarray, counts: np.ndarray, probabilities: bool
) -> "Figure":
    """How often answers are right, by their scores; see `slide.report.page.calibration`."""
    figure, (left, right) = _panels(2)
    if probabilities:
        left.plot([0, 1], [0, 1], color="0.7", lw=1)
    left.plot(mean, share, "o-", ms=4, lw=1)
    name = "probability" if probabilities else "score"
    left.set(xlabel=f"mean {name}", ylabel="share of right answers", ylim=(0, 1))
    right.bar(np.arange(len(counts)), counts)
    right.set_xticks(np.arange(len(counts)), [f"{each:.2f}" for each in mean])
    right.set(xlabel=f"mean {name}", ylabel="answers")
    return figure


def draw_times(summary: dict[str, Any]) -> "Figure":
    """Seconds of the parts of a run."""
    parts = {label: summary.get(name, 0.0) for label, name in _PARTS.items()}
    parts = {label: seconds for label, seconds in parts.items() if seconds > 0}
    figure, (panel,) = _panels(1, height=0.6 + 0.3 * len(parts))
    bars = panel.barh(list(parts)[::-1], list(parts.values())[::-1])
    panel.bar_label(bars, fmt="%.1f s", padding=3)
    panel.margins(x=0.12)
    panel.set(xlabel="seconds")
    return figure


def draw_comparison(runs: Sequence[RunFiles], names: Sequence[str]) -> "Figure":
    """Loss and precision of several runs, over steps and over seconds of training."""
    from matplotlib import colormaps

    common, rows = _common_precision(runs), -(-len(runs) // 2)
    figure, panels = _panels(2, rows=2, height=6.5 + 0.2 * rows)
    colors = [f"C{i}" for i in range(len(runs))]
    if len(runs) > 10:
        colors = colormaps["turbo"](np.linspace(0.05, 0.95, len(runs)))
    for i, (run, name, color) in enumerate(zip(runs, names, colors, strict=True)):
        steps, values = run.curve("train/loss")
        best, precision = run.curve(common)
        style: Any = {"lw": 1, "color": color, "ls": _DASHES[i % len(_DASHES)]}
        for upper, lower, axis in zip(panels[:2], panels[2:], (_same, run.seconds_at), strict=True):
            upper.plot(axis(steps), values, label=name, **style)
            lower.plot(axis(best), precision, marker="o", ms=3, **style)
    for panel, x, y in zip(
        panels, ["step", "seconds"] * 2, ["loss"] * 2 + [_PRECISIONS[common]] * 2, strict=True
    ):
        panel.set(xlabel=x, ylabel=y)
    place = "outside lower center"
    figure.legend(*panels[0].get_legend_handles_labels(), loc=place, ncols=2, frameon=False)
    return figure


def _common_precision(runs: Sequence[RunFiles]) -> str:
    """The precision to compare: one that all runs have, if possible at more than one step."""
    counts = {name: [len(run.curve(name)[0]) for run in runs] for name in _PRECISIONS}
    common = [name for name, each in counts.items() if min(each, default=0)]
    return max(common or _PRECISIONS, key=lambda name: (max(counts[name]) > 1, counts[name]))


_same: Callable[[list[float]], list[float]] = list


def _panels(columns: int, rows: int = 1, height: float = 3.2) -> tuple["Figure", list[Any]]:
    from matplotlib.figure import Figure

    # Without pyplot: no window, no state that other figures of the program share.
    figure = Figure(figsize=(8.5, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes.flat)
