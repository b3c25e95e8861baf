"""Cost over size: time and memory of a step over outputs, features, hidden units and threads.

    python tests/benchmarks/scaling.py

A step is everything but making the batch and rebuilding tables: input layer, selection, products,
loss, gradients and both sparse Adams. The rows are random. Each size is measured in a process of
its own, with one thread and with all cores in turn, at least five times each (sized.py). Some
sizes are measured to check the cost model that is fitted to the others (cost_model.py). Rows that
there are for this commit and machine are not measured again, and none begins after --minutes
(rows.py). Writes results/benchmarks/scaling.{json,md,png} and scaling_more.png.
"""

import argparse
from collections.abc import Iterator

import scaling_page
from report import RESULTS
from rows import Row, Store, add_store_options
from sized import SECONDS, Size, in_own_process

from slide import runtime

# PyTorch's dense step takes seconds beyond.
DENSE_LARGEST = 2**18
LARGEST, MOST_FEATURES = 2**24, 10**7
# Case: outputs beyond which it is not measured.
LIMITS = {
    "uniform, shared": LARGEST,
    "uniform, shared, bfloat16": LARGEST,
    "lsh, shared": 2**22,
    "lsh, per sample": 2**22,
    "dense PyTorch": DENSE_LARGEST,
}


def sizes() -> Iterator[tuple[Size, bool]]:
    """All sizes, and whether each of them is only there to check the model."""
    for power in range(14, 25, 2):
        for case, limit in LIMITS.items():
            if 2**power <= limit and (case != "uniform, shared, bfloat16" or power >= 20):
                yield Size(case, outputs=2**power), False
    base = Size()
    for features in (10**4, 10**6, MOST_FEATURES):
        yield base._replace(features=features), False
    for hidden in (16, 128, 256, 512, 1024):
        yield base._replace(hidden=hidden), False
    for outputs, features, hidden in ((2**16, 10**6, 128), (2**20, 10**6, 256), (2**22, 10**4, 16)):
        yield Size("uniform, shared", outputs, features, hidden), True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_store_options(parser)
    parser.add_argument("--largest", type=int, default=LARGEST, help="most outputs of a size")
    parser.add_argument("--most-features", type=int, default=MOST_FEATURES)
    parser.add_argument("--widest", type=int, default=1024, help="most hidden units of a size")
    parser.add_argument("--cases", nargs="+", choices=list(LIMITS), default=list(LIMITS))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of steps in a turn")
    parser.set_defaults(results=RESULTS)
    arguments = parser.parse_args()
    runtime.set_threads(0)
    store = Store("scaling", Size._fields, scaling_page.page, arguments)
    cases: list[Row] = [
        size._asdict() | {"check": check}
        for size, check in sizes()
        if size.case in arguments.cases
        and size.outputs <= arguments.largest
        and size.features <= arguments.most_features
        and size.hidden <= arguments.widest
    ]
    for case in [] if arguments.render else store.missing(cases):
        size = Size(*(case[name] for name in Size._fields))
        store.add([case | in_own_process(size, arguments.seconds)])
    store.render()
    scaling_page.draw(store.rows, store.folder)
    store.report()


if __name__ == "__main__":
    main()
