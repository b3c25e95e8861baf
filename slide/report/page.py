"""The page of a run, what its last evaluation says of labels and scores, and figures of runs."""

import base64
import io
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slide.report.run_files import RunFiles, read_run
from slide.sparse import CSR, Pattern, hits
from slide.utils.figures import KIND_METRICS, SELECTION_COLUMNS, figure, figure_columns
from slide.utils.files import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Labels by the number of their training rows: from the first number on, to before the next bin.
_BINS = {"0": 0, "1": 1, "2-4": 2, "5-9": 5, "10-49": 10, "50-499": 50, "500+": 500}
# Labels are compared that have this many evaluated rows; fewer, if there are few such labels.
_ENOUGH_ROWS = (20, 10, 5, 2, 1)
# A share of fewer answers than this is not drawn.
_ENOUGH_ANSWERS = 20
# Of an example as many names as fill two lines.
_SHOWN_LABELS, _SHOWN_FEATURES = 8, 5

_REPORT = "report.html"
_SCORES = {"P": "p", "nDCG": "ndcg", "PSP": "psp"}
# Pictures stand side by side, and on a phone below each other; wide tables scroll.
_STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
h1, p { overflow-wrap: anywhere; } table { border-collapse: collapse; }
.wide { overflow-x: auto; margin: 1em 0; }
.row { display: flex; flex-wrap: wrap; gap: 1em; } img { width: 29em; max-width: 100%; }
th, td { text-align: left; padding: .2em .8em .2em 0; vertical-align: top; white-space: nowrap; }
th { border-bottom: 1px solid; font-weight: 600; } th, small { white-space: normal; }
small { color: #555; } td[colspan] { padding-bottom: .8em; max-width: 88vw; }
td:nth-child(2):last-child, small { white-space: normal; overflow-wrap: anywhere; }
@media (max-width: 40em) {
  th, td { padding-right: .5em; }
  td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 6em; }
}
"""

# Precision on held-out rows is the mean of these; so are the other points of its picture.
_CUTOFFS = (1, 3, 5)
_HELD, _EVALUATED, _RERANKED = "held/precision", "eval/p_at_{}", "reranked/p_at_{}"
# Precisions to compare runs by, by their names in the log.
_PRECISIONS = {
    _EVALUATED.format(1): "P@1 of the network, evaluated rows",
    _HELD: "mean of P@1, P@3, P@5, held-out rows",
}
# What a run measures of its active sets: names in the log by what a panel shows.
_SELECTION = {
    "recall of the ten best": ("selection/recall_without_labels", "selection/chance"),
    "outputs looked up, of a set": ("selection/candidates",),
    "share of the rows read": ("look_up/rows_seen_share",),
}
# Parts of the time of a run, by their names in the summary.
_PARTS = {
    "training": "train_seconds",
    "of it network": "network_seconds",
    "of it rebuilds": "rebuild_seconds",
    "of it held-out rows": "validation_seconds",
    "of it re-ranker": "ranker_seconds",
    "evaluation": "eval_seconds",
    "measurements": "measuring_seconds",
    "compilation": "compile_seconds",
}
# Lines of many runs differ by these, too.
_DASHES = ("-", "--", ":")
# Least height of a panel of precision: chance often makes smaller differences, which would fill it.
_SPAN = 0.02
# Groups of settings that a loss depends on: another function, or other sets.
_LOSS, _OF_LOSS = "train/loss", ("loss", "sampler", "hash", "schedule")
_DRAWING: Any = {"svg.fonttype": "none", "svg.hashsalt": "slide"}


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
        row_name: the name of a row's number.

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
    row_name: Callable[[int], str] = lambda row: f"row {row}"


class Bin(NamedTuple):
    """Labels of similar frequency: of right labels their share, those found, their part of P@k."""

    name: str
    labels: int
    share: float
    found: list[float]
    precision: list[float]


class LabelFacts(NamedTuple):
    """In how many rows a label is, was found and was answered, and a row as an example, or -1."""

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

    def count(labels: np.ndarray) -> np.ndarray:
        return np.bincount(bin_of[labels], minlength=len(_BINS))

    truth, sizes = count(answers.labels.indices), count(np.arange(len(bin_of)))
    hit = np.stack([count(answers.ids[:, :k][right[:, :k]]) for k in _CUTOFFS])
    share, found = truth / max(truth.sum(), 1), hit / np.where(truth, truth, np.nan)
    precision = hit / (max(len(right), 1) * np.array(_CUTOFFS)[:, None])
    return [
        Bin(name, int(sizes[at]), float(share[at]), found[:, at].tolist(), parts.tolist())
        for at, (name, parts) in enumerate(zip(_BINS, precision.T, strict=True))
        if sizes[at]
    ]


def calibration(answers: Answers, bins: int = 10) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of answers with similar probabilities: their mean, the share that is right, a count."""
    known = answers.ids >= 0
    scores, right = answers.scores[known].astype(np.float64), hits(answers.ids, answers.labels)
    bin_of = np.clip((scores * bins).astype(np.int64), 0, bins - 1)
    counts = np.bincount(bin_of, minlength=bins)
    sums = np.bincount(bin_of, scores, bins), np.bincount(bin_of, right[known], bins)
    kept = counts > 0
    return sums[0][kept] / counts[kept], sums[1][kept] / counts[kept], counts[kept]


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


def example(answers: Answers, row: int) -> dict[str, list[str]]:
    """Names in a row: its strongest features, its labels, the most frequent first, its answers."""

    def part(rows: Pattern | CSR, name: Callable[[int], str], by: np.ndarray, most: int) -> Any:
        span = slice(*rows.indptr[row : row + 2])
        order = np.argsort(-by[span], kind="stable")[:most]
        return [name(int(each)) for each in rows.indices[span][order]]

    strength, frequency = np.abs(answers.features.values), answers.counts[answers.labels.indices]
    label = answers.label_name
    return {
        answers.row_name(row): part(
            answers.features, answers.feature_name, strength, _SHOWN_FEATURES
        ),
        "labels": part(answers.labels, label, frequency, _SHOWN_LABELS),
        "answers": [label(int(each)) for each in answers.ids[row] if each >= 0],
    }


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
        score_table(run),
        *_curves(run),
        *_selection(run),
        *_frequency(answers),
        *_calibration(run, answers),
        "<h2>Time</h2>",
        _images({"seconds of each part of the run": draw_times(run.summary)}),
        *_labels(answers),
        *_settings(run),
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    head += f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    body = "\n".join(parts)
    path = folder / _REPORT
    write_text(path, f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n{body}\n</html>\n')
    return path


def score_table(run: RunFiles) -> str:
    """The scores of a run as HTML: precisions by cut-off, and the metrics of its kind of rows."""
    rows = []
    for prefix, name in (("", "answers"), ("network_", "network alone")):
        for shown, metric in _SCORES.items():
            values = [run.summary.get(f"{prefix}{metric}_at_{k}") for k in (1, 3, 5)]
            if None not in values:
                rows.append([f"{shown}, {name}", *(f"{value:.4f}" for value in values)])
    always = run.summary.get("majority_p_at_1")
    rows += [["P@1 of always the most frequent label", f"{always:.4f}"]] if always else []
    own = {title: run.summary[name] for title, name in KIND_METRICS.items() if name in run.summary}
    tables = [_table(["", "@1", "@3", "@5"], rows)]
    if own:
        cells = [[f"{title}, answers", f"{value:.4f}"] for title, value in own.items()]
        tables.append(_table(["", "score"], cells))
    said = run.summary.get("warnings", [])
    warnings = "".join(f"<p><b>Warning:</b> {escape(each)}</p>" for each in said)
    return f"{warnings}<p>Scores on {_evaluated_rows(run)}:</p>" + "\n".join(tables)


def _evaluated_rows(run: RunFiles) -> str:
    return "test rows" if run.summary.get("evaluated_on") == "test" else "rows set aside"


def _curves(run: RunFiles) -> Iterator[str]:
    precision = draw_precision(run)
    yield "<h2>Loss and precision</h2>" if precision else "<h2>Loss</h2>"
    yield _images({"loss over the steps": draw_loss(run), **precision})


def _selection(run: RunFiles) -> Iterator[str]:
    """Nothing for a run that did not measure its active sets."""
    if not run.curve("selection/chance")[0]:
        return
    yield "<h2>Choice of outputs</h2>"
    yield (
        "<p>Recall is the share of a sample's ten largest scores, its own labels left out, that "
        "its active set holds; by chance: if all of the set but labels had been drawn uniformly. "
        "The table has means over the second half of the run.</p>"
    )
    if run.curve("selection/candidates")[0]:
        yield (
            "<p>Of the outputs in a set some are labels, some were looked up, and the others were "
            "drawn at random. To look them up, an input looks at a share of all weight rows.</p>"
        )
    yield _images(draw_selection(run))
    figures = figure_columns([[run.summary]], SELECTION_COLUMNS).items()
    shown = [[head, figure(values, SELECTION_COLUMNS[head])] for head, (values,) in figures]
    yield _table(["", "value"], shown)


def _frequency(answers: Answers) -> Iterator[str]:
    bins = by_frequency(answers)
    found = [[0.0 if x != x else x for x in each.found] for each in bins]
    names = [each.name for each in bins]
    yield "<h2>Labels by frequency</h2>"
    yield _images(
        {
            text: draw_bins(text, names, values, label)
            for text, values, label in (
                ("share of right labels found", found, "first {}"),
                ("contribution to P@k", [each.precision for each in bins], "P@{}"),
            )
        }
    )
    rows = [
        [
            each.name,
            f"{each.labels:,}",
            f"{each.share:.1%}",
            *("" if share != share else f"{share:.1%}" for share in each.found),
            *(f"{share:.4f}" for share in each.precision),
        ]
        for each in bins
    ]
    head = ["training rows", "labels", "share of right labels"]
    head += [f"found in first {k}" for k in _CUTOFFS] + [f"part of P@{k}" for k in _CUTOFFS]
    yield _table(head, rows)


def _calibration(run: RunFiles, answers: Answers) -> Iterator[str]:
    """Nothing if the scores are no probabilities."""
    if not answers.probabilities or not (answers.ids >= 0).any():
        return
    yield "<h2>Calibration</h2>"
    every, first = (run.summary.get(f"calibration_error{end}") for end in ("", "_at_1"))
    if every is not None and first is not None:
        chance = run.summary.get("chance_calibration_error_at_1")
        yield (
            f"<p>The calibration error of the probabilities is {every:.3f} for all answers and "
            f"{first:.3f} for the first answer to each row"
            + ("" if chance is None else f" (by chance {chance:.3f})")
            + ".</p>"
        )
    yield _images(draw_calibration(*calibration(answers)))


def _labels(answers: Answers) -> Iterator[str]:
    head = ["label", "training rows", "rows", "found", "answered"]
    counted = (
        "<p>Training rows and rows: how many have the label, in training and in evaluation; found: "
        "in how many of the latter it is among the answers; answered: in how many rows it is among "
        "the answers, right or wrong.</p>"
    )
    for title, labels in zip(("Hardest", "Best"), hardest_and_best(answers), strict=True):
        yield f"<h2>{title} labels</h2>{counted if title == 'Hardest' else ''}"
        lines = []
        for each in labels:
            counts = (each.trained, each.rows, each.found, each.answered)
            lines.append([answers.label_name(each.label), *(f"{count:,}" for count in counts)])
            if each.example >= 0:
                parts = example(answers, each.example).items()
                lines.append(["\n".join(f"{name}: {', '.join(words)}" for name, words in parts)])
        yield _table(head, lines)


def _settings(run: RunFiles) -> Iterator[str]:
    """The command line, the choice of each group, and all keys that can be typed."""
    yield "<h2>Settings</h2>"
    if run.words:
        yield f"<p>As typed: <code>{escape(' '.join(run.words))}</code></p>"
    yield _table(["key", "value"], [list(each) for each in (run.choices | run.values).items()])


def _images(figures: dict[str, "Figure"]) -> str:
    """Pictures side by side, by what they show."""
    found = ""
    for text, drawn in figures.items():
        code = base64.b64encode(svg(drawn).encode()).decode()
        found += f'<img alt="{escape(text)}" src="data:image/svg+xml;base64,{code}">'
    return f'<div class="row">{found}</div>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of HTML; a line with a single cell is a small note as wide as the table."""
    lines = ["".join(f"<th>{escape(each)}</th>" for each in head)]
    for row in rows:
        if len(row) == 1 < len(head):
            note = escape(row[0]).replace("\n", "<br>")
            lines.append(f"<td colspan={len(head)}><small>{note}</small></td>")
        else:
            lines.append("".join(f"<td>{escape(each)}</td>" for each in row))
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table>{body}</table></div>'


def svg(figure: "Figure") -> str:
    """A figure as an SVG document, the same for the same content."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context(_DRAWING):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def draw_loss(run: RunFiles) -> "Figure":
    """The loss over the steps of a run."""
    figure, panel = _panel(ylabel="loss")
    panel.plot(*run.curve(_LOSS), lw=1)
    _from_zero(panel)
    return figure


def draw_precision(run: RunFiles) -> dict[str, "Figure"]:
    """Precision on held-out and on evaluated rows, the means of the same cut-offs.

    Nothing if it is known after a single step: that is in the table of scores.
    """
    figure, panel = _panel(ylabel="mean of P@1, P@3, P@5")
    where = _evaluated_rows(run)
    curves = {"held-out training rows": ("-", *run.curve(_HELD))}
    for name, form, style in (("network", _EVALUATED, "o-"), ("re-ranked", _RERANKED, "^-")):
        cutoffs = [form.format(k) for k in _CUTOFFS]
        lines = [line for line in run.log if line.keys() >= {*cutoffs}]
        means = [float(np.mean([line[each] for each in cutoffs])) for line in lines]
        curves[f"{where}, {name}"] = style, [line["step"] for line in lines], means
    if len({step for _, steps, _ in curves.values() for step in steps}) < 2:
        return {}
    for label, (style, steps, values) in curves.items():
        if steps:
            panel.plot(steps, values, style, ms=5, lw=1.2, label=label)
    panel.set_ylim(0, 1.1 * panel.dataLim.ymax or 1)
    _from_zero(panel)
    figure.legend(frameon=False, ncols=2, loc="outside upper center")
    return {"precision": figure}


def draw_selection(run: RunFiles) -> dict[str, "Figure"]:
    """What active sets hold of the best outputs, and what that costs, over the steps of a run."""
    found = {}
    for label, names in _SELECTION.items():
        if not run.curve(names[0])[0]:
            continue
        found[label], panel = _panel(ylabel=label)
        # Both are seen where they are equal, as with uniform draws.
        styles: Any = {"of the sets": {"marker": "o"}, "by chance": {"color": "0.5", "ls": "--"}}
        for name, (said, style) in zip(names, styles.items(), strict=False):
            panel.plot(*run.curve(name), ms=3, lw=1, label=said, **style)
        panel.set_ylim(0, 1.1 * panel.dataLim.ymax or 1)
        _from_zero(panel)
        if len(names) > 1:
            found[label].legend(frameon=False, ncols=2, loc="outside upper center")
    return found


def draw_bins(
    text: str, names: Sequence[str], values: Sequence[Sequence[float]], label: str
) -> "Figure":
    """For each bin of labels a bar for k of 1, 3 and 5."""
    figure, panel = _panel("training rows of the label", text)
    positions = np.arange(len(names))
    for at, k in enumerate(_CUTOFFS):
        bars = [each[at] for each in values]
        panel.bar(positions + 0.27 * (at - 1), bars, 0.25, label=label.format(k))
    panel.set_xticks(positions, list(names), fontsize=8)
    figure.legend(frameon=False, ncols=3, loc="outside upper center")
    return figure


def draw_calibration(
    mean: np.ndarray, share: np.ndarray, counts: np.ndarray
) -> dict[str, "Figure"]:
    """How often answers are right, and how many there are, by probability; see `calibration`."""
    found = {}
    for name, y in (("share of right answers", share), ("number of answers", counts)):
        found[f"{name} by probability"], panel = _panel("probability", name)
        if y is share:
            panel.plot([0, 1], [0, 1], color="0.7", lw=1)
            many = counts >= _ENOUGH_ANSWERS
            panel.plot(mean[many], share[many], "o-", ms=4, lw=1, clip_on=False)
            panel.set_ylim(0, 1)
        else:
            panel.yaxis.set_major_formatter("{x:,.0f}")
            panel.bar(np.minimum(np.floor(mean * 10) / 10, 0.9) + 0.05, counts, 0.09)
        panel.set_xlim(0, 1)
    return found


def draw_times(summary: dict[str, Any]) -> "Figure":
    """Seconds of the parts of a run."""
    parts = {label: summary.get(name, 0.0) for label, name in _PARTS.items()}
    parts = {label: seconds for label, seconds in parts.items() if seconds >= 0.05}
    figure, panel = _panel("seconds", height=0.6 + 0.25 * len(parts))
    bars = panel.barh(list(parts)[::-1], list(parts.values())[::-1])
    panel.bar_label(bars, fmt="{:,.1f} s", padding=3)
    panel.margins(x=0.18)
    return figure


def draw_comparison(groups: Sequence[Sequence[RunFiles]], names: Sequence[str]) -> "Figure":
    """Precision of runs over seconds of training and over steps; runs of several seeds are one.

    Below them is the loss, if it is the same function of the same kind of sets in all runs.
    """
    from matplotlib import colormaps

    runs = [run for group in groups for run in group]
    common, columns = _common_precision(runs), 1 if max(map(len, names)) > 50 else 2
    shown = {common: _PRECISIONS[common]} | ({_LOSS: "loss"} if _same_loss(runs) else {})
    height = 0.5 + 3 * len(shown) + 0.2 * -(-len(groups) // columns)
    figure, panels = _grid(len(shown), 2, (8.5, height))
    colors = [f"C{i}" for i in range(len(groups))]
    if len(groups) > 10:
        colors = colormaps["turbo"](np.linspace(0.05, 0.95, len(groups)))
    for i, (group, name, color) in enumerate(zip(groups, names, colors, strict=True)):
        # Names are no formulas, and a legend leaves out a name that begins with an underscore.
        label = f" {name}".replace("$", r"\$")
        dashes = i % len(_DASHES)  # Shorter dashes lie above, so equal curves all show.
        style: Any = {"lw": 1, "color": color, "ls": _DASHES[dashes], "zorder": 2 + dashes}
        for row, scalar in enumerate(shown):
            curves = [(run, *run.curve(scalar)) for run in group]
            dots: Any = {"marker": "o", "ms": 3} if scalar == common else {}
            over = [(run.seconds_at(x), y) for run, x, y in curves], [c[1:] for c in curves]
            for panel, each in zip(panels[2 * row :], over, strict=False):
                x, mean, spread = _mean_curve(each)
                panel.plot(x, mean, label=label, **style, **dots)
                if len(group) > 1:
                    band = mean - spread, mean + spread
                    panel.fill_between(x, *band, color=color, alpha=0.2, lw=0)
    for panel, x in zip(panels, ["seconds", "step"] * len(shown), strict=True):
        panel.set(xlabel=x)
        _from_zero(panel)
    for panel, y in zip(panels[::2], shown.values(), strict=True):
        panel.set_ylabel(y)
    for panel in panels[:2]:
        least, most = panel.get_ylim()
        more = max(0.0, _SPAN - (most - least)) / 2
        panel.set_ylim(least - more, most + more)
    lines, where = panels[0].get_legend_handles_labels(), "outside lower center"
    figure.legend(*lines, loc=where, ncols=columns, frameon=False)
    return figure


def _mean_curve(
    curves: Sequence[tuple[Sequence[float], Sequence[float]]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean of curves ``(x, y)`` and their standard deviation, where all of them are known."""
    curves = [(x, y) for x, y in curves if len(x)]
    points = np.unique(np.concatenate([[], *(x for x, _ in curves)]))
    for x, _ in curves:
        points = points[(points >= min(x)) & (points <= max(x))]
    values = [np.interp(points, x, y) for x, y in curves] or [points]
    spread = np.std(values, axis=0, ddof=1) if len(values) > 1 else 0 * points
    return points, np.mean(values, axis=0), spread


def _same_loss(runs: Sequence[RunFiles]) -> bool:
    """Whether the losses of runs are on one scale: settings of loss and sets are the same."""
    known = [{**run.settings, **run.values, **run.choices} for run in runs]
    parts = [
        {
            key: str(value)
            for key, value in each.items()
            if key.partition(".")[0] in _OF_LOSS and not key.endswith(".seed")
        }
        for each in known
    ]
    return all(part == parts[0] for part in parts)


def _common_precision(runs: Sequence[RunFiles]) -> str:
    """The precision to compare: one that all runs have, if possible at more than one step."""
    counts = {name: [len(run.curve(name)[0]) for run in runs] for name in _PRECISIONS}
    common = [name for name, each in counts.items() if min(each, default=0)]
    return max(common or _PRECISIONS, key=lambda name: (max(counts[name]) > 1, counts[name]))


def _panel(xlabel: str = "step", ylabel: str = "", height: float = 3) -> tuple["Figure", "Axes"]:
    figure, (panel,) = _grid(1, 1, (4.2, height))
    panel.set(xlabel=xlabel, ylabel=ylabel)
    return figure, panel


def _from_zero(panel: "Axes") -> None:
    """Let steps or seconds begin at 0, with few ticks, so that large numbers have room."""
    panel.set_xlim(left=0)
    panel.locator_params(axis="x", nbins=5)


def _grid(rows: int, columns: int, size: tuple[float, float]) -> tuple["Figure", list["Axes"]]:
    from matplotlib.figure import Figure

    # Without pyplot: no window, no state that other figures of the program share.
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes.flat)
