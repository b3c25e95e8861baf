"""Accuracy and time of sampled hidden layers on MNIST, beside dense ones: the two examples.

    python tests/benchmarks/seed_vision.py --data path/to/data/mnist

Whole examples, trained once with seed 0 and tested once; see `examples/mnist.py` and `mixer.py`.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from slide import runtime  # noqa: E402

EXAMPLES = "mnist", "mixer"


def rows(data: Path | None = None, quick: bool = False) -> list[dict]:
    """Three rows an example: dense, and sampled in training and tested in two ways."""
    arguments = ["--data", str(data)] if data else []
    arguments += ["--epochs", "1", "--limit", "2000"] if quick else []
    return [
        {"case": name} | row for name in EXAMPLES for row in import_module(name).main(arguments)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of MNIST's four files; else fetched")
    runtime.set_threads(0)
    rows(parser.parse_args().data)


if __name__ == "__main__":
    main()
