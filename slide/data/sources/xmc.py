"""Data sets in files: XMC text, svmlight text, or pairs of SciPy matrices.

* xmc: text, as of http://manikvarma.org/downloads/XC/XMLRepository.html (Bhatia et al. 2016). The
  first line is ``rows features labels``; each further line is a row
  ``label,label feature:value feature:value ...`` with columns from 0. A row without labels begins
  with a space. Labels may be in a file of their own, as in ``trn_X_Xf.txt`` and ``trn_X_Y.txt``:
  then both begin with ``rows columns``, and have lines ``column:value ...``, with the value 1 for
  labels.
* svmlight: such rows without the first line, and with features from 1. The text after a ``#`` is a
  comment. A line that is empty, or a comment, is not a row; one of white space alone is a row
  without labels and features. Unless the numbers of columns are given, the largest numbers in both
  files determine them.
* npz: SciPy's sparse matrices of any kind, with features and labels in separate files. That of the
  labels holds zeros and ones.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slide.data.cache import cached, check_propensity
from slide.data.dataset import PROPENSITY, Block, SparseDataset, Split
from slide.data.errors import DataError
from slide.data.fetching import Fetch, check_folders, ensure_parts
from slide.data.row_files import (
    MAX_INDEX,
    VARIANTS,
    Sizes,
    Variant,
    count_rows,
    read_header,
    read_npz_blocks,
    read_npz_sizes,
    read_text_blocks,
    text_variant,
)
from slide.utils import checks
from slide.utils.files import file_state

FORMATS = (*VARIANTS, "npz")
# The share of rows that become test rows where there is no file of them.
_ASIDE = 0.1


def xmc(
    *,
    name: str,
    root: str | Path,
    cache: str | Path,
    format: str = "xmc",
    train_file: str = "train.txt",
    test_file: str | None = "test.txt",
    train_labels_file: str | None = None,
    test_labels_file: str | None = None,
    first_feature: int | None = None,
    first_label: int | None = None,
    train_samples: int | None = None,
    test_samples: int | None = None,
    num_features: int | None = None,
    num_labels: int | None = None,
    propensity: Sequence[float] = PROPENSITY,
    lenient: bool = False,
    hint: str = "",
    fetch: Fetch | None = None,
) -> SparseDataset:
    r"""Opens a data set in files, and reads the files the first time.

    `slide.data.sources.xmc` describes the formats.

    Args:
        root, cache: folders of the files, and for the arrays that were read.
        train_file, test_file: names of the files in ``root``; without a test file, None, a tenth of
            the training rows is drawn and set aside.
        train_labels_file, test_labels_file: names of the files of the labels; npz must have them.
        first_feature, first_label: text: number of the first column; None: that of the format.
        train_samples, test_samples: expected rows of the two files, if known.
        num_features, num_labels: expected columns of both files, if known.
        propensity: constants a and b of propensity-scored precision.
        lenient: text: leave malformed lines out instead of raising; their number is said.
        hint: what the user can do when a file is missing.
        fetch: puts missing files into ``root``.

    Raises:
        FileNotFoundError: a file is missing and cannot be fetched; the message says what to do.
        DataError: a file is malformed, or its counts are not the expected ones.
        ValueError: an argument has another type or is out of range.

    Example:
        >>> import pathlib, tempfile
        >>> from slide.data import xmc
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("train.txt", "test.txt"):
        ...         _ = pathlib.Path(folder, name).write_text("2 3 4\n1,3 0:0.5 2:1\n0 1:2\n")
        ...     data = xmc(name="mine", root=folder, cache=folder)
        >>> len(data.train), data.train.labels.indices.tolist()
        (2, [1, 3, 0])
    """
    checks.one_of("format", format, FORMATS)
    check_folders(root=root, cache=cache)
    checks.flag("lenient", lenient)
    check_propensity(propensity)
    counts = {"train_samples": train_samples, "test_samples": test_samples}
    counts |= {"num_features": num_features, "num_labels": num_labels}
    for option, value in counts.items():
        if value is not None:
            checks.whole(option, value, 0)
            checks.within(option, value, 0, MAX_INDEX)
    variant = _variant(format, first_feature, first_label, lenient)
    names = _file_names(format, train_file=train_file, train_labels_file=train_labels_file)
    train = _Files(names, Sizes(train_samples, num_features, num_labels), variant, lenient)
    test = train
    if test_file is not None:
        names = _file_names(format, test_file=test_file, test_labels_file=test_labels_file)
        test = _Files(names, Sizes(test_samples, num_features, num_labels), variant, lenient)

    def check(folder: Path) -> None:
        _common_sizes(folder, train, test)
        train.try_beginning(folder)
        test.try_beginning(folder)

    root = Path(root)
    ensure_parts(root, train.names, None if test is train else test.names, hint, fetch, check)
    return _open_files(root, train, test, format, cache=cache, name=name, propensity=propensity)


def _open_files(
    root: Path, train: "_Files", test: "_Files", format: str, **options: Any
) -> SparseDataset:
    """Opens the cache of two splits; `slide.data.cache.cached` has the ``options``."""
    known = _common_sizes(root, train, test)[1:]
    widths = np.zeros(2, np.int64)  # That the largest numbers of the rows need.
    files = {"train": train, "test": test}
    paths = {split: files[split].paths(root) for split in files}

    def rows(split: str) -> Iterator[Block]:
        blocks = files[split].read(root)
        for block in _part(blocks, split == "test") if test is train else blocks:
            found = (each.indices.max(initial=-1) + 1 for each in (block.features, block.labels))
            np.maximum(widths, [*found], out=widths)
            yield block

    variant = train.variant
    key = {"reader": "xmc", "format": format, "variant": variant, "lenient": train.lenient}
    if test is train:
        key["set aside"] = _ASIDE
    if variant is None:
        key["labels"] = "zeros and ones"  # Caches of slide 0.1.0 may have others, such as -1.
    elif not variant.header:
        # The expected columns are part of the result, as the files do not name their number.
        key["expected"] = [train.expected, test.expected]
    return cached(
        **options,
        key=key | {split: [str(path.resolve()) for path in paths[split]] for split in paths},
        state={split: [file_state(path) for path in paths[split]] for split in paths},
        blocks=rows,
        num_columns=lambda: [
            width if count is None else count
            for width, count in zip(widths.tolist(), known, strict=True)
        ],
    )


def _part(blocks: Iterable[Block], aside: bool) -> Iterator[Block]:
    """The rows that are drawn to be set aside, or the others."""
    rng = np.random.default_rng(0)
    for block in blocks:
        rows = np.flatnonzero((rng.random(block.features.num_rows) < _ASIDE) == aside)
        part = Split(block.features, block.labels, MAX_INDEX, MAX_INDEX).take(rows)
        yield Block(part.features, part.labels, 0 if aside else block.skipped)


@dataclass(frozen=True)
class _Files:
    """The files of a split: of rows, or of features and of labels; ``variant`` None: matrices."""

    names: tuple[str, ...]
    expected: Sizes
    variant: Variant | None
    lenient: bool

    def paths(self, folder: Path) -> list[Path]:
        return [folder / name for name in self.names]

    def sizes(self, folder: Path) -> Sizes:
        """Returns the sizes that the files tell before they are read, else the expected sizes."""
        paths = self.paths(folder)
        if self.variant is None:
            found = read_npz_sizes(*paths)
        elif self.variant.header:
            found = read_header(*paths)
        else:
            return self.expected
        self.compare(folder, found, self.expected, "were expected")
        return found

    def compare(self, folder: Path, found: Sizes, wanted: Sizes, why: str) -> None:
        """Raises DataError where known counts differ."""
        for field, count, other in zip(Sizes._fields, found, wanted, strict=True):
            if None not in (count, other) and count != other:
                path = self.paths(folder)[-1 if field == "labels" else 0]
                what = ":1: header" if self.variant and self.variant.header else ": file"
                raise DataError(f"{path}{what} has {count} {field}, but {other} {why}")

    def read(self, folder: Path) -> Iterator[Block]:
        """Yields the rows of the files."""
        first, *others = self.paths(folder)
        if self.variant is None:
            return read_npz_blocks(first, *others)
        options: dict[str, Any] = {"lenient": self.lenient}
        return read_text_blocks(first, self.variant, self.expected, *others, **options)

    def try_beginning(self, folder: Path) -> None:
        """Raises DataError if the files begin with other content, such as a web page."""
        if self.variant is None:
            return  # `sizes` has read their shapes.
        next(self.read(folder), None)
        if not self.variant.header:
            rows = count_rows(*self.paths(folder))
            self.compare(folder, Sizes(rows), self.expected, "were expected")


def _common_sizes(folder: Path, train: _Files, test: _Files) -> Sizes:
    """Returns the known sizes of both splits; and the rows of the training split."""
    sizes, others = train.sizes(folder), test.sizes(folder)
    path = train.paths(folder)[0]
    test.compare(folder, others, sizes._replace(rows=others.rows), f"are in {path}")
    return sizes


def _variant(
    format: str, first_feature: int | None, first_label: int | None, lenient: bool
) -> Variant | None:
    if format != "npz":
        return text_variant(format, first_feature, first_label)
    given = {"first_feature": first_feature, "first_label": first_label, "lenient": lenient}
    for option, value in given.items():
        if value is not None and value is not False:
            raise ValueError(f"{option} is for text, not for format=npz")
    return None


def _file_names(format: str, **names: str | None) -> tuple[str, ...]:
    rows, labels = names
    if format != "npz" and names[labels] is None:
        names.pop(labels)
    elif format == "svmlight":
        raise ValueError(f"{labels} is for format=npz and xmc; svmlight has labels in {rows}")
    for option, value in names.items():
        if not isinstance(value, str) or not value:
            raise ValueError(f"{option} must be the name of a file, not {value!r}")
    return tuple(str(value) for value in names.values())
