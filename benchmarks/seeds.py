"""What custom sparse layers were asked for, and what this library does: each against PyTorch.

    python benchmarks/seeds.py --root path/to/data

`--only conv` runs one of them and leaves what the page says of the others, unless that was found on
another machine or with other versions. Without --root the images and the text are fetched. Writes
results/seeds.{json,md}.
"""

import argparse
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import harness
from harness import PAGES, ROOT, in_process, last, machine, prose, publish, table
from seed_layers import LAYERS, Rows

from slide import runtime

sys.path.insert(0, str(ROOT / "examples"))


def of(rows: Rows, case: str, key: str, **equal: object) -> list[float]:
    """The figures ``key`` of cases that begin with ``case`` and have the values ``equal``."""
    return [row[key] for row in harness.of(rows, **equal) if row["case"].startswith(case)]


def worst(case: str, key: str, part: str = "", there: bool = True) -> Callable[[Rows], float]:
    """The largest figure of cases with ``part`` in their name, or of the others."""
    return lambda rows: max(of([r for r in rows if (part in r["case"]) == there], case, key))


def growth(rows: Rows, case: str) -> float:
    """Of the backward pass from the smallest layer to the largest, for single samples."""
    sizes = [row["outputs"] for row in rows]
    ends = [of(rows, case, "backward_ms", outputs=f(sizes), batch=1)[0] for f in (min, max)]
    return ends[1] / ends[0]


def against(rows: Rows, key: str, best: Callable) -> float:
    """How many times as long PyTorch's sparse products take as ours, by the best or worst peer."""
    theirs, ours = ([of(rows, each, key, vectors=n) for n in (1, 8)] for each in ("torch", "ours"))
    return min(best(peers) / own[0] for peers, own in zip(theirs, ours, strict=True))


def accuracy(rows: Rows, case: str, dense: bool) -> float:
    """The least accuracy of a network, dense or sampled."""
    found = [row for row in rows if (row["neurons"] == "dense") == dense]
    return min(of(found, case, "accuracy %"))


RATIO, BOTH = "backward_to_forward", "backward / forward, worst size and batch"
WITH_TORCH = "loss of PyTorch"
# Benchmark, what is measured, its figure of the rows, the bound, and True if it is the least.
TARGETS: dict[str, dict[str, tuple]] = {
    "linear": {
        f"active_linear: {BOTH}": (worst("active_linear", RATIO, "sparse_grad", False), 1.5),
        "active_linear, sparse_grad: the same": (worst("active_linear", RATIO, "sparse_grad"), 1.5),
        f"SampledLinear: {BOTH}": (worst("SampledLinear", RATIO), 1.5),
        "active_linear: backward at the largest size / at the smallest": (
            *(lambda rows: growth(rows, "active_linear, shared"), 2),
        ),
        "autograd through weight[ids]: the same": (
            *(lambda rows: growth(rows, "weight[ids]"), 10, True),
        ),
    },
    "csr": {
        "backward / forward, worst number of vectors": (
            *(lambda rows: max(of(rows, "ours", RATIO)[:2]), 1.5),
        ),
        "forward of torch.sparse.mm, the fastest kind / ours": (
            *(lambda rows: against(rows, "forward_ms", min), 1, True),
        ),
        "backward of torch.sparse.mm, the slowest kind / ours": (
            *(lambda rows: against(rows, "backward_ms", max), 10, True),
        ),
    },
    "hardest": {
        "backward of the hard part / of the whole, worst kind of set": (
            *(worst("ours", "backward_ratio", WITH_TORCH, False), 0.35),
        ),
        "the same with a loss of PyTorch": (worst("ours", "backward_ratio", WITH_TORCH), 0.35),
    },
    "conv": {
        f"backward / forward at stride {stride}, worst order of memory": (
            *(lambda rows, s=stride: max(of(rows, "active_conv2d", RATIO, stride=s)), 2.5),
        )
        for stride in (1, 2)
    },
    "vision": {
        "MNIST: accuracy with a fifth of the neurons": (
            *(lambda rows: accuracy(rows, "mnist", False), 98, True),
        ),
        "Mixer: points behind its dense twin": (
            *(lambda rows: accuracy(rows, "mixer", True) - accuracy(rows, "mixer", False), 1),
        ),
    },
    "word2vec": {
        "dense step / sampled step": (
            *(lambda rows: max(row["times faster"] for row in rows), 20, True),
        )
    },
}
# What was asked for, by benchmark: a function of `LAYERS`, or an example, which has data.
SEEDS = {
    "linear": "backward through a sampled slice that does not grow with the layer",
    "csr": "y = A x with a large sparse A, gradient for x",
    "hardest": "backward for the hardest quarter of a batch, from one forward pass",
    "conv": "convolution on some channels",
    "vision": "SLIDE for vision: MLP on MNIST, MLP-Mixer",
    "word2vec": "a large vocabulary",
}
DATA = {"vision": "mnist", "word2vec": "text"}


def example(name: str, root: str) -> Rows:
    """Rows of examples: dense, and sampled in training."""
    words = ["--data", str(Path(root, DATA[name]))] if root else []
    if name == "word2vec":
        return import_module(name).main(words)
    return [{"case": n} | row for n in ("mnist", "mixer") for row in import_module(n).main(words)]


def run(name: str, root: str) -> dict:
    """One benchmark: its rows, when, and how long it took."""
    start = time.perf_counter()
    runtime.set_threads(0)
    rows = example(name, root) if name in DATA else LAYERS[name]()
    found = {"date": time.strftime("%Y-%m-%d"), "rows": rows}
    return found | {"seconds": round(time.perf_counter() - start)}


def stored() -> dict[str, dict]:
    """What earlier runs found on this machine with these versions; the page has no others."""
    found = last("seeds", PAGES) if (PAGES / "seeds.json").exists() else {}
    here = {"machine": machine(), "versions": runtime.versions()}
    return found["seeds"] if here.items() <= found.items() else {}


def checked(name: str, rows: Rows) -> Rows:
    """A line for each target: the bound is for the worst row, at least or at most."""
    lines = []
    for text, (figure, bound, *least) in TARGETS[name].items():
        value = figure(rows)
        met = value >= bound if least else value <= bound
        lines.append(
            {
                "benchmark": name,
                "measured": text,
                "target": f"{'at least' if least else 'at most'} {bound:g}",
                "found": f"{value:.3g}",
                "": "met" if met else "missed",
            }
        )
    return lines


def rounded(row: dict) -> dict:
    return {k: round(v, 3) if isinstance(v, float) and v > 1e-3 else v for k, v in row.items()}


def page(found: dict) -> str:
    """The generated page: targets, and then what each benchmark found."""
    seeds = {name: found["seeds"][name] for name in SEEDS if name in found["seeds"]}
    targets = [line for name, one in seeds.items() for line in checked(name, one["rows"])]
    parts = ["# What was asked for, and what it takes\n", table(targets)]
    for name, one in seeds.items():
        parts += [
            f"\n## {name}: {SEEDS[name]}\n",
            f"`seeds.py --only {name}`, {one['seconds']} s on {one['date']}.\n",
            prose("seeds", name),
            table([rounded(row) for row in one["rows"]]),
        ]
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, help="folder with mnist/ and text/; else fetched")
    parser.add_argument("--only", choices=SEEDS, nargs="+", default=list(SEEDS), help="run these")
    parser.add_argument("--render", action="store_true", help="the page anew from the last figures")
    given = parser.parse_args()
    if given.render:
        publish("seeds", last("seeds", PAGES), page, PAGES)
        return
    root = str(given.root.resolve()) if given.root else ""
    for name in given.only:
        one = in_process("seeds", "run", name, root)
        publish("seeds", {"seeds": stored() | {name: one}}, page, PAGES)
        print(table(checked(name, one["rows"])))


if __name__ == "__main__":
    main()
