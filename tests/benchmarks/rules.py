"""The rules for settings that follow from the data: each rule's value against half and double.

    python tests/benchmarks/rules.py --root path/to/data
    python tests/benchmarks/rules.py --root path/to/data --datasets debian synthetic --seeds 0 1

The rules are those of slide/sizes.py: rows in a batch, outputs in an active set, width of
the hidden layer, size of the first weights of the outputs. The network alone, ranker=none, is
judged on training rows that are held out; each run is a process of train.py that changes one
setting. Six real sets, and two generated ones. Writes results/rules.{json,md} after each row; rows
that there are for this commit and machine are not measured again (rows.py).
"""

import argparse
import math
import os
import resource
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from report import table
from rows import Row, Store, add_options, numbers, origin, parse, spread
from sets import HELD_OUT, place
from train_process import ROOT, run_train, warm_up

from slide import runtime
from slide.config import fill_in, open_dataset, read_config, user_errors

# The settings of the rules, and what they are called.
RULES = {
    "trainer.batch_size": "rows in a batch",
    "sampler.active": "outputs in an active set",
    "network.hidden": "width of the hidden layer",
    "network.output_scale": "size of the first weights of the outputs",
}
GENERATED = {
    "synthetic": ["dataset=synthetic"],
    "amazon670k_like": [
        "dataset=amazon670k_like",
        "dataset.train_samples=50000",
        "dataset.test_samples=1000",
        "dataset.cache=datasets/amazon670k_like/cache_50000",
        "trainer.max_epochs=5",
    ],
}
FACTORS = {"half": 0.5, "double": 2}
# The run in which each setting has its rule's value.
BASE = {"rule": "all", "factor": "one"}
KEPT = ("p_at_1", "p_at_3", "p_at_5", "psp_at_1", "psp_at_5", "epochs", "peak_rss_mb")


def chosen(name: str, root: Path) -> list[str]:
    """The overrides that choose a set, and what all of its runs have in common."""
    held_out = f"dataset.holdout={HELD_OUT.get(name, 0.1)}"
    where = GENERATED.get(name) or place(name, root)
    return [*where, held_out, "ranker=none", "trainer.recall_every=0"]


def values_of(overrides: list[str]) -> Row:
    """What the rules say for a data set, and about how many rows are held out and ``judged``."""
    with user_errors():
        config = read_config(overrides)
        data = open_dataset(config)
    fill_in(config, len(data.train), data.num_labels)
    values = {key: value_of(config, key) for key in RULES}
    return {"values": values, "judged": round(config.dataset.holdout * len(data.train))}


def value_of(config: DictConfig, key: str) -> float:
    """The value of a setting; of a list with one width, the width."""
    group, name = key.split(".")
    value = config[group][name]
    return value[0] if name == "hidden" else value


def override(key: str, value: float) -> str:
    """A setting on the command line; counts and widths are whole numbers."""
    if key == "network.output_scale":
        return f"{key}={value:g}"
    return f"{key}=[{round(value)}]" if key == "network.hidden" else f"{key}={round(value)}"


def measure(store: Store, name: str, root: Path, seeds: list[int]) -> None:
    """All missing rows of a data set."""
    sides = [{"rule": rule, "factor": factor} for rule in RULES for factor in FACTORS]
    cases = [{"dataset": name, "seed": s} | case for s in seeds for case in [BASE, *sides]]
    overrides, known = chosen(name, root), {}
    for case in store.missing(cases):
        known = known or values_of(overrides)
        rule, more = case["rule"], []
        if case["factor"] in FACTORS:
            more = [override(rule, FACTORS[case["factor"]] * known["values"][rule])]
        before = processor_seconds()
        summary, _ = run_train(*overrides, *more, f"seed={case['seed']}")
        found = known | {key: summary[key] for key in KEPT}
        store.add([case | found | {"processor_seconds": round(processor_seconds() - before, 1)}])


def processor_seconds() -> float:
    """Seconds that ended processes of this one have computed."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def page(found: dict[str, Any]) -> str:
    """The generated page."""
    rows = found["rows"]
    text = (
        "# The values that follow from the data\n\n"
        "`slide/config/defaults.py` sets four values by the numbers of rows and labels. Each of "
        "them is compared with half and with double of it, while the others stay. The network "
        "alone (`ranker=none`), in points, on training rows that are held out; processor seconds "
        "are those of the whole run, reading and evaluation included. Of several seeds the mean, "
        "and half the range. The standard error is that of one P@1 from so many rows; differences "
        "that are not larger say little. synthetic and amazon670k_like (50,000 rows, at most five "
        "epochs) are generated. With few labels the labels of a batch fill its set, whatever the "
        "number of outputs.\n"
    )
    names = [*HELD_OUT, *GENERATED, *sorted({row["dataset"] for row in rows})]
    for rule, title in RULES.items():
        cells = [line(rows, name, rule) for name in dict.fromkeys(names)]
        if cells := [each for each in cells if each]:
            text += f"\n## {title[0].upper()}{title[1:]}: `{rule}`\n\n" + table(cells)
    return text + origin(rows)


def line(rows: list[Row], name: str, rule: str) -> dict[str, str] | None:
    """A data set in the table of a rule; None: a run is missing.

    Only seeds count of which all three runs were made of the same commit.
    """
    wanted = ({"rule": rule, "factor": "half"}, BASE, {"rule": rule, "factor": "double"})
    own = [row for row in rows if row["dataset"] == name]
    tried: list[list[Row]] = []
    for seed in sorted({row["seed"] for row in own}):
        case = {"seed": seed}
        found = [row for w in wanted for row in own if (w | case).items() <= row.items()]
        if len(found) == len(wanted) and len({row["code"] for row in found}) == 1:
            tried.append(found)
    if not tried:
        return None
    first = tried[0][1]
    columns = {
        "p_at_1": ("P@1", 100),
        "p_at_5": ("P@5", 100),
        "processor_seconds": ("processor, s", 1),
    }
    out = {"data set": name, "seeds": numbers(runs[0]["seed"] for runs in tried)}
    out["by the rule"] = f"{first['values'][rule]:,g}"
    for key, (title, scale) in columns.items():
        for place_of, factor in enumerate(("half", "rule", "double")):
            values = [runs[place_of][key] for runs in tried]
            out[f"{title}, {factor}"] = spread(values, scale=scale)
        if key == "p_at_1":
            share = first[key]
            error = math.sqrt(share * (1 - share) / first["judged"])
            out["its standard error"] = f"{100 * error:.1f}"
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_options(parser, [*HELD_OUT, *GENERATED], [0])
    arguments = parse(parser)
    runtime.set_threads(0)
    store = Store("rules", ("dataset", "seed", "rule", "factor"), page, arguments)
    if arguments.render:
        return store.render()
    os.chdir(ROOT)  # Caches lie in its datasets/.
    warm_up()
    for name in arguments.datasets:
        measure(store, name, arguments.root, arguments.seeds)
    store.render()
    store.report()


if __name__ == "__main__":
    main()
