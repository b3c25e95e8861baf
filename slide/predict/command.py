"""``slide-predict MODEL INPUT``, also ``python -m slide.predict``."""

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np

from slide import runtime
from slide.model import Model, load
from slide.model.model import SEARCHES
from slide.predict.numbering import Numbering
from slide.predict.rows import ROW_FORMATS, RowSource, read_rows
from slide.predict.scores import Scores
from slide.predict.writers import ANSWER_FORMATS, AnswerWriter
from slide.training.coordination import exit_status
from slide.utils import checks
from slide.utils.files import replacing
from slide.utils.progress_bar import until_reader_goes

ABOUT = """\
Predicts labels for rows with a trained model: the folder of a run, or what Model.save wrote.

INPUT is a file, or - for standard input:
  xmc       label,label feature:value feature:value ..., after a line rows features labels
  svmlight  the same without that line, features from 1
  npz       a SciPy matrix of features; --labels names that of the labels
  jsonl     {"features": {"name or number": value, ...}, "labels": [...]} in each line, or
            {"text": "...", "labels": [...]}, if the model was trained on texts
Labels may be missing: a row without any begins with a space. If rows have labels, the precision is
printed at the end. Text and lines of JSON are read and answered in pieces, in constant memory.
"""
SUFFIXES_OUT = {".npz": "npz", ".txt": "xmc", ".xmc": "xmc"}


def main(words: Sequence[str] | None = None) -> None:
    """Predicts; errors end the process with a sentence, Ctrl-C with the exit status 130.

    Args:
        words: the arguments; None: those of the process.
    """
    options = _parser().parse_args(words)
    try:
        with until_reader_goes():
            scores = predict_file(options)
    except KeyboardInterrupt as error:
        print("interrupted", file=sys.stderr)
        sys.exit(exit_status(error))
    except (ValueError, TypeError, OSError) as error:
        sys.exit(f"error: {checks.error_message(error)}")
    if scores:
        shown = {"p": "P", "ndcg": "nDCG"}
        parts = (name.split("_at_") for name in scores)
        names = [f"{shown[metric]}@{k}" for metric, k in parts]
        values = zip(names, scores.values(), strict=True)
        print("  ".join(f"{name} {value:.4f}" for name, value in values), file=sys.stderr)


def predict_file(options: argparse.Namespace) -> dict[str, float]:
    """Read, predict, write; returns the metrics, none if no row has labels.

    Args:
        options: the arguments of the command.

    Raises:
        ValueError: for options, rows or models that cannot be.
        OSError: for files that cannot be read or written.
    """
    if options.k < 1:
        raise ValueError(f"-k must be at least 1, not {options.k}")
    runtime.set_threads(options.threads)
    model = load(options.model, options.verify)
    if options.restrict is not None:
        model = model.restricted(_read_labels(Path(options.restrict), model))
    names = None if options.ids else model.label_names
    format = options.to or SUFFIXES_OUT.get(Path(options.output).suffix, "jsonl")
    # Answers beyond the labels would take memory; metrics look at five, also of fewer labels.
    k = min(options.k, max(model.network.output.out_features, 5))
    scores = Scores(k)
    with ExitStack() as stack:
        file = stack.enter_context(_output(options.output))
        first = Numbering.of(model).first_label
        writer = AnswerWriter(file, format, model.num_labels, names, first)
        for block in read_rows(RowSource(options.input, options.format, options.labels), model):
            try:
                ids, found = model.predict_ids(block.features, k, options.search)
            except checks.ScoresNotFinite as error:
                told = checks.ScoresNotFinite(writer.rows + error.row)
                name = "standard input" if options.input == "-" else options.input
                raise ValueError(f"{name}: {told} (rows are counted from 0)") from error
            if options.threshold is not None:
                ids = np.where(found < options.threshold, -1, ids)
            scores.add(ids, block.labels)
            writer.write(ids, found)
        writer.close()
    means = scores.means()
    if options.metrics is not None:
        with _output(options.metrics) as file:
            file.write((json.dumps(means, indent=2) + "\n").encode())
    return means


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m slide.predict" if sys.argv[0].endswith("__main__.py") else "slide-predict",
        description=ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder of a model")
    add("input", metavar="INPUT", help="file of rows; -: standard input")
    add("-k", type=int, default=5, help="number of labels of a row (5)")
    add("--threshold", type=float, metavar="SCORE", help="leave out answers with lower scores")
    add("--ids", action="store_true", help="numbers of labels, where the model has their names")
    add("--restrict", metavar="FILE", help="answer only labels of this file, one in each line")
    add("--format", choices=ROW_FORMATS, help="of the input; by its name, or its first line")
    add("--labels", metavar="FILE", help="npz: file of the labels of the rows")
    add(
        "-o",
        "--output",
        default="-",
        metavar="FILE",
        help="file of the answers; -: standard output",
    )
    add("--to", choices=ANSWER_FORMATS, help="format of the answers; by its name, else jsonl")
    add("--metrics", metavar="FILE", help="write the precision as JSON, too")
    add(
        "--search",
        choices=SEARCHES,
        help="how outputs are found (exact; index for more than 20,000 labels and a re-ranker)",
    )
    add("--threads", type=int, default=0, help="cores to use; 0: all that the process may use")
    add(
        "--no-verify",
        dest="verify",
        action="store_false",
        help="open the model without comparing the SHA-256 of its files first: a faster start",
    )
    return parser


def _output(path: str) -> Any:
    """A file to write, as a context; one that is there stays until the new one is complete."""
    if path == "-":
        return _Kept(sys.stdout.buffer)
    target = Path(path)
    if target.exists() and not target.is_file():  # A device or a pipe: nothing may replace it.
        return target.open("wb")
    return replacing(target.resolve())  # A link stays one.


class _Kept:
    """Standard output, which stays open."""

    def __init__(self, file: IO[bytes]):
        self.file = file

    def __enter__(self) -> IO[bytes]:
        return self.file

    def __exit__(self, *error: object) -> None:
        pass


def _read_labels(path: Path, model: Model) -> list[Any]:
    """The labels of a file, numbers or names, one in each line."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        text = path.read_bytes().decode("utf-8-sig")  # Without a byte order mark.
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: {error}") from error
    # Names may have what `splitlines` takes for the end of a line.
    lines = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
    if model.label_names is not None and model.label_names.kind == "text":
        return lines
    bad = next((line for line in lines if not line.strip().lstrip("-").isdecimal()), None)
    if bad is not None:
        raise ValueError(f"{path}: {bad!r} is no number of a label")
    numbers = [int(line) for line in lines]
    if model.label_names is not None:
        return numbers
    first = Numbering.of(model).first_label
    end = first + model.num_labels
    outside = next((number for number in numbers if not first <= number < end), None)
    if outside is not None:
        raise ValueError(f"{path}: label {outside} is not in [{first}, {end})")
    return [number - first for number in numbers]
