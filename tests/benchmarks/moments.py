"""The decay of Adam's moments: the default, which keeps no first moment, against others.

    python tests/benchmarks/moments.py --root path/to/data
    python tests/benchmarks/moments.py --root path/to/data --datasets debian --seeds 0 1

The network alone, ranker=none, is judged on training rows that are held out, as in rules.py; each
run is a process of train.py. Writes results/moments.{json,md} after each row; rows that there are
for this commit and machine are not measured again (rows.py).
"""

import argparse
import os
from typing import Any

from report import table
from rows import Row, Store, add_options, gain, numbers, origin, parse, spread
from rules import GENERATED, KEPT, chosen
from sets import HELD_OUT
from train_process import ROOT, run_train, warm_up

from slide import runtime

DEFAULT = "default"
# optimizer.betas
VARIANTS = {
    DEFAULT: [],
    "0 and 0.999": ["optimizer.betas=[0,0.999]"],
    "0.9 and 0.999": ["optimizer.betas=[0.9,0.999]"],
}


def page(found: dict[str, Any]) -> str:
    """The generated page."""
    rows = found["rows"]
    text = (
        "# The decay of the moments: `optimizer.betas`\n\n"
        "By default a step uses the gradient itself and keeps no first moment, and the second one "
        "decays by 0.99. Compared with other decays, in points, for the network alone "
        "(`ranker=none`) on training rows that are held out: the mean of the seeds, and half the "
        "range. In brackets the difference to the default on the same rows; bold where several "
        "seeds agree on the sign. Without a first moment a step reads and writes a third less "
        "memory. synthetic and amazon670k_like (50,000 rows, at most five epochs) are generated.\n"
    )
    for name in [*HELD_OUT, *GENERATED]:
        if own := [row for row in rows if row["dataset"] == name]:
            text += f"\n## {name}\n\nSeeds {numbers(row['seed'] for row in own)}.\n\n"
            text += table([line(own, variant) for variant in VARIANTS])
    return text + origin(rows)


def line(rows: list[Row], variant: str) -> dict[str, str]:
    """The line of a variant, of the seeds that have it and the default."""
    base = {row["seed"]: row for row in rows if row["variant"] == DEFAULT}
    own = [row for row in rows if row["variant"] == variant and row["seed"] in base]
    out = {"betas": variant, "P@1": "", "P@5": "", "training, s": ""}
    if own:
        same = [base[row["seed"]] for row in own]
        for name, column in (("p_at_1", "P@1"), ("p_at_5", "P@5")):
            alone = spread([row[name] for row in own])
            out[column] = alone if variant == DEFAULT else gain(own, same, name)
        out["training, s"] = spread([row["train_seconds"] for row in own], scale=1)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, [*HELD_OUT, *GENERATED], [0, 1])
    arguments = parse(parser)
    runtime.set_threads(0)
    store = Store("moments", ("dataset", "seed", "variant"), page, arguments)
    if arguments.render:
        return store.render()
    os.chdir(ROOT)  # Caches lie in its datasets/.
    warm_up()
    for name in arguments.datasets:
        for seed in arguments.seeds:
            cases = [{"dataset": name, "seed": seed, "variant": each} for each in VARIANTS]
            for case in store.missing(cases):
                more = VARIANTS[case["variant"]]
                summary, _ = run_train(*chosen(name, arguments.root), *more, f"seed={seed}")
                store.add([case | {key: summary[key] for key in (*KEPT, "train_seconds")}])
    store.render()
    store.report()


if __name__ == "__main__":
    main()
