"""What a newcomer may expect of the main job, `python train.py` without arguments.

    python benchmarks/main_job.py

Writes results/main_job.json, and the block of the README.
"""

import json
import time

from harness import PAGES, ROOT, insert, machine, run_train, warm_up


def sentences(found: dict) -> str:
    """The seconds of training, the last line, and what the simplest answer would give."""
    summary = found["summary"]
    precision = "  ".join(f"P@{k} {summary[f'p_at_{k}']:.4f}" for k in (1, 3, 5))
    return (
        f"On {found['machine']} the training takes {summary['train_seconds']:.0f} seconds, and "
        f"the last line reads\n`{precision}  results/synthetic/<time stamp>`.\n"
        "Always answering the most frequent label would give a P@1 of "
        f"{summary['majority_p_at_1']:.4f}.\n"
    )


def main() -> None:
    warm_up()
    found = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "summary": run_train()}
    (PAGES / "main_job.json").write_text(json.dumps(found, indent=1) + "\n")
    insert(ROOT / "README.md", "expect", sentences(found))


if __name__ == "__main__":
    main()
