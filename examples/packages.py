"""What a package of Debian or Ubuntu needs, from its description in words.

Writes the descriptions of a package index as lines of JSON, trains on them, and answers texts:

    apt-cache dumpavail > Packages
    python examples/packages.py Packages my/packages
    slide-train dataset=documents dataset.root=my/packages dataset.name=packages run_dir=my/run
    echo '{"text": "a terminal emulator written in Python with GTK"}' | slide-predict my/run -

Labels are the packages that a package depends on or recommends.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "datasets" / "debian"))
from prepare import needed_packages, read_packages


def main(words: Sequence[str] | None = None) -> tuple[int, int]:
    """Write the two files; returns how many rows are in each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("index", type=Path, help="an index of packages, unpacked")
    parser.add_argument("out", type=Path, help="folder of the files")
    parser.add_argument(
        "--test-share", type=float, default=0.2, help="of the rows, drawn at random"
    )
    options = parser.parse_args(words)
    with options.index.open("rb") as file:
        lines = [line for entry in read_packages(file, str(options.index)) if (line := row(entry))]
    is_test = np.random.default_rng(0).random(len(lines)) < options.test_share
    options.out.mkdir(parents=True, exist_ok=True)
    for name, chosen in (("train", ~is_test), ("test", is_test)):
        text = "".join(line for line, kept in zip(lines, chosen, strict=True) if kept)
        (options.out / f"{name}.jsonl").write_text(text, encoding="utf-8")
    counts = int(np.sum(~is_test)), int(np.sum(is_test))
    print(f"{counts[0]:,} training rows and {counts[1]:,} test rows in {options.out}")
    return counts


def row(entry: dict[str, str]) -> str | None:
    """The line of a package; None if it needs no other, or has no description."""
    labels, text = sorted(needed_packages(entry)), entry.get("Description", "")
    if not labels or not text:
        return None
    return json.dumps({"text": text, "labels": labels}) + "\n"


if __name__ == "__main__":
    main()
