"""What it is worth to let a run choose its settings: search=quick and search=full, and some fixed.

    python tests/benchmarks/choices.py --root path/to/data
    python tests/benchmarks/choices.py --root path/to/data --datasets debian --seeds 0 1 2

Whole default runs, with re-ranker, on a quiet machine, because times are compared; see study.py.
ablation.py has more fixed settings. Writes results/choices.{json,md}.
"""

from pathlib import Path

from sets import HELD_OUT, place
from study import DEFAULT, Study, held_out

QUICK = "search=quick"
VARIANTS = {
    DEFAULT: [],
    QUICK: ["search=quick"],
    "search=full": ["search=full"],
    "softmax": ["loss=softmax"],
    "a fifth of the features dropped": ["network.input_dropout=0.2"],
    "half of the hidden units": ["network.hidden=[256]"],
}


def chosen(name: str, root: Path) -> list[str]:
    """The overrides that choose a set, and what all of its runs have in common."""
    return [*place(name, root), held_out(name), "trainer.recall_every=0", "report=false"]


STUDY = Study(
    name="choices",
    text=(
        "# Settings that a run chooses, or that are fixed\n\n"
        "The default, `search=none`, has the same settings on all data, but for sizes that follow "
        "from the numbers of rows and labels, the length of the training, and what the re-ranker "
        "learns. With `search=quick` or `search=full` short races between networks choose more. "
        "Whole runs with the re-ranker, on training rows that are held out: the mean of the seeds "
        "in points, and half the range. In brackets the difference to the default on the same "
        "rows; bold where several seeds agree on the sign. Training holds races, network, held-out "
        "evaluations and re-ranker.\n"
    ),
    column="setting",
    variants=VARIANTS,
    chosen=chosen,
    datasets=list(HELD_OUT),
    only={"files": [DEFAULT, QUICK]},  # Runs take minutes there.
)

if __name__ == "__main__":
    STUDY.run(__doc__.splitlines()[0])
