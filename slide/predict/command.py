"""``slide-predict MODEL INPUT``, also ``python -m slide.predict``: answers and precision."""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import numpy as np
import scipy.sparse

from slide import runtime
from slide.data.dataset import Block
from slide.model import Model, load
from slide.model.model import SEARCHES
from slide.predict.rows import ROW_FORMATS, SUFFIXES, Numbering, read_rows, shown_labels
from slide.sparse import Pattern, row_bounds
from slide.training.evaluation import ndcg_at_k, precision_at_k
from slide.utils import checks
from slide.utils.commands import add_model, command_parser, ending_errors
from slide.utils.files import naming, replacing
from slide.utils.progress_bar import log
from slide.utils.run_folders import is_of_folder

# Metrics are of the first 1, 3 and 5 answers.
_CUTOFFS = (1, 3, 5)
ANSWER_FORMATS = ("jsonl", "xmc", "npz")

ABOUT = """\
Predicts labels for rows with a trained model: the folder of a run, or what Model.save wrote.

INPUT is a file, or - for standard input:
  xmc       label,label feature:value feature:value ..., after a line rows features labels; or
            feature:value ... after a line rows features, with --labels FILE for the labels, or none
  svmlight  the same without that line, features from 1
  npz       a SciPy matrix of features; --labels names that of the labels
  jsonl     {"features": {"name or number": value, ...}, "labels": [...]} in each line, or
            {"text": "...", "labels": [...]}, if the model was trained on texts, or the columns of
            the table that it was trained on; or a list of such objects
  csv       a table with these columns, whose names are in its first line; parquet: such a file
Labels may be missing: a row without any begins with a space. If rows have labels, the precision is
printed at the end. Text and lines of JSON are read and answered in pieces, in constant memory.
"""
SUFFIXES_OUT = {".npz": "npz", ".txt": "xmc", ".xmc": "xmc"}


class Scores:
    """Means over all rows, where any of them has labels."""

    def __init__(self, k: int):
        self.cutoffs = [cutoff for cutoff in _CUTOFFS if cutoff <= k]
        self.rows = self.labels = 0
        self._sums: dict[str, float] = defaultdict(float)

    def add(self, ids: np.ndarray, labels: Pattern) -> None:
        """Add rows."""
        if not len(ids):
            return
        self.rows += len(ids)
        self.labels += len(labels.indices)
        for name, metric in (("p", precision_at_k), ("ndcg", ndcg_at_k)):
            for k in self.cutoffs:
                self._sums[f"{name}_at_{k}"] += len(ids) * metric(ids, labels, k)

    def means(self) -> dict[str, float]:
        """The means, as ``p_at_1`` and so on; empty if no row has a label."""
        if not self.labels:
            return {}
        return {name: round(total / self.rows, 6) for name, total in self._sums.items()}


class AnswerWriter:
    """Writes answers block by block; xmc and npz, which begin with the number of rows, at the end.

    Until then lines of xmc wait in the file ``begun``, and matrices in memory; for jsonl it is
    ``file`` itself.
    """

    def __init__(
        self,
        file: IO[bytes],
        begun: IO[bytes],
        format: str,
        model: Model,
        as_numbers: bool,
    ):
        if format == "npz" and file.seekable() and file.seek(0, os.SEEK_END):
            raise ValueError("npz must be alone in a file, and this one holds something: --output")
        self.file, self.format, self.model, self.rows = file, format, model, 0
        self._begun, self._as_numbers = begun, as_numbers or format == "xmc"
        self._matrices: list[Any] = [scipy.sparse.csr_array((0, model.num_labels))]

    def write(self, ids: np.ndarray, scores: np.ndarray) -> None:
        """Write the answers to some rows."""
        self.rows += len(ids)
        known = ids >= 0
        if self.format == "npz":
            parts = scores[known], ids[known], row_bounds(known.sum(1))
            self._matrices.append(scipy.sparse.csr_array(parts, (len(ids), self.model.num_labels)))
            return
        labels = shown_labels(ids, self.model, self._as_numbers)
        lines = [self._line(i[m], s[m]) for i, s, m in zip(labels, scores, known, strict=True)]
        self._begun.write("".join(f"{line}\n" for line in lines).encode())
        self._begun.flush()

    def _line(self, labels: np.ndarray, scores: np.ndarray) -> str:
        shown = [f"{score:.6g}" for score in scores]
        if self.format == "xmc":
            return " ".join(f"{label}:{score}" for label, score in zip(labels, shown, strict=True))
        answer = {"labels": labels.tolist(), "scores": [*map(float, shown)]}
        line = json.dumps(answer, ensure_ascii=False)
        # Standard output may be a terminal. JSON spells what one would obey, and it means the same.
        return line if line.isprintable() else json.dumps(answer)

    def close(self) -> None:
        """Write what needs the number of all rows."""
        if self.format == "xmc":
            self.file.write(f"{self.rows} {self.model.num_labels}\n".encode())
        elif self.format == "npz":
            matrix: Any = scipy.sparse.vstack(self._matrices, "csr")
            matrix.sort_indices()
            scipy.sparse.save_npz(self._begun, matrix)  # It seeks, which pipes do not.
        if self._begun is not self.file:
            self._begun.seek(0)
            shutil.copyfileobj(self._begun, self.file)
        self.file.flush()


def main(words: Sequence[str] | None = None) -> None:
    """Predicts; errors end the process with a sentence, Ctrl-C with the exit status 130."""
    options = _parser().parse_args(words)
    with ending_errors():
        scores = predict_file(options)
    if scores:
        said = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
        log(said.replace("ndcg_at_", "nDCG@").replace("p_at_", "P@"))


def predict_file(options: argparse.Namespace) -> dict[str, float]:
    """Read, predict, write; returns the metrics, none if no row has labels."""
    if options.k < 1:
        raise ValueError(f"-k must be at least 1, not {options.k}")
    _check_outputs(options)
    runtime.set_threads(options.threads)
    model = load(options.model, options.verify)
    if options.restrict is not None:
        model = model.restricted(_read_labels(Path(options.restrict), model))
    suffix = Path(options.output).suffix
    format = options.to or SUFFIXES_OUT.get(suffix, "jsonl")
    if options.to is None and SUFFIXES.get(suffix, format) not in ANSWER_FORMATS:
        known = ", ".join(ANSWER_FORMATS)
        raise ValueError(f"{options.output}: answers are {known}, which --to chooses")
    # Answers beyond the labels would take memory; metrics look at five, also of fewer labels.
    k = min(options.k, max(model.network.output.out_features, 5))
    scores, place = Scores(k), _shown_output(options.output)
    if format != "jsonl":
        place += f" (rows wait in {tempfile.gettempdir()})"
    with (
        naming(place),
        _output(options.output) as file,
        nullcontext(file) if format == "jsonl" else tempfile.TemporaryFile() as begun,
    ):
        writer = AnswerWriter(file, begun, format, model, options.ids)
        for block in _read_blocks(options, model):
            try:
                ids, found = model.predict_ids(block.features, k, options.search)
            except checks.ScoresNotFinite as error:
                told = checks.ScoresNotFinite(writer.rows + error.row)
                raise ValueError(
                    f"{_shown_input(options.input)}: {told} (rows are counted from 0)"
                ) from error
            if options.threshold is not None:
                ids = np.where(found < options.threshold, -1, ids)
            scores.add(ids, block.labels)
            writer.write(ids, found)
        writer.close()
    if not writer.rows:
        log(f"warning   no rows in {_shown_input(options.input)}")
    means = scores.means()
    if options.metrics is not None:
        with naming(options.metrics), _output(options.metrics) as file:
            file.write((json.dumps(means, indent=2) + "\n").encode())
    return means


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("predict", ABOUT)
    add_model(parser)
    add = parser.add_argument
    add("input", metavar="INPUT", help="file of rows; -: standard input")
    add("-k", "--k", type=int, default=5, help="number of labels of a row (5)")
    add("--threshold", type=float, metavar="SCORE", help="leave out answers with lower scores")
    add("--ids", action="store_true", help="numbers of labels, where the model has their names")
    add("--restrict", metavar="FILE", help="answer only labels of this file, one in each line")
    add("--format", choices=ROW_FORMATS, help="of the input; by its name, or its first line")
    add("--labels", metavar="FILE", help="npz, or xmc in two files: file of the labels")
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
    return parser


def _check_outputs(options: argparse.Namespace) -> None:
    """Raise ValueError for a file to write that would take the place of one that is needed."""
    model = Path(options.model).resolve()
    files = {"INPUT": options.input, "--labels": options.labels, "--restrict": options.restrict}
    files |= {"--output": options.output, "--metrics": options.metrics}
    files = {name: Path(file) for name, file in files.items() if file not in (None, "-")}
    for name in ("--output", "--metrics"):
        path = files.pop(name, None)
        if path is None or (path.exists() and not path.is_file()):  # A device, or a pipe.
            continue
        if is_of_folder(path.resolve(), model):
            raise ValueError(f"{name} {path} would replace a file of the model: name another one")
        for other, file in files.items():
            if path.resolve() == file.resolve() and (name, other) != ("--output", "INPUT"):
                raise ValueError(f"{name} {path} would replace the file of {other}: name another")


def _read_blocks(options: argparse.Namespace, model: Model) -> Iterator[Block]:
    """The rows; an error of the disk that they are on names the input."""
    blocks = iter(read_rows(options.input, model, options.format, options.labels))
    while True:
        with naming(_shown_input(options.input)):
            block = next(blocks, None)
        if block is None:
            return
        yield block


def _shown_input(path: str) -> str:
    return "standard input" if path == "-" else path


def _shown_output(path: str) -> str:
    return "standard output" if path == "-" else path


def _output(path: str) -> Any:
    """A file to write, as a context; one that is there stays until the new one is complete."""
    if path == "-":
        if sys.stdout is None:
            raise ValueError("standard output is closed: name a file by --output")
        return nullcontext(sys.stdout.buffer)  # It stays open.
    target = Path(path)
    if target.exists() and not target.is_file():  # A device or a pipe: nothing may replace it.
        return target.open("wb")
    return replacing(target.resolve())  # A link stays one.


def _read_labels(path: Path, model: Model) -> list[Any]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        text = path.read_bytes().decode("utf-8-sig")  # Without a byte order mark.
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8: {error}") from error
    # Names may have what `splitlines` takes for the end of a line.
    lines = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
    names, first = model.label_names, Numbering.of(model).first_label
    if names is not None and names.kind == "text":
        return lines
    found = []
    for line in map(str.strip, lines):
        whole = names is None or names.kind == "number"
        if whole and not line.lstrip("-").isdecimal():
            raise ValueError(f"{path}: {line!r} is no number of a label")
        found.append(int(line) - first if names is None else names.parsed(line))
        if names is None and not 0 <= found[-1] < model.num_labels:
            end = first + model.num_labels
            raise ValueError(f"{path}: label {line} is not in [{first}, {end})")
    return found
