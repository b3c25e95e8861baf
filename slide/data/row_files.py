"""Files of rows, text and pairs of SciPy matrices; `slide.data.sources.xmc` describes them."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

import numpy as np

from slide.data.archives import Pieces
from slide.data.dataset import Block, Split
from slide.data.errors import DataError, check_line_length, check_not_compressed, out_of_range
from slide.data.table_files import lines_of, open_text
from slide.ops import text_rows as kernel
from slide.sparse import CSR, Pattern, check_scipy
from slide.utils import checks
from slide.utils.checks import printable
from slide.utils.files import disk_error, open_bytes, write_atomic
from slide.utils.progress_bar import ProgressBar, counted_bytes

# 16 MiB are parsed at a time.
PARSED_BYTES = 16 << 20
# At most 2^31 - 1 rows or columns: indices are int32.
MAX_INDEX = 2**31 - 1
# Characters of a bad word that a message shows.
SHOWN_CHARACTERS = 40
_EMPTY = b"\n", b"\r\n", b"\r"
# A line of a file without a header begins with labels and a pair, or with a comment.
_SVMLIGHT_LINE = re.compile(rb"#|[-+\d.,]*\s+\w+:[-+.\d]")
# The value of a label in a file of its own.
_MARK = re.compile(rb":\+?1(\.0*)?\Z")
# Compression makes zeros at most a thousand times shorter. Without this bound a small file could
# ask for memory for billions of rows.
_ROWS_PER_BYTE = 1024
# At most 262,144 features, and labels, are formatted at a time.
FORMATTED_ENTRIES = 1 << 18


class Sizes(NamedTuple):
    """The sizes of a file, found or expected; None: not known."""

    rows: int | None = None
    features: int | None = None
    labels: int | None = None


class Variant(NamedTuple):
    """Whether a file has a header or else comments, and the numbers of its first columns."""

    header: bool
    first_feature: int = 0
    first_label: int = 0


XMC = Variant(header=True)
VARIANTS = {"xmc": XMC, "svmlight": Variant(header=False, first_feature=1)}


def text_variant(format: str, first_feature: int | None, first_label: int | None) -> Variant:
    """Returns the variant of a name. Numbers that are not None replace its numbers."""
    checks.one_of("format", format, VARIANTS)
    variant = VARIANTS[format]
    for field, number in (("first_feature", first_feature), ("first_label", first_label)):
        if number is not None:
            checks.whole(field, number, 0)
            checks.within(field, number, 0, MAX_INDEX)
            variant = variant._replace(**{field: number})
    return variant


class JoinedText:
    """A file of features, and perhaps one of labels, as one file of the format xmc.

    Each begins with a line ``rows columns``. Further lines are ``column:value column:value ...``,
    with the value 1 for labels, or none, as in ``column column``. Files are lines by path.
    """

    def __init__(self, files: Mapping[str, Iterable[bytes]]):
        self._files = {path: iter(lines) for path, lines in files.items()}
        self._row, (features, *labels) = 0, files
        found = [self._sizes(path) for path in self._files]
        self._rows, sizes = found[0][0], [each[1] for each in found]
        for path in labels:
            if found[1][0] != self._rows:
                told = f"header has {checks.counted(found[1][0], 'row')}"
                raise DataError(f"{path}:1: {told}, but that of {features} has {self._rows}")
        self._header = " ".join(map(str, [self._rows, *sizes, 0][:3])).encode() + b"\n"

    def _sizes(self, path: str) -> list[int]:
        return _parse_sizes(next(self._files[path], b""), path, 2, "rows columns")

    def readline(self) -> bytes:
        """The header."""
        return self._header

    def read(self, size: int) -> bytes:
        """Rows of about ``size`` bytes; none only at the end."""
        found, length = list[bytes](), 0
        while length < size and self._row < self._rows:
            found.append(self._line())
            length += len(found[-1])
        if not found:
            for path, lines in self._files.items():
                if any(line.strip() for line in lines):
                    raise DataError(
                        f"{path}: row {self._rows + 1}, but the header has {self._rows}"
                    )
        return b"".join(found)

    def _line(self) -> bytes:
        lines = []
        for path, file in self._files.items():
            lines.append(next(file, b""))
            if not lines[-1]:
                told = f"header has {checks.counted(self._rows, 'row')}"
                raise DataError(f"{path}:1: {told}, but the file has {self._row}")
        self._row += 1
        features, *labels = lines
        # Another value than 1 is malformed where labels stand.
        marks = (_MARK.sub(b"", word) for line in labels for word in line.split())
        return b",".join(marks) + b" " + features.rstrip(b"\r\n") + b"\n"


def read_header(path: Path, labels: Path | None = None) -> Sizes:
    """Reads the first line of a file that has a header, and of a file of labels beside it."""
    with _opened_text(path, labels) as (file, name):
        return parse_header(file.readline(), name)


@contextmanager
def _opened_text(path: Path, labels: Path | None) -> Iterator[tuple[IO[bytes], str]]:
    """A file of text, or two as one, and what messages call it."""
    with open_text(path) as file:
        if labels is None:
            yield file, str(path)
            return
        with open_text(labels) as beside:
            names = str(path), str(labels)
            lines = map(lines_of, (file, beside), names)
            joined: Any = JoinedText(dict(zip(names, lines, strict=True)))
            yield joined, f"{path} and {labels.name}"


def parse_header(line: bytes, path: str) -> Sizes:
    """Parses the first line of a file that has a header."""
    return Sizes(*_parse_sizes(line, path, 3, "rows features labels"))


def _parse_sizes(line: bytes, path: str, count: int, wanted: str) -> list[int]:
    if not line.strip():
        what = "no header" if line else "the file is empty"
        raise DataError(f"{path}:1: {what}, '{wanted}' was expected")
    check_not_compressed(line, path)
    fields = line.split()
    numbers = all(field.isdigit() for field in fields)
    if len(fields) != count or not numbers:
        alike = ""
        if numbers and len(fields) == 2:
            alike = (
                "; of two files, of features and of labels, dataset.train_labels_file and "
                "dataset.test_labels_file name the second one"
            )
        elif numbers and len(fields) == 3:
            alike = "; it looks like a file that has the labels in its rows"
        elif _SVMLIGHT_LINE.match(line):
            alike = (
                "; it looks like svmlight, which has no header: dataset.format=svmlight reads it"
            )
        elif b":" not in line:
            alike = (
                '; texts are read from lines {"text": ..., "labels": [...]} by dataset=documents'
            )
        raise DataError(f"{path}:1: header '{_shown_text(line)}' is not '{wanted}'{alike}")
    # Python converts no number of thousands of digits. The first digits exceed the limit as well.
    counts = [int(field.lstrip(b"0")[:SHOWN_CHARACTERS] or b"0") for field in fields]
    for name, count in zip(wanted.split(), counts, strict=True):
        if count > MAX_INDEX:
            raise DataError(f"{path}:1: header has {count} {name}, more than {MAX_INDEX}")
    return counts


def read_text_blocks(
    path: Path,
    variant: Variant = XMC,
    sizes: Sizes | None = None,
    labels: Path | None = None,
    **options: Any,
) -> Iterator[Block]:
    """Parses a text file, or one of features and one of ``labels`` (`JoinedText`).

    `parse_text` has the ``options``.
    """
    size = sum(each.stat().st_size for each in (path, labels) if each is not None)
    with _opened_text(path, labels) as (file, name):
        yield from parse_text(file, name, variant, sizes, size, **options)


def parse_text(
    file: IO[bytes],
    path: str,
    variant: Variant,
    sizes: Sizes | None = None,
    num_bytes: int | None = None,
    *,
    cut: bool = False,
    lenient: bool = False,
    chunk_bytes: int = PARSED_BYTES,
) -> Iterator[Block]:
    """Parses an open file or a pipe in chunks of whole lines; a header replaces ``sizes``.

    A ``cut`` file is a part of another one, whose header it does not have. ``lenient`` leaves
    malformed lines out and counts them, which else raise DataError.
    """
    headed = variant.header and not cut
    header = file.readline() if headed else b""
    if headed:
        sizes = parse_header(header, path)
    sizes = sizes or Sizes()
    # Only a header tells which line is the first row too many.
    max_rows = sizes.rows if headed else None
    columns = kernel.Columns(
        variant.first_feature,
        variant.first_label,
        MAX_INDEX if sizes.features is None else sizes.features,
        MAX_INDEX if sizes.labels is None else sizes.labels,
    )
    line = int(headed)  # Lines that have been parsed.
    rows = 0  # Rows in these lines, also malformed ones.
    bar = ProgressBar(total=num_bytes, unit="B", unit_scale=True, desc=path)
    bar.update(len(header))
    for chunk in _line_chunks(file, chunk_bytes, bar, path):
        end = 0
        if line == 0:
            check_not_compressed(chunk, path)
        if max_rows is None or rows < max_rows:
            room = chunk.count(b"\n") if max_rows is None else max_rows - rows
            block, lines, end, status = _parse_chunk(chunk, variant, columns, room, lenient)
            line += lines
            rows += block.features.num_rows + block.skipped
            if status != kernel.OK:
                headless = not variant.header and line == 0
                _raise_bad_line(f"{path}:{line + 1}", chunk, end, status, columns, headless)
            yield block
        if rows == max_rows:
            rest = chunk[end:].lstrip(b"\r\n")
            line += chunk.count(b"\n", end, len(chunk) - len(rest))
            if rest:
                raise DataError(f"{path}:{line + 1}: row {rows + 1}, but the header has {max_rows}")
    if sizes.rows is not None and rows != sizes.rows:
        if headed:
            raise DataError(
                f"{path}:1: header has {checks.counted(sizes.rows, 'row')}, but the file has {rows}"
            )
        raise DataError(
            f"{path}: file has {checks.counted(rows, 'row')}, but {sizes.rows} were expected"
        )


def count_rows(path: Path) -> int:
    """Counts the rows of a file without a header, with malformed ones; it parses nothing."""
    with open_text(path) as file:
        return sum(not (line in _EMPTY or line.lstrip(b" \t").startswith(b"#")) for line in file)


def _line_chunks(file: IO[bytes], size: int, bar: ProgressBar, path: str) -> Iterator[bytes]:
    with bar:
        pieces = []  # Of a line whose end has not been read yet.
        while piece := file.read(size):
            cut = piece.rfind(b"\n") + 1
            if cut:
                yield b"".join([*pieces, piece[:cut]])
                pieces = []
            pieces.append(piece[cut:])
            check_line_length(sum(map(len, pieces)), path)
            bar.update(len(piece))
        if any(pieces):
            yield b"".join([*pieces, b"\n"])


def _parse_chunk(
    chunk: bytes, variant: Variant, columns: kernel.Columns, max_lines: int, lenient: bool
) -> tuple[Block, int, int, int]:
    """Parses a chunk; returns its rows, the number of lines, their end (an offset), the status."""
    lines = min(chunk.count(b"\n"), max_lines)
    room, label_room = chunk.count(b":"), chunk.count(b",") + lines
    features = CSR(np.empty(lines + 1, np.int64), np.empty(room, np.int32), np.empty(room, "f4"))
    labels = Pattern(np.empty(lines + 1, np.int64), np.empty(label_room, np.int32))
    data = np.frombuffer(chunk, np.uint8)
    lines, rows, skipped, end, status = kernel.parse_rows(
        data, columns, max_lines, lenient, not variant.header, *features, *labels
    )
    block = Block(features.slice(0, rows), labels.slice(0, rows), skipped)
    return block, lines, end, status


def _raise_bad_line(
    line: str, chunk: bytes, at: int, status: int, columns: kernel.Columns, headless: bool
) -> NoReturn:
    begin = max(chunk.rfind(space, 0, at) for space in (b" ", b"\t", b"\n")) + 1
    word, number = (
        _shown_text((chunk[i : chunk.index(b"\n", at)].split(None, 1) or [b""])[0])
        for i in (begin, at)
    )
    feature, _, value = number.partition(":")
    label = number.partition(",")[0]
    with suppress(ValueError):
        if status == kernel.MALFORMED_FEATURE and not math.isfinite(float(value)):
            status = kernel.NOT_FINITE
    first_feature, first_label, num_features, num_labels = columns
    problems = {
        kernel.MALFORMED_LABEL: f"malformed labels '{word}', 'label,label' was expected"
        " (a row without labels begins with a space)",
        kernel.MALFORMED_FEATURE: f"malformed feature '{word}', 'feature:value' was expected",
        kernel.LABEL_RANGE: out_of_range("label", label, first_label, num_labels),
        kernel.FEATURE_RANGE: out_of_range("feature", feature, first_feature, num_features),
        kernel.NOT_FINITE: f"value {value} of feature {feature} {checks.NO_FLOAT32}",
        kernel.DUPLICATE_LABEL: f"label {label} occurs more than once in the row",
        kernel.DUPLICATE_FEATURE: f"feature {feature} occurs more than once in the row",
    }
    fields = chunk[: chunk.index(b"\n")].split()
    header = headless and len(fields) == 3 and all(field.isdigit() for field in fields)
    alike = "; it looks like the header of a file of dataset.format=xmc" if header else ""
    raise DataError(f"{line}: {problems[status]}{alike}")


def _shown_text(text: bytes) -> str:
    shown = text[: 8 * SHOWN_CHARACTERS].decode("utf-8", "replace").strip()
    shown = shown if len(shown) <= SHOWN_CHARACTERS else shown[:SHOWN_CHARACTERS] + "..."
    return printable(shown, "")


def read_npz_sizes(features: Path, labels: Path) -> Sizes:
    """Reads only the shapes of two matrices."""
    rows, num_features = read_npz_shape(features)
    label_rows, num_labels = read_npz_shape(labels)
    if label_rows != rows:
        raise DataError(
            f"{labels}: file has {checks.counted(label_rows, 'row')}, but {rows} are in {features}"
        )
    return Sizes(rows, num_features, num_labels)


def read_npz_blocks(features: Path, labels: Path | None) -> Iterator[Block]:
    """All rows of two matrices of any sparse kind; the ones of ``labels`` are labels."""
    if labels is None:
        read_npz_shape(features)
        rows = _read_matrix(features)
        yield Block(rows, Pattern(np.zeros(len(rows.indptr), np.int64), np.empty(0, np.int32)))
        return
    read_npz_sizes(features, labels)
    indptr, indices, _ = _read_matrix(labels, marks=True)
    yield Block(_read_matrix(features), Pattern(indptr, indices))


@contextmanager
def _opened_matrix(path: Path) -> Iterator[IO[bytes]]:
    """Opens a file. If numpy opened it by its path, it would not close a malformed one."""
    with open_bytes(path) as file:
        try:
            pieces: Any = Pieces(file)  # What `zipfile` needs.
            yield pieces
        except Exception as error:  # zipfile, zlib, struct and numpy raise many kinds.
            if (of_disk := disk_error(error)) is not None:
                raise of_disk from None
            said = checks.shortened(f"{type(error).__name__}: {error}")
            problem = f"cannot be read as a SciPy sparse matrix: {said}"
            raise DataError(f"{path}: {problem} (scipy.sparse.save_npz writes one)") from error


def read_npz_shape(path: Path) -> tuple[int, int]:
    """Reads only the shape of a matrix: its rows and columns."""
    with _opened_matrix(path) as file, np.load(file, allow_pickle=False) as arrays:
        rows, columns = (int(count) for count in arrays["shape"])
        for name in {"indices", "indptr", "row", "col", "coords", "offsets"} & set(arrays.files):
            with arrays.zip.open(f"{name}.npy") as member:
                first = np.lib.format.read_magic(member) == (1, 0)
                own = np.lib.format
                read = own.read_array_header_1_0 if first else own.read_array_header_2_0
                dtype = read(member)[2]
            if dtype.kind not in "iu":  # SciPy would cut 1.5 to 1.
                raise ValueError(f"{name} must be whole numbers, not {dtype}")
    for name, count in (("rows", rows), ("columns", columns)):
        if not 0 <= count <= MAX_INDEX:
            raise DataError(f"{path}: matrix has {count} {name}, not between 0 and {MAX_INDEX}")
    size = path.stat().st_size
    if rows > _ROWS_PER_BYTE * size:
        raise DataError(
            f"{path}: matrix has {rows} rows, more than a file of {size} bytes can hold"
        )
    return rows, columns


def _read_matrix(path: Path, marks: bool = False) -> CSR:
    """A matrix with values of float32; ``marks`` of labels are zeros and ones only."""
    from scipy import sparse  # Imported here: it takes long, and few files need it.

    with _opened_matrix(path) as file:
        with counted_bytes(file, path.stat().st_size, str(path)) as counted:
            matrix = sparse.load_npz(counted)
        check_scipy(matrix, "its arrays")
        if matrix.format == "dia":
            if np.any(np.abs(matrix.offsets.astype(np.int64)) > max(matrix.shape)):
                raise ValueError("an offset is beyond the matrix")
        elif matrix.format == "coo":
            matrix.has_canonical_format = True  # Else the conversion would sum duplicates.
        matrix = matrix.tocsr()
    if matrix.dtype.kind not in "biuf":
        raise DataError(f"{path}: values are of type {matrix.dtype}, not real numbers")
    with np.errstate(over="ignore"):
        values = matrix.data.astype(np.float32, copy=False)
    for at in np.flatnonzero(~np.isfinite(values)):
        value, entry = matrix.data[at], _entry(matrix, at)
        raise DataError(f"{path}: value {value} at {entry} {checks.NO_FLOAT32}")
    if marks:
        for at in np.flatnonzero((matrix.data != 0) & (matrix.data != 1)):
            value, entry = matrix.data[at], _entry(matrix, at)
            raise DataError(
                f"{path}: value {value} at {entry} is neither 0 nor 1: save matrix != 0 where each "
                "entry is a label, or matrix > 0"
            )
    matrix.data = values
    _check_distinct(path, matrix)
    indices = matrix.indices.astype(np.int32, copy=False)
    rows = CSR(matrix.indptr.astype(np.int64, copy=False), indices, matrix.data)
    return rows.without_zeros()


def _check_distinct(path: Path, matrix: Any) -> None:
    if matrix.has_canonical_format:
        return
    matrix = matrix.sorted_indices()  # A copy: the entries of the file keep their order.
    same = matrix.indices[1:] == matrix.indices[:-1]
    begins = matrix.indptr[1:-1]
    same[begins[(begins > 0) & (begins < matrix.nnz)] - 1] = False
    for at in np.flatnonzero(same):
        raise DataError(f"{path}: {_entry(matrix, at)} has more than one entry")


def _entry(rows: Any, at: np.intp, start: int = 0) -> tuple[int, int]:
    """The row and column of an entry; ``start`` is the number of the first row."""
    row = start + int(np.searchsorted(rows.indptr, at, side="right")) - 1
    return row, int(rows.indices[at])


def write_xmc(
    path: str | Path,
    split: Split,
    *,
    format: str = "xmc",
    first_feature: int | None = None,
    first_label: int | None = None,
) -> None:
    """Writes a split into a text file, atomically.

    Values have as few digits as a reader needs to find the same float32. The entries of a row keep
    their order.

    Args:
        path: the file; an older one is replaced, or stays as it was after an error.
        split: the rows. No column may occur twice in a row: readers refuse such rows.
        format: "xmc" or "svmlight"; see `slide.data.sources.xmc`.
        first_feature, first_label: number of the first column; None: that of the format.

    Example:
        >>> import pathlib, tempfile
        >>> from slide.data import synthetic, write_xmc
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     data = synthetic(cache=folder, train_samples=10, test_samples=5)
        ...     write_xmc(f"{folder}/train.txt", data.train)
        ...     print(pathlib.Path(folder, "train.txt").read_text().splitlines()[0])
        10 10000 20000
    """
    variant = text_variant(format, first_feature, first_label)

    def write(file: IO[bytes]) -> None:
        if variant.header:
            file.write(f"{len(split)} {split.num_features} {split.num_labels}\n".encode())
        start = 0
        for part in split.blocks(entries=FORMATTED_ENTRIES):
            _check_rows(part, start)
            file.write(_lines(part, variant).encode())
            start += len(part)

    write_atomic(Path(path), write)


def _lines(part: Split, variant: Variant) -> str:
    """A line for each row; one without labels begins with a space."""
    columns = (part.features.indices + np.int64(variant.first_feature)).tolist()
    labels = [*map(str, (part.labels.indices + np.int64(variant.first_label)).tolist())]
    # NumPy writes the fewest digits that tell a float32 from all others.
    values = part.features.values.astype(str).tolist()
    pairs = [f" {at}:{value.removesuffix('.0')}" for at, value in zip(columns, values, strict=True)]
    ends = (pairwise(rows.indptr.tolist()) for rows in (part.labels, part.features))
    lines = (
        ",".join(labels[a:b]) + "".join(pairs[c:d]) for (a, b), (c, d) in zip(*ends, strict=True)
    )
    return "".join(f"{line or ' '}\n" for line in lines)


def _check_rows(part: Split, start: int) -> None:
    """Raises ValueError for a malformed row; ``start`` is the number of the first row."""
    for what, rows in (("feature", part.features), ("label", part.labels)):
        count = getattr(part, f"num_{what}s")
        for at in np.flatnonzero((rows.indices < 0) | (rows.indices >= count)):
            row, column = _entry(rows, at, start)
            raise ValueError(f"row {row}: {what} {column} is not in [0, {count})")
    for at in np.flatnonzero(~np.isfinite(part.features.values)):
        row, feature = _entry(part.features, at, start)
        value = part.features.values[at]
        raise ValueError(f"row {row}: value {value} of feature {feature} is not finite")


def copy_numbered_rows(whole: Path, numbers: Path, target: Path) -> None:
    """Copies some rows of a file into a file with a new header."""
    header, *rows = whole.read_bytes().removesuffix(b"\n").split(b"\n")
    fields = header.split()
    if len(fields) != 3 or fields[0] != b"%d" % len(rows):
        raise ValueError(f"{whole.name}: header '{header[:40]!r}' of a file of {len(rows)} rows")
    lines = numbers.read_bytes().splitlines()
    with target.open("wb") as file:
        file.write(b" ".join([b"%d" % len(lines), *fields[1:]]) + b"\n")
        for at, line in enumerate(lines, 1):
            word = (line.split() or [b""])[0]
            number = int(word) if word.isdigit() else 0
            if not 1 <= number <= len(rows):
                raise ValueError(f"{numbers.name}:{at}: no row number in [1, {len(rows)}]")
            file.write(rows[number - 1] + b"\n")
