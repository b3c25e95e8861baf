"""The model card of a model folder: a README.md for people, and for hubs of models.

Names come from data sets and columns of strangers: they are text, and never Markdown, HTML or YAML.
"""

import json
import os
import platform
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slide.runtime import versions
from slide.utils.checks import counted, shortened
from slide.utils.figures import KIND_METRICS
from slide.utils.files import read_text, write_text

if TYPE_CHECKING:
    from slide.model.model import Model

CARD = "README.md"
# The key of a model's settings with what is known of its run.
SUMMARY = "summary"
_MARK = "<!-- Written by slide, again whenever the model is saved: without this line it stays. -->"
_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")
_PLACE = re.compile(r"[/\\]|^(run_dir|resume)=")
_FACTS = ("train_rows", "eval_rows", "steps", "train_seconds", "peak_rss_mb")
# What is measured on other rows, by its name in the summary of a run.
_SCORES = {"P@1": "p_at_1", "P@3": "p_at_3", "P@5": "p_at_5", **KIND_METRICS}


def is_card(path: Path) -> bool:
    """Whether a file is a card that `write_card` has written, and may write again."""
    try:
        return path.name == CARD and not path.is_symlink() and _MARK in read_text(path)
    except (OSError, ValueError):
        return False


def write_card(folder: Path, model: "Model", dtype: str) -> None:
    """Write the card of a model into its folder, unless something else is there."""
    path = folder / CARD
    if is_card(path) or not (path.is_symlink() or path.exists()):
        write_text(path, model_card(model, dtype))


def facts_of(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What a model keeps of the ``summary.json`` of its run, in its ``settings``, for the card."""
    found = {name: summary.get(name) for name in (*_FACTS, *_SCORES.values())}
    return {name: each for name, each in found.items() if isinstance(each, int | float)} | {
        "evaluated_on": "test" if summary.get("evaluated_on") == "test" else "holdout"
    }


def model_card(model: "Model", dtype: str) -> str:
    """The text of the card."""
    kept = model.settings.get(SUMMARY)
    summary = facts_of(kept) if isinstance(kept, dict) else {}  # A stranger may have written it.
    name = shortened(model.name) or "model"
    scores = {head: (key, summary[key]) for head, key in _SCORES.items() if key in summary}
    columns = None
    if isinstance(model.settings.get("columns"), dict):
        with suppress(ValueError):  # Who opens the model is told.
            columns = model.columns
    layers = [layer.out_features for layer in model.network.layers()]
    widths = [model.network.first.in_features, *layers]
    rows = {
        "data set": None if "classifier" in model.settings else _escaped(name),
        "training rows": f"{summary['train_rows']:,}" if "train_rows" in summary else None,
        "features": f"{model.num_features:,}",
        "labels": f"{model.num_labels:,}{', with names' if model.label_names else ''}",
        "columns": None if columns is None else _escaped(shortened(", ".join(columns.names))),
        "network": f"{' → '.join(f'{each:,}' for each in widths)}, {dtype}",
        "re-ranker": "yes; scores are probabilities" if model.ranker is not None else "no",
        **{
            f"{head}, {_measured_on(summary)}": f"{score:.4f}"
            for head, (_, score) in scores.items()
        },
        "training": _training(summary),
        "written": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }
    table = [f"| {head} | {cell} |" for head, cell in rows.items() if cell is not None]
    given = [f"    {word}" for word in _given(model.settings)]
    settings = ["These differ from the defaults:", "", *given] if given else ["The defaults."]
    return "\n".join(
        [
            *_front_matter(model, name, scores, _measured_on(summary)),
            *("", _MARK, "", f"# {_escaped(name)}", ""),
            f"A network for {counted(model.num_labels, 'label')}, trained with slide.",
            *("", "| | |", "|---|---|", *table, "", "## Settings", "", *settings),
            *("", "## Use", "", *_usage(model, columns is not None), ""),
        ]
    )


def _front_matter(
    model: "Model", name: str, scores: Mapping[str, tuple[str, float]], measured_on: str
) -> list[str]:
    """What hubs read, in YAML, of which JSON is a part."""
    kind = "tabular" if model.vectorizer is None else "text"
    front: dict[str, Any] = {
        "library_name": "slide",
        "tags": ["slide", "extreme-classification", f"{kind}-classification"],
    }
    if scores:
        metrics = [{"type": key, "name": h, "value": x} for h, (key, x) in scores.items()]
        result = {
            "task": {"type": f"{kind}-classification"},
            "dataset": {"type": name, "name": f"{name}, {measured_on}"},
            "metrics": metrics,
        }
        front["metrics"] = [key for key, _ in scores.values()]
        front["model-index"] = [{"name": name, "results": [result]}]
    values = (f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in front.items())
    return ["---", *values, "---"]


def _measured_on(summary: Mapping[str, Any]) -> str:
    rows = counted(summary["eval_rows"], "row") if "eval_rows" in summary else "rows"
    return f"{rows} of the {'test set' if summary.get('evaluated_on') == 'test' else 'holdout'}"


def _training(summary: Mapping[str, Any]) -> str | None:
    if not summary.keys() >= {"steps", "train_seconds", "peak_rss_mb"}:
        return None
    return (
        f"{counted(summary['steps'], 'step')} in {summary['train_seconds']:,.0f} s, "
        f"{summary['peak_rss_mb']:,} MiB of memory at most"
    )


def _given(settings: Mapping[str, Any]) -> list[str]:
    """The settings that were given, as they were typed, without places on the machine."""
    for group, name in (("command", "words"), ("classifier", "changed")):
        found = settings.get(group)
        words = found.get(name) if isinstance(found, dict) else None
        if isinstance(words, list):
            return [shortened(word) for word in words if not _PLACE.search(str(word))]
    return []


def _usage(model: "Model", of_table: bool) -> list[str]:
    rows = f"rows: a matrix of NumPy or SciPy with {counted(model.num_features, 'column')}"
    if of_table:
        rows = "rows: a frame, or a list of dicts, with the columns above"
    elif model.vectorizer is not None:
        rows = "rows: a list of texts"
    return [
        *("```python", "import slide", ""),
        'model = slide.load("path/of/this/folder")  # or "hf://owner/name"',
        f"labels, scores = model.predict(rows, k=5)  # {rows}",
        "```",
    ]


def _escaped(text: str) -> str:
    """A text of one line for Markdown, in which no character means more than itself."""
    return _PUNCTUATION.sub(r"\\\1", text)
