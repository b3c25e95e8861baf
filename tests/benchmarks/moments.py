"""The decay of Adam's moments: the default, which keeps no first moment, against others.

    python tests/benchmarks/moments.py --root path/to/data
    python tests/benchmarks/moments.py --root path/to/data --datasets debian --seeds 0 1

The network alone, ranker=none; see study.py. Writes results/moments.{json,md}.
"""

from rules import GENERATED, chosen
from sets import HELD_OUT
from study import DEFAULT, Study

STUDY = Study(
    name="moments",
    text=(
        "# The decay of the moments: `optimizer.betas`\n\n"
        "By default a step uses the gradient itself and keeps no first moment, and the second one "
        "decays by 0.99. Compared with other decays, in points, for the network alone "
        "(`ranker=none`) on training rows that are held out: the mean of the seeds, and half the "
        "range. In brackets the difference to the default on the same rows; bold where several "
        "seeds agree on the sign. Without a first moment a step reads and writes a third less "
        "memory. synthetic and amazon670k_like (50,000 rows, at most five epochs) are generated.\n"
    ),
    column="betas",
    variants={
        DEFAULT: [],
        "0 and 0.999": ["optimizer.betas=[0,0.999]"],
        "0.9 and 0.999": ["optimizer.betas=[0.9,0.999]"],
    },
    chosen=chosen,
    datasets=[*HELD_OUT, *GENERATED],
    only={},
)

if __name__ == "__main__":
    STUDY.run(__doc__.splitlines()[0])
