"""Ten million outputs on one machine: training, memory, opening and predictions of single rows.

    python benchmarks/ten_million.py
    python benchmarks/ten_million.py --minutes 20

Rows are generated, from labels that can be learnt. Writes results/benchmarks/ten_million.{json,md}.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import (
    RESULTS,
    Row,
    Store,
    fill_page,
    in_process,
    opened,
    options,
    origin,
    prose,
    run_train,
    table,
)

from slide.model import load
from slide.utils.resources import peak_memory_mb

ROWS, TEST_ROWS, EPOCHS = 500_000, 1_000, 2
KEYS = ("outputs", "features")
SIZES = ((10**6, 10**6), (10**7, 10**5), (10**7, 10**7))
# With so many features and outputs, one second moment for each output lets weights and moments fit
# into 24 GB; the first lines of a run advise it.
ROWWISE = 15 * 10**6
# Calls with one row, of which the first make the index and compile kernels.
SINGLES, WARM = 500, 20


def words(outputs: int, features: int) -> list[str]:
    sizes = [f"dataset.num_labels={outputs}", f"dataset.num_features={features}"]
    sizes += [f"dataset.train_samples={ROWS}", f"dataset.test_samples={TEST_ROWS}"]
    return [*sizes, f"dataset.cache=datasets/synthetic/cache_{outputs}_{features}"]


def measured(outputs: int, features: int) -> Row:
    """A run of train.py without the re-ranker, and its model, opened in a process of its own."""
    data = words(outputs, features)
    opened(tuple(data))  # Generated before the run, whose seconds count.
    with tempfile.TemporaryDirectory(dir=RESULTS) as scratch:
        folder = Path(scratch) / "run"
        chosen = ["ranker=none", "report=false", f"trainer.epochs={EPOCHS}"]
        chosen += ["optimizer.rowwise=true"] if outputs + features > ROWWISE else []
        found = run_train(*data, *chosen, folder=folder)
        keep = ("p_at_1", "p_at_5", "majority_p_at_1", "samples_per_second", "train_seconds")
        keep += ("peak_rss_mb", "candidates", "recall_at_10", "rows_seen_share")
        return {name: found.get(name) for name in keep} | in_process(
            "ten_million", "answered", str(folder), data
        )


def answered(folder: str, data: list[str]) -> Row:
    """Seconds to open a model, milliseconds of a row by index, and the peak memory of both."""
    rows = opened(tuple(data)).test
    begin = time.perf_counter()
    model = load(folder)
    opening, times, right = time.perf_counter() - begin, [], 0
    for number in range(SINGLES):
        row = rows.slice(number, number + 1)
        begin = time.perf_counter()
        ids, _ = model.predict_ids(row.features, search="index")
        times.append(time.perf_counter() - begin)
        right += int(ids[0, 0] in row.labels.indices)
    found = dict(zip(("p50", "p99"), 1e3 * np.percentile(times[WARM:], (50, 99)), strict=True))
    found |= {"open_seconds": opening, "first_row_seconds": times[0]}
    found |= {"index_p_at_1": right / SINGLES, "answering_rss_mb": peak_memory_mb()}
    return {name: round(value, 4) for name, value in found.items()}


def measure(store: Store, _: argparse.Namespace) -> None:
    cases = [{"outputs": outputs, "features": features} for outputs, features in SIZES]
    store.fill(cases, lambda case: in_process("ten_million", "measured", *case.values()))


def page(found: dict[str, Any]) -> str:
    rows = sorted(found["rows"], key=lambda row: (row["outputs"], row["features"]))
    text = prose("ten_million", "about", rows=ROWS, test=TEST_ROWS, epochs=EPOCHS)
    text += "\n" + table([training(row) for row in rows])
    text += prose("ten_million", "answers", singles=SINGLES)
    text += "\n" + table([answers(row) for row in rows if "p50" in row])
    return text + origin(rows, "outputs")


def training(row: Row) -> dict[str, str]:
    cells = {name: f"{row[name]:,}" for name in KEYS}
    if "killed" in row:
        return cells | {"samples/s": "memory did not suffice"}
    return cells | {
        "samples/s": f"{row['samples_per_second']:,.0f}",
        "training, s": f"{row['train_seconds']:.0f}",
        "peak memory, GB": f"{row['peak_rss_mb'] / 1000:.1f}",
        "P@1 / P@5": f"{100 * row['p_at_1']:.1f} / {100 * row['p_at_5']:.1f}",
        "P@1 of the most frequent label": f"{100 * row['majority_p_at_1']:.2f}",
        "outputs looked up for a set": f"{row['candidates']:.1f}",
        "recall of the ten best": f"{row['recall_at_10']:.1%}",
        "rows read": f"{row['rows_seen_share']:.2%}",
    }


def answers(row: Row) -> dict[str, str]:
    return {name: f"{row[name]:,}" for name in KEYS} | {
        "opening, s": f"{row['open_seconds']:.2f}",
        "first row, s": f"{row['first_row_seconds']:.1f}",
        "a row, ms: p50 / p99": f"{row['p50']:.1f} / {row['p99']:.1f}",
        "P@1 by the index": f"{100 * row['index_p_at_1']:.1f}",
        "peak memory, GB": f"{row['answering_rss_mb'] / 1000:.1f}",
    }


if __name__ == "__main__":
    fill_page("ten_million", KEYS, page, measure, options(__doc__, folder=RESULTS))
