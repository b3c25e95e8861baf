"""The page and the plot of `distributed.py`."""

from pathlib import Path
from typing import Any

import matplotlib
from links import LINKS
from rank_steps import ACTIVE, HIDDEN, NONZEROS
from report import table
from step_time import Work, exchange_ms, fit, pays_until, step_ms

# What is predicted and cannot be measured here.
MOST, FAR = 64, 10**8
_ROW = 4 * 3 * HIDDEN  # Bytes of a row and its two moments.


def runs_of(
    found: dict, case: str, link: str | None = None, apart: bool = False
) -> dict[int, dict]:
    """The runs of a case by their number of processes; ``apart``: those with a network each."""
    wanted = {"case": case, "link": link, "apart": apart}
    return {run["processes"]: run for run in found["runs"] if wanted.items() <= run.items()}


def work_of(found: dict, case: str) -> Work:
    """The work of a case, fitted to one and two processes on this machine."""
    runs = runs_of(found, case)
    return fit(runs[1], runs[2])


def measured(found: dict) -> list[dict[str, object]]:
    """A row for each run on this machine."""
    rows = []
    for case in found["cases"]:
        runs = runs_of(found, case)
        apart = runs_of(found, case, apart=True)
        for processes, run in [*runs.items(), *apart.items()]:
            one = runs[1]["samples_s"]
            speeds = [speed / one for speed in run["rounds"]]
            rows.append(
                {
                    "network": case,
                    "processes": f"{processes}, a network each" if run["apart"] else processes,
                    "samples/s": f"{run['samples_s']:,.0f}",
                    "times one process": f"{run['samples_s'] / one:.2f}",
                    "least and most": f"{min(speeds):.2f} to {max(speeds):.2f}",
                    "ms a step": f"{run['step_ms']:.1f}",
                    "exchange": f"{run['exchange_ms']:.2f} ms, "
                    f"{100 * run['exchange_ms'] / run['step_ms']:.0f} %",
                    "sent, KB": f"{run['bytes_sent'] / 1e3:,.0f}",
                    "memory of a process": f"{run['memory'] / 2**20:,.0f} MiB",
                    "share": f"{run['memory'] / runs[1]['memory']:.2f}",
                }
            )
    return rows


def compared(found: dict) -> list[dict[str, object]]:
    """A row for each run with more than one process: measured, and what the model says."""
    rows, known = [], {None: None} | {link.name: link for link in LINKS}
    for run in found["runs"]:
        if run["processes"] == 1 or run["apart"]:
            continue
        work = work_of(found, run["case"])
        said = step_ms(work, run["processes"], known[run["link"]], found["cores"])
        rows.append(
            {
                "network": run["case"],
                "between processes": run["link"] or "this machine",
                "processes": run["processes"],
                "measured, ms": f"{run['step_ms']:.1f}",
                "model, ms": f"{said:.1f}",
                "error": f"{100 * (said / run['step_ms'] - 1):+.0f} %",
            }
        )
    return rows


def predicted(found: dict) -> list[dict[str, object]]:
    """A row for each network and link: how many machines the model says are worth their price."""
    rows = []
    for case in found["cases"]:
        work = work_of(found, case)
        for link in LINKS:
            times = [(p, step_ms(work, p, link)) for p in powers()]
            best, first = pays_until(times), times[0][1]
            at = dict(times)
            rows.append(
                {
                    "network": case,
                    "between machines": link.name,
                    "pays up to": _machines(best),
                    "then times one": f"{first / at[best]:.1f}",
                    f"with {MOST} machines": f"{first / at[MOST]:.1f}",
                    "messages there": f"{exchange_ms(work, MOST, link):.1f} of {at[MOST]:.1f} ms",
                }
            )
    return rows


def memory() -> list[dict[str, object]]:
    """Memory of 10^8 labels on several machines: weights and moments alone."""
    return [
        {
            "machines": processes,
            "GiB each": f"{FAR * _ROW / processes / 2**30:,.0f}",
        }
        for processes in powers()
    ]


def _machines(number: int) -> str:
    return "1 machine" if number == 1 else f"{number} machines"


def powers() -> list[int]:
    """1, 2, 4, ... machines."""
    return [2**i for i in range(MOST.bit_length())]


def page(found: dict[str, Any]) -> str:
    """The page."""
    links = table(compared(found))
    if found["no_links"]:
        links = f"Links with a rate and a delay were not measured: {found['no_links']}.\n\n{links}"
    return f"""\
# Several processes

Commit {found["commit"] or "unknown"}. Each process has one thread; the machine has \
{found["cores"]} cores, so more processes than that take turns. {HIDDEN} hidden units, {NONZEROS} \
features a row, {ACTIVE:,} active outputs for the batch on all processes together, drawn \
uniformly; batch 256 where no other is named. Runs of {found["steps"]} steps, of which the median \
counts, alternate; medians over {len(found["runs"][0]["rounds"])} rounds. One process is the \
ordinary network. Processes with a network each exchange nothing: what they fall short of their \
number is what the machine's memory and caches take, and no division of work can get it back. \
Memory is that of weights, moments and indexes, without Python and its libraries. {exchange(found)}

{table(measured(found))}
## Networks, and a model of the time of a step

A step is work that the processes share out, work that each does in full, and messages. An \
all-reduce of b bytes on p processes that stand in a ring passes numbers on 2 (p - 1) times, and \
each process sends 2 b (p - 1) / p bytes.{beside(found)} Work, the handling of messages and the \
waiting for a slower process are fitted to one and two processes on this machine; rate and delay \
of a link are put in, not fitted. So the rows of two processes on this machine agree by \
themselves, and the others are predictions. Processes with a link are in network namespaces, a \
core each, and a program passes their packets on. With more processes than cores, work takes \
longer by their ratio; what they wait until they get a core again is not in the model.

{links}
## A prediction

Nothing here is measured: it is the model above, for machines with one such core each. It assumes \
that work is shared out evenly, and that a step costs as much with {FAR:,} labels as with the most \
that were measured. Machines pay as long as twice as many make steps at least 1.2 times as fast.

{table(predicted(found))}
{FAR:,} labels need this memory for weights and moments, whatever the speed:

{table(memory())}
![{title(found)}](distributed.png)
"""


def exchange(found: dict) -> str:
    """What the column of the exchange counts."""
    said = "The exchange includes waiting for the slower process."
    if not _hides(found):
        return f"{said} In this version nothing else was done meanwhile."
    return (
        f"{said} It counts begin and end of each message: what of the gradient of the hidden layer "
        "is sent while the gradient of the weight is computed is in the work."
    )


def beside(found: dict) -> str:
    """What the model says of the message that goes on beside work."""
    return _hides(found) * (
        " The message that goes on while the gradient of the weight is computed counts only as far "
        "as it takes longer than that."
    )


def _hides(found: dict) -> bool:
    """Whether these are figures of a version that does other work during an exchange."""
    return any("hiding_ms" in run for run in found["runs"])


def points_of(found: dict, case: str, link: str) -> list[tuple[int, float]]:
    """Processes and samples a second of the runs over a link that had a core each."""
    runs = runs_of(found, case, link)
    return [(p, run["samples_s"]) for p, run in runs.items() if p <= found["cores"]]


def title(found: dict) -> str:
    """The title of the plot."""
    links = [link.name for link in LINKS]
    if any(points_of(found, case, link) for case in found["cases"] for link in links):
        return "A prediction by the model; points are measured"
    return "A prediction by the model; there are no measured points"


def draw_curves(found: dict, path: Path) -> None:
    """Samples a second against machines: measured points, and the curves of the model."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(LINKS), figsize=(10, 4.5), sharey=True)
    for link, axes in zip(LINKS, panels, strict=True):
        for number, (case, sizes) in enumerate(found["cases"].items()):
            work, color = work_of(found, case), f"C{number}"
            speed = [1e3 * sizes["batch"] / step_ms(work, p, link) for p in powers()]
            axes.plot(powers(), speed, "--", color=color, label=f"{case} (prediction)")
            points = points_of(found, case, link.name)
            if points:
                axes.plot(*zip(*points, strict=True), "o", color=color)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set(title=link.name, xlabel="machines of one core")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("samples/s")
    panels[0].legend(fontsize=7)
    figure.suptitle(title(found))
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
