"""The page and the picture of time_to_precision.py."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from curves import SHOWN
from matplotlib import pyplot as plt
from matplotlib.ticker import NullFormatter
from report import table
from rows import Row, origin

TITLES = {
    "slide": "**slide**",
    "slide-fast": "**slide**, small network",
    "omikuji-1": "omikuji, 1 tree",
    "omikuji-3": "omikuji, 3 trees",
    "pecos-1": "PECOS XR-Linear, 1 model",
    "pecos-3": "PECOS XR-Linear, 3 models",
    "dense": "dense PyTorch",
    "sampled": "sampled softmax, PyTorch",
}
OURS = ("slide", "slide-fast")
PICTURE = "time_to_precision.png"
AXES = dict(zip(SHOWN, ("P@1", "P@5", "PSP@5"), strict=True))
# Sets of more labels have the target: at most this share of the best peer's seconds.
LARGE, TARGET = 30_000, 0.5
NEVER = "not reached"

ABOUT = """\
# Time to precision

How long does training take until the answers are as good as those of the best peer in the end? \
slide is `train.py` without any setting but the seed; the small network is that of the \
measurements of speed. omikuji and PECOS XR-Linear have their default settings. Dense PyTorch is \
the default recipe's network with all outputs, its squared hinge loss and fused Adam; sampled \
softmax is the same network with a softmax over the labels of the batch and uniform draws, and \
SparseAdam. Both have the recipe's width, rates, dropout and batch size, which were chosen for \
slide and not for them, and their rates fall to 0 in a straight line. No setting is chosen by the \
test rows. All ran on the same cores, one after another.

**Seconds** are those of all training, reading the rows aside. Ours: all of a step (batches, \
selection, products, gradients, updates, rebuilds), the evaluations on held-out rows \
that decide how long to train, and for the last point the re-ranker with all it \
learns from. The clock stands still while test rows are judged, and kernels are compiled \
beforehand. omikuji's seconds hold reading the rows as text; those of PECOS hold the embeddings of \
labels, the clustering and the training of all its models. Dense PyTorch and sampled softmax: \
all steps, and no judging.

**Points**: ours after each epoch (the network alone), at the end of the network's training, and \
after re-ranking; dense PyTorch and sampled softmax after each epoch; omikuji and PECOS have one. \
All points of a set are judged on the same test rows, spread evenly over it, and seconds to reach \
a peer's precision are those of the first point that is as high as the peer's on these rows. The \
final precision is on the whole test set. Where our default call leaves known labels out of its \
answers (`ranker.known=auto`), they are left out of everyone's.
"""


def page(found: dict[str, Any]) -> str:
    """The generated page."""
    rows = in_order(found["rows"])
    sets = list(dict.fromkeys(row["dataset"] for row in rows))
    text = ABOUT
    if limits := {f"{row['limit_minutes']:g}" for row in rows if "limit_minutes" in row}:
        text += f"\nDense PyTorch and sampled softmax trained for {' or '.join(sorted(limits))} "
        text += "minutes at most.\n"
    text += f"\n![precision over seconds]({PICTURE})\n"
    best = [line for name in sets for line in against_best(of(rows, dataset=name))]
    if best:
        text += (
            "\n## Seconds to the best peer's precision\n\n"
            f"The target is a ratio of at most {TARGET:g} on sets above {LARGE:,} labels.\n\n"
            + table(best)
        )
    every = [line for name in sets for line in against_all(of(rows, dataset=name))]
    if every:
        text += (
            "\n## Seconds to each peer's precision\n\nOur seconds divided by the peer's. "
            "A method that was stopped is compared with as far as it came.\n\n" + table(every)
        )
    if tails := [tail(row) for row in rows if row["method"] in OURS and row["ranker_seconds"]]:
        text += (
            "\n## The tail of a run\n\nWhat comes after the steps: the re-ranker with its "
            "candidates and classifiers, and the evaluation on all test rows. The target is that "
            "both together take at most as long as the steps.\n\n" + table(tails)
        )
    text += "\n## All methods\n"
    for name in sets:
        own = of(rows, dataset=name)
        judged = " or ".join(sorted({f"{row['judged']:,}" for row in own if row["curve"]}))
        text += f"\n### {name}\n\nIts points are judged on {judged} test rows.\n\n"
        text += table([line_of(row) for row in own])
    return text + origin(rows)


def in_order(rows: list[Row]) -> list[Row]:
    """Sets as they stand, by their number of labels; methods as in `TITLES`."""
    methods = list(TITLES)
    sizes: dict[str, int] = {}
    for row in rows:
        sizes[row["dataset"]] = max(sizes.get(row["dataset"], 0), row.get("labels", 0))

    def place(row: Row) -> tuple[Any, ...]:
        name = row["dataset"]
        return sizes[name], name, methods.index(row["method"]), row["seed"] or 0

    return sorted(rows, key=place)


def of(rows: list[Row], **case: Any) -> list[Row]:
    """The rows of a case."""
    return [row for row in rows if case.items() <= row.items()]


def finished(rows: list[Row]) -> list[Row]:
    """The rows of peers that have scores."""
    return [row for row in rows if row["method"] not in OURS and row["curve"]]


def reached(curve: list[list[float]], level: float) -> float | None:
    """Seconds of the first point of a curve whose P@1 is at least ``level``; None: there is none.

    Args:
        curve: points; see `curves.point`.
        level: in [0, 1].
    """
    return next((seconds for seconds, p_at_1, *_ in curve if p_at_1 >= level), None)


def ratio(own: Row, peer: Row) -> float | None:
    """Our seconds to a peer's last precision, divided by its seconds; None: never reached."""
    seconds = reached(own["curve"], peer["curve"][-1][1])
    return None if seconds is None else seconds / peer["train_seconds"]


def verdict(share: float | None, labels: int) -> str:
    """Whether the target is met; empty for sets without one."""
    if labels <= LARGE:
        return "no target"
    return "met" if share is not None and share <= TARGET else "**missed**"


def against_best(rows: list[Row]) -> list[dict[str, str]]:
    """Lines of the first table: ours beside the peer with the highest P@1."""
    peers, own = finished(rows), [row for row in rows if row["method"] in OURS]
    if not peers:
        return []
    best = max(peers, key=lambda row: row["p_at_1"])
    lines = []
    for row in own:
        seconds, share = reached(row["curve"], best["curve"][-1][1]), ratio(row, best)
        lines.append(
            {
                "data set": row["dataset"],
                "labels": f"{row['labels']:,}",
                "best peer": TITLES[best["method"]] + stopped(best),
                "its P@1": f"{100 * best['p_at_1']:.1f}",
                "its seconds": f"{best['train_seconds']:.1f}",
                "ours": title(row, own),
                "our P@1": f"{100 * row['p_at_1']:.1f}",
                "seconds to its P@1": NEVER if seconds is None else f"{seconds:.1f}",
                "ratio": "" if share is None else f"{share:.2f}",
                "target": verdict(share, row["labels"]),
            }
        )
    return lines


def against_all(rows: list[Row]) -> list[dict[str, str]]:
    """Lines of the second table: the ratio to each peer."""
    peers = {row["method"]: row for row in finished(rows)}
    own = [row for row in rows if row["method"] in OURS]
    lines = []
    for row in own if peers else []:
        cells = {"data set": row["dataset"], "ours": title(row, own)}
        for method in list(TITLES)[len(OURS) :]:
            share = ratio(row, peers[method]) if method in peers else None
            shown = NEVER if share is None else f"{share:.2f}"
            cells[TITLES[method]] = shown if method in peers else ""
        lines.append(cells)
    return lines


def tail(row: Row) -> dict[str, str]:
    """A line of the table of tails."""
    steps, ranker, last = (row[f"{part}_seconds"] for part in ("network", "ranker", "eval"))
    share = (ranker + last) / steps
    return {
        "data set": row["dataset"],
        "ours": TITLES[row["method"]],
        "labels": f"{row['labels']:,}",
        "steps, s": f"{steps:.1f}",
        "re-ranker, s": f"{ranker:.1f}",
        "evaluation, s": f"{last:.1f}",
        "tail / steps": f"{share:.2f}",
        "target": "met" if share <= 1 else "**missed**",
    }


def title(row: Row, rows: list[Row]) -> str:
    """The method, and its seed if it has several."""
    several = len(of(rows, method=row["method"])) > 1
    return TITLES[row["method"]] + (f", seed {row['seed']}" if several else "")


def stopped(row: Row) -> str:
    """How far a method came that was stopped; else empty."""
    if row.get("planned", 0) <= row.get("epochs", 0):
        return ""
    return f", stopped after {row['epochs']:.2g} of {row['planned']} epochs"


def line_of(row: Row) -> dict[str, str]:
    """A method's line in the table of its data set."""
    name = TITLES[row["method"]] + (f", seed {row['seed']}" if row["seed"] else "")
    if not row["curve"]:
        why = f"needs {row['needs_gib']} GiB" if "needs_gib" in row else "killed for its memory"
        return dict.fromkeys(line_of(EMPTY), "") | {"method": f"{name}: does not fit, {why}"}

    def triple(kind: str) -> str:
        return " / ".join(f"{100 * row[f'{kind}_at_{k}']:.1f}" for k in (1, 3, 5))

    ranker = row.get("ranker_seconds")
    return {
        "method": name + stopped(row),
        "P@1 / P@3 / P@5": triple("p"),
        "PSP@1 / PSP@3 / PSP@5": triple("psp"),
        "epochs": f"{row['epochs']:.3g}" if "epochs" in row else "",
        "training, s": f"{row['train_seconds']:.1f}",
        "of it the re-ranker, s": f"{ranker:.1f}" if ranker else "",
        "peak memory, MB": f"{row['peak_rss_mb']:,}" if "peak_rss_mb" in row else "",
    }


EMPTY: Row = {"method": "slide", "seed": None, "curve": [[0.0]], "train_seconds": 0.0} | {
    f"{kind}_at_{k}": 0.0 for kind in ("p", "psp") for k in (1, 3, 5)
}


def draw(rows: list[Row], folder: Path) -> None:
    """A picture for each set and each of `AXES`."""
    rows = in_order([row for row in rows if row["curve"]])
    sets = list(dict.fromkeys(row["dataset"] for row in rows))
    if not sets:
        return
    size = 4 * len(sets) + 1, 3 * len(AXES)
    figure, grid = plt.subplots(len(AXES), len(sets), figsize=size, sharex="col", squeeze=False)
    for column, name in enumerate(sets):
        for line, (key, label) in enumerate(AXES.items()):
            axes, place = grid[line][column], 1 + SHOWN.index(key)
            for row in of(rows, dataset=name):
                points = [(each[0], 100 * each[place]) for each in row["curve"]]
                color = f"C{list(TITLES).index(row['method'])}"
                mark = ".-" if len(points) > 1 else "D"
                axes.plot(*zip(*points, strict=True), mark, color=color, label=row["method"])
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.grid(alpha=0.3)
            axes.set(ylabel=label if not column else None, title=None if line else name)
        grid[-1][column].set_xlabel("seconds of training")
    handles = {}
    for axes in figure.axes:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(
        handles.values(), handles.keys(), loc="lower center", ncols=min(len(handles), 2 * len(sets))
    )
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    figure.savefig(folder / PICTURE, dpi=120)
    plt.close(figure)
