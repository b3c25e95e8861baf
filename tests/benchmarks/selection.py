"""Do looked-up outputs teach more than uniform draws: precision at equal steps, and equal seconds.

    python tests/benchmarks/selection.py --root path/to/data

A pair of runs of train.py a case, alike but for the sampler, side by side on a thread each, so that
their seconds compare. The network alone, at a constant rate, judged several times on the way: on
held-out training rows of debian, and on test rows of the generated set of Amazon-670K's shape.
Seconds hold all of a step, rebuilds included. Writes results/benchmarks/selection.{json,md}.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from accuracy import curve_of, train
from report import publish, table

SAMPLERS = ("uniform", "lsh")
COMMON = [
    *("ranker=none", "lr_schedule=constant", "optimizer.lr=0.002", "network.init_scale=0.2"),
    *("network.input_rate=4", "network.precision=bfloat16", "runtime.threads=1"),
]
LARGE = ["recipe=fast", "dataset.test_samples=2000", "trainer.epochs=1"]
SMALL = "network.output_scale=0.1"  # As the default recipe has it for so many labels, if shared.
DEBIAN = ["trainer.holdout=0.1", "network.hidden=[256]", "trainer.epochs=3"]
PER_SAMPLE = ["selection.mode=per_sample", "trainer.batch_size=128", "selection.candidate_share=0.5"]
# name: data set, steps between evaluations, overrides
CASES = {
    "670,091 labels, 4,096 for a batch, usual first weights": ("amazon670k_like", 380, LARGE),
    "670,091 labels, 4,096 for a batch, small first weights": (
        *("amazon670k_like", 380),
        [*LARGE, SMALL],
    ),
    "670,091 labels, 128 for a sample, usual first weights": (
        *("amazon670k_like", 766),
        [*LARGE, *PER_SAMPLE, "selection.active=128"],
    ),
    "670,091 labels, 128 for a sample, small first weights": (
        *("amazon670k_like", 766),
        [*LARGE, SMALL, *PER_SAMPLE, "selection.active=128"],
    ),
    "debian, 1,024 for a batch": ("debian", 96, [*DEBIAN, "selection.active=1024"]),
    "debian, 128 for a sample": ("debian", 192, [*DEBIAN, *PER_SAMPLE, "selection.active=128"]),
}


def run(root: Path, case: str, sampler: str) -> dict:
    """A row of results."""
    dataset, every, overrides = CASES[case]
    evaluate = [f"trainer.{key}_every={every}" for key in ("eval", "log", "recall")]
    more = [f"sampler={sampler}", *COMMON, *overrides, *evaluate]
    summary, log = train(dataset, root if dataset == "debian" else None, more)
    recall = [line["selection/recall"] for line in log if "selection/recall" in line]
    return {
        "case": case,
        "sampler": sampler,
        "curve": curve_of(log),
        "recall": float(np.mean(recall)),
        "p_at_1": summary["p_at_1"],
        "psp_at_5": summary["psp_at_5"],
        "train_seconds": summary["train_seconds"],
        "active_mean": summary["active_mean"],
    }


def at(row: dict, seconds: float) -> float:
    """P@1 of a run after so many seconds, on the line between the evaluations before and after."""
    times, precision = zip(*row["curve"], strict=True)
    return float(np.interp(seconds, times, precision))


def page(found: dict) -> str:
    """The generated page."""
    lines = []
    for case in dict.fromkeys(row["case"] for row in found["rows"]):
        pair = {row["sampler"]: row for row in found["rows"] if row["case"] == case}
        seconds = min(row["curve"][-1][0] for row in pair.values())
        for sampler, row in pair.items():
            lines.append(
                {
                    "case": case,
                    "sampler": sampler,
                    "outputs a set": f"{row['active_mean']:.0f}",
                    "recall of the top 10": f"{row['recall']:.3f}",
                    "P@1 at equal steps": f"{100 * row['p_at_1']:.2f}",
                    "P@1 at equal seconds": f"{100 * at(row, seconds):.2f}",
                    "PSP@5 at equal steps": f"{100 * row['psp_at_5']:.2f}",
                    "seconds": f"{row['train_seconds']:.0f}",
                }
            )
    return (
        "# Looked-up outputs against uniform draws\n\n"
        "Sets of the same size for both; labels are in all of them. Recall: share of the ten "
        "largest products of an input that its set holds. At equal seconds: those of the faster "
        "of the two. One thread a run.\n\n" + table(lines)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True, help="folder with a folder a data set")
    root = parser.parse_args().root.resolve()
    rows = []
    with ThreadPoolExecutor(len(SAMPLERS)) as pool:
        for case, (dataset, _, overrides) in CASES.items():
            # Prepared and compiled once, before two runs want it.
            short = [*COMMON, *overrides, "trainer.max_steps=1", "trainer.eval_samples=1"]
            train(dataset, root if dataset == "debian" else None, ["sampler=lsh", *short])
            rows += pool.map(lambda sampler, case=case: run(root, case, sampler), SAMPLERS)
            print(*rows[-2:], sep="\n", flush=True)
    publish("selection", {"rows": rows}, page)


if __name__ == "__main__":
    main()
