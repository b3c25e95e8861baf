"""Figures of runs, drawn by Matplotlib; it is imported when the first one is drawn."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from slide.report.answers import Bin
from slide.report.run_files import RunFiles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What a run looks at, by its name in the log; the first that the log has is drawn.
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
_STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "slide", "font.size": 9}


def svg(figure: "Figure") -> str:
    """A figure as an SVG document, the same for the same content."""
    import matplotlib

    file = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def save(figure: "Figure", path: Path) -> None:
    """Write a figure; the suffix of the path says in which format.

    Raises:
        ValueError: for a format that Matplotlib does not write.
        OSError: if the file cannot be written.
    """
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
    places = np.arange(len(bins))
    for at, k in enumerate((1, 3, 5)):
        found = [0.0 if np.isnan(each.found[at]) else each.found[at] for each in bins]
        left.bar(places + 0.27 * (at - 1), found, 0.25, label=f"first {k}")
        parts = [each.precision[at] for each in bins]
        right.bar(places + 0.27 * (at - 1), parts, 0.25, label=f"P@{k}")
    left.set(ylabel="share of right labels found", ylim=(0, 1))
    right.set(ylabel="contribution to P@k")
    for panel in (left, right):
        panel.set_xticks(places, [each.name for each in bins])
        panel.set_xlabel("training rows of the label")
        panel.legend(frameon=False)
    return figure


def draw_calibration(
    mean: np.ndarray, share: np.ndarray, counts: np.ndarray, probabilities: bool
) -> "Figure":
    """How often answers are right, by their scores; see `slide.report.answers.calibration`."""
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
    common = _common_precision(runs)
    figure, panels = _panels(2, rows=2, height=6.5)
    for run, name in zip(runs, names, strict=True):
        steps, values = run.curve("train/loss")
        best, precision = run.curve(common)
        for upper, lower, axis in zip(panels[:2], panels[2:], (_same, run.seconds_at), strict=True):
            upper.plot(axis(steps), values, lw=1, label=name)
            lower.plot(axis(best), precision, "o-", ms=3, lw=1, label=name)
    for panel, x, y in zip(
        panels, ["step", "seconds"] * 2, ["loss"] * 2 + [_PRECISIONS[common]] * 2, strict=True
    ):
        panel.set(xlabel=x, ylabel=y)
    panels[0].legend(frameon=False)
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
