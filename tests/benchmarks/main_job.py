"""What a newcomer may expect of the main job, `python train.py` without arguments.

    python tests/benchmarks/main_job.py

Writes results/main_job.{json,md}, and the block of the README.
"""

from report import RESULTS, insert, last, publish
from train_process import ROOT, run_train, seconds_of, warm_up

PAGES = RESULTS.parent


def sentences(found: dict) -> str:
    """The seconds of training, the last line, and what the simplest answer would give."""
    summary = found["summary"]
    precision = "  ".join(f"P@{k} {summary[f'p_at_{k}']:.4f}" for k in (1, 3, 5))
    return (
        f"On {found['machine']} the training takes {seconds_of(summary):.0f} seconds, and "
        f"the last line reads\n`{precision}  results/synthetic/<time stamp>`.\n"
        "Always answering the most frequent label would give a P@1 of "
        f"{summary['majority_p_at_1']:.4f}.\n"
    )


def page(found: dict) -> str:
    """The generated page."""
    return "# The main job\n\n" + sentences({"machine": "this machine"} | found)


def main() -> None:
    warm_up()
    summary, _ = run_train()
    publish("main_job", {"summary": summary}, page, PAGES)
    insert(ROOT / "README.md", "expect", sentences(last("main_job", PAGES)))


if __name__ == "__main__":
    main()
