"""Speed and memory of reading, opening and batching a file of Amazon-670K's size.

    python tests/benchmarks/data.py
    python tests/benchmarks/data.py --rows 20000          # a moment, to try it

Writes rows of the generated set amazon670k_like as XMC text and reads them by slide and by
scikit-learn (pip install -e '.[bench]'). Each measurement is a process of its own, on one core.
Writes results/data.md and results/data.json.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

import numpy as np
import yaml
from memory import forget, measured
from report import machine, table

from slide import data, runtime
from slide.data.formats.text_writer import write_xmc

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results"
TEST_ROWS = 100  # a data set has test rows; these are to weigh nothing
BATCH = 256
TRANSFORMS = {"tf_idf": True, "hashed_features": 1 << 15, "l2_norm": True, "min_label_count": 2}


def write(folder: Path, rows: int) -> dict:
    """The file, and a copy without its first line, which scikit-learn does not know."""
    options = yaml.safe_load((ROOT / "conf/dataset/amazon670k_like.yaml").read_text())
    del options["_target_"]
    sizes = {"train_samples": rows, "test_samples": TEST_ROWS}
    made = data.synthetic(**{**options, **sizes, "cache": folder / "generated"})
    sort_rows(made.train)
    begin = time.perf_counter()
    write_xmc(folder / "train.txt", made.train)
    seconds = time.perf_counter() - begin
    write_xmc(folder / "test.txt", made.test)
    with (folder / "train.txt").open("rb") as file, (folder / "rows.txt").open("wb") as copy:
        file.readline()
        while piece := file.read(1 << 24):
            copy.write(piece)
    return {
        "seconds": seconds,
        "bytes": (folder / "train.txt").stat().st_size,
        "rows": rows,
        "features": made.num_features,
        "labels": made.num_labels,
        "nonzeros": int(made.train.features.indptr[-1]),
        "label_entries": int(made.train.labels.indptr[-1]),
    }


def sort_rows(split: data.Split) -> None:
    """Brings features of rows into ascending order, which scikit-learn insists on."""
    for part in split.blocks():
        indptr, indices, values = part.features
        order = np.lexsort((indices, np.repeat(np.arange(len(part)), np.diff(indptr))))
        indices[:], values[:] = indices[order], values[order]  # not in the cache: a private map


def open_set(folder: Path, name: str = "") -> data.SparseDataset:
    """The files as a data set, with a cache of its own for each name."""
    return data.xmc(name="like", root=folder, cache=folder / f"cache{name}")


def warm_up(folder: Path) -> None:
    """Compiles, or loads, the kernels."""
    small = folder / "small"
    if not small.exists():
        small.mkdir()
        head = (folder / "test.txt").read_bytes()
        (small / "train.txt").write_bytes(head)
        (small / "test.txt").write_bytes(head)
    made = open_set(small, f"_{os.getpid()}")
    list(data.Batches(made.train, 16, seed=0).epoch(0))


def parse(folder: Path) -> dict:
    """From text to the cache."""
    warm_up(folder)
    return measured(lambda: open_set(folder, f"_{os.getpid()}"), sums)


def reopen(folder: Path) -> dict:
    """A cache that is there, after its pages have left the memory."""
    warm_up(folder)
    open_set(folder)
    for path in (folder / "cache").glob("*/*/*.npy"):
        forget(path)
    return measured(lambda: open_set(folder), sums)


def reference(folder: Path) -> dict:
    """scikit-learn on the same rows; its labels are tuples."""
    from sklearn.datasets import load_svmlight_file

    path, options = str(folder / "rows.txt"), {"multilabel": True, "zero_based": True}
    return measured(
        lambda: load_svmlight_file(path, dtype=np.float32, **options),
        lambda found: [
            found[0].shape[0],
            found[0].nnz,
            sum(map(len, found[1])),
            float(found[0].data.sum(dtype=np.float64)),
        ],
    )


def batches(folder: Path) -> dict:
    """An epoch in the order of the file, and a shuffled one."""
    warm_up(folder)
    split = open_set(folder).train
    sums(open_set(folder))  # from here on in memory
    found = {}
    for name, shuffle in (("slices", False), ("shuffled", True)):
        made = data.Batches(split, BATCH, seed=0, shuffle=shuffle)
        begin = time.perf_counter()
        count = sum(len(batch.rows) for batch in made.epoch(0))
        assert count == len(split)
        found[name] = 1e6 * (time.perf_counter() - begin) / len(made)
    return found


def transform(folder: Path) -> dict:
    """All transforms at once, from cache to cache."""
    warm_up(folder)
    made = open_set(folder, f"_{os.getpid()}")
    return measured(lambda: data.transform(made, **TRANSFORMS), sums)


def sums(made: data.SparseDataset) -> list[float]:
    """Rows, features, labels and the sum of the values, to compare readers by."""
    split = made.train
    total = sum(float(part.features.values.sum(dtype=np.float64)) for part in split.blocks())
    return [len(split), len(split.features.indices), len(split.labels.indices), total]


STEPS = {
    "parse": parse,
    "open": reopen,
    "reference": reference,
    "batches": batches,
    "transform": transform,
}


def child(step: str, folder: Path, rows: int) -> dict:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--step", step, "--scratch", str(folder)]
    command += ["--rows", str(rows)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    print(step, found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=490_449)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--scratch", type=Path, help="folder for some GB of files")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step is not None:
        if arguments.step == "write":
            found = write(arguments.scratch, arguments.rows)
        else:
            os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
            runtime.set_threads(1)
            found = STEPS[arguments.step](arguments.scratch)
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        folder = Path(scratch)
        found = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": machine(),
            "versions": runtime.versions() | {"scikit-learn": metadata.version("scikit-learn")},
            "write": child("write", folder, arguments.rows),
            # By turns, so that a slow moment of the machine does not hit one of them alone.
            "runs": [
                {step: child(step, folder, arguments.rows) for step in STEPS}
                for _ in range(arguments.repeats)
            ],
        }
    check(found["runs"])
    (arguments.out / "data.json").write_text(json.dumps(found, indent=1) + "\n")
    (arguments.out / "data.md").write_text(page(found))


def check(runs: list[dict]) -> None:
    """Both readers must have found the same rows."""
    for run in runs:
        mine, other = run["parse"]["result"], run["reference"]["result"]
        if mine[:3] != other[:3] or abs(mine[3] - other[3]) > 1e-6 * abs(other[3]):
            raise ValueError(f"slide found {mine}, scikit-learn {other}")


def page(found: dict) -> str:
    """The generated page."""
    size, runs = found["write"], found["runs"]

    def middle(step: str, field: str) -> float:
        return statistics.median(run[step][field] for run in runs)

    def spread(step: str, field: str, digits: int) -> str:
        values = [run[step][field] for run in runs]
        return (
            f"{statistics.median(values):,.{digits}f} "
            f"({min(values):,.{digits}f} to {max(values):,.{digits}f})"
        )

    megabytes = size["bytes"] / 1e6
    readers = [
        {
            "reader": name,
            "seconds": spread(step, "seconds", 1),
            "MB/s": f"{megabytes / middle(step, 'seconds'):,.0f}",
            "memory at most, MB": f"{middle(step, 'peak') / 1e6:,.0f}",
        }
        for name, step in (
            ("slide: text to cache", "parse"),
            ("scikit-learn: `load_svmlight_file`", "reference"),
        )
    ]
    arrays = (4 + 4) * size["nonzeros"] + 4 * size["label_entries"] + 16 * size["rows"]
    others = [
        {"what": "opening the cache", "time": spread("open", "seconds", 4) + " s"},
        {
            "what": "memory that opening takes",
            "time": f"{middle('open', 'growth') / 1e6:,.1f} MB of {arrays / 1e6:,.0f} MB",
        },
        {
            "what": f"a batch of {BATCH} rows, in order: slices without a copy",
            "time": spread("batches", "slices", 0) + " µs",
        },
        {
            "what": f"a batch of {BATCH} rows, shuffled, with the shuffle",
            "time": spread("batches", "shuffled", 0) + " µs",
        },
        {
            "what": "all transforms at once, from cache to cache",
            "time": spread("transform", "seconds", 1) + " s, "
            f"{middle('transform', 'peak') / 1e6:,.0f} MB at most",
        },
        {"what": "writing the text file", "time": f"{size['seconds']:,.1f} s"},
    ]
    ratio = middle("reference", "seconds") / middle("parse", "seconds")
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return (
        "# Data: reading, opening, batching\n\n"
        f"Made by `python tests/benchmarks/data.py` on {found['date']}; {found['machine']}; "
        f"{versions}.\n\n"
        f"A file of {size['rows']:,} rows, {size['features']:,} features and {size['labels']:,} "
        f"labels, with {size['nonzeros'] / size['rows']:.1f} features and "
        f"{size['label_entries'] / size['rows']:.2f} labels a row, {megabytes:,.0f} MB of text, "
        "written from `amazon670k_like`. Each measurement is a process of its own on one core; "
        f"median (least to most) of {len(runs)}. Memory is what becomes resident beyond what was "
        "there with libraries loaded and kernels compiled; pages of mapped files count once they "
        "are read. The text is in the system's page cache. slide's result lies on the disk, "
        "scikit-learn's in memory, from the same rows without their first line; both find the same "
        "numbers.\n\n"
        + table(readers)
        + f"\nslide is {ratio:.1f} times as fast.\n\n"
        + table(others)
        + "\nThe cache is opened after the system was asked to drop it from memory; batches come "
        "from pages that are in memory.\n"
    )


if __name__ == "__main__":
    main()
