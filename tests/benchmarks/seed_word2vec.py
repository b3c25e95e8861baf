"""A training step of skip-grams with a sampled output layer, and with a dense one: the example.

    python tests/benchmarks/seed_word2vec.py --data path/to/data/text

`examples/word2vec.py` as it stands, on text8 unless `--data` names another text: a word's vector is
to predict the words around it, by a softmax over the whole vocabulary. The sampled step is the mean
over a whole training, with all that belongs to it, rebuilds of the tables too. The dense one, with
PyTorch's layer and its fused Adam, is the mean of a few steps.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import word2vec  # noqa: E402

from slide import runtime  # noqa: E402


def rows(data: Path | None = None, quick: bool = False) -> list[dict]:
    """Two rows: sampled (a mean over the training, rebuilds and all), and dense."""
    arguments = ["--data", str(data)] if data else []
    arguments += ["--epochs", "1", "--limit", "20000"] if quick else []
    return word2vec.main(arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a text, or a folder of skip-grams; else text8")
    runtime.set_threads(0)
    rows(parser.parse_args().data)


if __name__ == "__main__":
    main()
