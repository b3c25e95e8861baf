"""Texts, numbers and labels: tables of any form, and texts with labels in lines of JSON.

Each row of a table is a sample. Its features are the words of its texts, weighted by tf-idf
(`slide.data.TextVectorizer`), and after them its numbers, in bins by quantiles of training rows
(`slide.data.columns`), so that a network and linear classifiers can learn any function of a number.
Its labels are names, and the names of both parts are numbered in alphabetical order.

A line of JSON is ``{"text": "...", "labels": ["...", ...]}``. Without ``labels``, or with null, it
is a row without any, and other keys of a line do not count.
"""

import functools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from slide.data.bins import SAMPLED
from slide.data.cache import SPLITS, cached, check_propensity
from slide.data.columns import Columns, Row, understood
from slide.data.dataset import PROPENSITY, Block, SparseDataset, Split, draw_rows
from slide.data.errors import DataError
from slide.data.fetching import check_folders, ensure_parts
from slide.data.table_files import counted_lines, index_columns, json_rows, read_table
from slide.data.text_vectorizer import TextOptions, TextVectorizer
from slide.sparse import CSR, Pattern, as_csr, stacked
from slide.utils import checks
from slide.utils.files import file_state, read_text
from slide.utils.names import Names
from slide.utils.progress_bar import log

# Parts of the cache's keys. Increase one when the same arguments give other rows.
_VERSION, _DOCUMENTS_VERSION = 5, 1
# Texts that become rows at a time.
_ROWS = 4096
# Numbers of which quantiles are taken, at most: 128 MB.
_NUMBERS = 1 << 24
_COLUMNS = "columns.json"

# The rows of "train" or "test".
Rows = Callable[[str], Iterable[Row]]


def table(
    *,
    path: Any,
    test_path: Any = None,
    name: str = "table",
    cache: str | Path | None = None,
    labels: str | Sequence[str] | None = None,
    separator: str | None = "auto",
    text: str | Sequence[str] | None = None,
    numbers: str | Sequence[str] | None = None,
    split: str | None = None,
    test_value: str = "test",
    test_share: float = 0.1,
    seed: int = 0,
    encoding: str = "utf-8",
    ngrams: int = 1,
    min_rows: int = 2,
    max_features: int | None = None,
    lower: bool = True,
    sublinear: bool = True,
    propensity: Sequence[float] = PROPENSITY,
    hint: str = "",
) -> SparseDataset:
    """Opens a table. The first time it reads the table three times: what is in it, counts, rows.

    `slide.data.sources.table` describes the rows.

    Args:
        path: a file of CSV, JSON (in lines or as a list) or Parquet, known by its content; or a
            frame, a table of pyarrow, a data set of Hugging Face, or a list of dicts.
        test_path: the same for the test rows; None: they are among the rows of ``path``.
        cache: folder for the arrays; None: they are in memory only.
        labels: column of labels; or several of zeros and ones, each of which is a label; None: the
            first that is called labels, tags, categories or so.
        separator: parts the labels in a cell; ``"auto"``: one of ``| ; ,`` where it parts cells
            into fewer names than there are cells; None: a cell has one label, or is a list.
        text: columns of texts, or one; None: all that hold anything else than numbers.
        numbers: columns of numbers, or one; None: all that hold nothing else, or words such as n/a
            for none. Names of rows, such as id, and the index of a frame of pandas are left out of
            both unless they are asked for.
        split: column that tells test rows, by ``test_value``; None: a share is drawn.
        test_share, seed: share of the rows, in (0, 1), that become test rows without ``split`` and
            ``test_path``, and the seed of that choice.
        encoding: of CSV.
        ngrams, min_rows, max_features, lower, sublinear: see `slide.data.TextOptions`.
        propensity, hint: see `slide.data.xmc`.

    Raises:
        DataError: a file is malformed.
        ValueError: a column is missing, or no word is in enough rows.

    Example:
        >>> from slide.data import table
        >>> rows = [{"title": f"a {w} fox", "price": 3, "tags": f"{w};fox"} for w in ("red", "old")]
        >>> data = table(path=rows * 9, separator=";")
        >>> list(data.label_names), list(data.feature_names)
        (['fox', 'old', 'red'], ['fox', 'old', 'red', 'column:price any'])
        >>> len(data.train), len(data.test)
        (16, 2)
    """
    options = TextOptions(ngrams, min_rows, max_features, lower, sublinear)
    checks.positive("test_share", test_share)
    checks.share("test_share", test_share)
    checks.whole("seed", seed, 0)
    try:
        "".encode(encoding)
    except (LookupError, TypeError) as error:  # Also of codecs of bytes, such as zlib.
        said = "must name an encoding of texts, such as cp1252 or utf-16"
        raise ValueError(f"encoding {said}, not {encoding!r}") from error
    if path is None:
        raise ValueError(
            "path must name the file of the table, such as dataset.path=reviews.csv, not None"
        )
    if separator == "":
        raise ValueError(
            "separator must be auto, null or text that parts labels, not empty; for a shell quote "
            "it: 'dataset.separator=\";\"'"
        )
    labels = labels if labels is None else _names_of("labels", labels)
    labels = labels[0] if labels is not None and len(labels) == 1 else labels
    split = split if split is None else _names_of("split", [split])[0]
    text, numbers = (
        each if each is None else _names_of(key, each)
        for key, each in (("text", text), ("numbers", numbers))
    )
    files = [each for each in (path, test_path) if isinstance(each, str | Path)]
    for each in map(Path, files):
        checks.encodable("path", each)
        if not each.is_file():
            what = "a folder, not a file" if each.is_dir() else "missing"
            told = f"{each} is {what}. {hint} dataset.path and dataset.test_path name files."
            raise FileNotFoundError(" ".join(told.split()))
    find = {"labels": labels, "separator": separator, "text": text, "numbers": numbers}

    @functools.cache
    def found() -> tuple[Columns, np.ndarray | None]:
        """The columns, and which rows are drawn for testing."""
        without = () if split is None else (split,)
        rows, index = read_table(path, encoding), index_columns(path)
        columns, count = understood(rows, without=without, index=index, **find)
        chosen, note = None, None
        if test_path is None and split is not None:
            note = f"test rows: {test_value!r} in the column {split}"
        elif test_path is None:
            chosen = draw_rows(count, test_share, seed)
            note = (
                f"no test file: {chosen.sum():,} of {count:,} rows, drawn with seed {seed}, are "
                "set aside as test rows (test_path, split or test_share says otherwise)"
            )
        return replace(columns, notes=(*columns.notes, *([note] if note else ()))), chosen

    def rows_of(part: str) -> Iterator[Row]:
        columns, chosen = found()
        apart = part == "test" and test_path is not None
        given = read_table(test_path if apart else path, encoding)
        lacking = {
            *columns.names,
            *columns.label_columns,
        }  # Lines of JSON may leave empty cells out.
        for number, (position, cells) in enumerate(given):
            lacking.difference_update(cells)
            if chosen is not None:
                test = bool(chosen[number])
            elif test_path is None:
                test = str(cells.get(split or "")).strip() == test_value
            else:
                test = apart
            if test != (part == "test"):
                continue
            try:
                row = columns.row(cells)
            except ValueError as error:
                raise DataError(f"{position}: {error}") from error
            yield row._replace(name=columns.named(Path(position).name, cells)) if test else row
        if lacking:
            raise ValueError(f"no test row has the column {', '.join(sorted(lacking))}")

    asked = {k: v if isinstance(v, str | None) else list(v) for k, v in find.items()}
    arguments = {
        "reader": "table",
        "version": _VERSION,
        "files": [str(Path(each).resolve()) for each in files],
        "parts": [split, test_value, test_share, seed, encoding],
        **asked,
        **asdict(options),
    }
    if len(files) < 1 + (test_path is not None):
        cache = None  # What is in memory has no date.
    elif cache is not None:
        check_folders(cache=cache)
    state = {"files": [file_state(Path(each)) for each in files]}
    try:
        data = texts_and_labels(
            rows_of,
            options,
            lambda: found()[0],
            str(path) if isinstance(path, str | Path) else "the table",
            name=name,
            cache=cache,
            key=arguments,
            state=state,
            propensity=propensity,
        )
    except ValueError:
        if found.cache_info().currsize:  # What the columns were taken for tells what is wrong.
            _log(found()[0])
        raise
    _log(data.columns)
    return data


def _names_of(key: str, given: Any) -> list[str]:
    """Names of columns, or one; whole numbers mean the texts of CSV that write them."""
    names = given if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    for name in names:
        if not isinstance(name, str | int) or isinstance(name, bool):
            raise ValueError(f"{key} must name a column, or be a list of names, not {name!r}")
    return list(dict.fromkeys(map(str, names)))


def _log(columns: Columns | None) -> None:
    for heading, sentence in [] if columns is None else columns.told():
        log(f"{heading:<9} {sentence}")


def documents(
    *,
    name: str,
    root: str | Path,
    cache: str | Path,
    train_file: str = "train.jsonl",
    test_file: str | None = "test.jsonl",
    ngrams: int = 1,
    min_rows: int = 2,
    max_features: int | None = None,
    lower: bool = True,
    sublinear: bool = True,
    propensity: Sequence[float] = PROPENSITY,
    hint: str = "",
) -> SparseDataset:
    """Opens texts with labels. The first time it reads the files twice, to count and to read.

    `slide.data.sources.table` describes the lines.

    Args:
        train_file, test_file: names of the files in ``root``; without a test file, None, a tenth of
            the training rows is set aside.
        ngrams, min_rows, max_features, lower, sublinear: see `slide.data.TextOptions`.
        propensity, hint: see `slide.data.xmc`.

    Raises:
        DataError: a line is malformed.
        ValueError: an argument is out of range, or no word is in enough rows.

    Example:
        >>> import pathlib, tempfile
        >>> from slide.data import documents
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> line = '{"text": "a red fox", "labels": ["animal", "red"]}'
        >>> for part in ("train", "test"):
        ...     _ = (folder / f"{part}.jsonl").write_text(f"{line}\\n{line}\\n")
        >>> data = documents(name="mine", root=folder, cache=folder)
        >>> list(data.label_names), data.num_features
        (['animal', 'red'], 2)
    """
    check_folders(root=root, cache=cache)
    options = TextOptions(ngrams, min_rows, max_features, lower, sublinear)
    names = {"train": train_file, "test": test_file or train_file}
    paths = {part: Path(root) / file for part, file in names.items()}
    test = None if test_file is None else [names["test"]]
    ensure_parts(Path(root), [names["train"]], test, hint)
    chosen = functools.cache(
        lambda: draw_rows(sum(1 for _ in read_documents(paths["train"])), 0.1, seed=0)
    )

    def rows(part: str) -> Iterator[Row]:
        every = read_documents(paths[part])
        if test_file is not None:
            return every
        return (
            row for row, aside in zip(every, chosen(), strict=True) if aside == (part == "test")
        )

    key: dict[str, Any] = {"reader": "documents", "version": _DOCUMENTS_VERSION}
    key["files"] = {part: str(path.resolve()) for part, path in paths.items()}
    if test_file is None:
        key["set aside"] = True
    return texts_and_labels(
        rows,
        options,
        lambda: None,
        str(paths["train"]),
        name=name,
        cache=cache,
        key=key | asdict(options),
        state={part: file_state(path) for part, path in paths.items()},
        propensity=propensity,
    )


def document_of(row: Mapping[str, Any]) -> Row:
    """An object of JSON as a document."""
    if not isinstance(row.get("text"), str):
        raise ValueError('a line must be {"text": "...", "labels": ["...", ...]}')
    labels = [] if row.get("labels") is None else row["labels"]
    if not isinstance(labels, list) or not all(type(each) in (str, int) for each in labels):
        raise ValueError(f"labels must be a list of names, not {labels!r:.60}")
    return Row(row["text"], list(dict.fromkeys(map(str, labels)))).encodable()


def read_documents(path: Path) -> Iterator[Row]:
    """The documents of a file, one after the other."""
    with counted_lines(path) as lines:
        for position, row in json_rows(lines, str(path)):
            try:
                yield document_of(row)._replace(name=Path(position).name)
            except ValueError as error:
                raise DataError(f"{position}: {error}") from error


class _Counted(NamedTuple):
    """What the first reading of the rows finds."""

    vectorizer: TextVectorizer | None
    labels: Names
    columns: Columns | None
    test_rows: Names | None

    @property
    def num_columns(self) -> tuple[int, int]:
        words = self.vectorizer.num_features if self.vectorizer else 0
        numbers = self.columns.number_names() if self.columns else []
        return words + len(numbers), len(self.labels)

    def blocks(self, rows: Iterable[Row]) -> Iterator[Block]:
        """Rows as features and labels."""
        known = {label: number for number, label in enumerate(self.labels)}
        waiting = iter(rows)
        while part := list(islice(waiting, _ROWS)):
            labels = Pattern.from_lists([[known[label] for label in row.labels] for row in part])
            yield Block(features_of(part, self.vectorizer, self.columns), labels)


def features_of(
    rows: Sequence[Row], vectorizer: TextVectorizer | None, columns: Columns | None
) -> CSR:
    """The features of rows: words, and bins of numbers after them."""
    if vectorizer is None:
        words = CSR(np.zeros(len(rows) + 1, np.int64), np.empty(0, np.int32), np.empty(0, "f4"))
    else:
        words = vectorizer.rows([row.text for row in rows])
    if columns is None or not columns.numbers:
        return words
    from scipy import sparse  # Imported here, so that `import slide` stays fast.

    numbers = np.array([row.numbers for row in rows], float).reshape(len(rows), -1)
    shape = len(rows), 0 if vectorizer is None else vectorizer.num_features
    texts = sparse.csr_array(words[::-1], shape)
    return as_csr(sparse.hstack([texts, columns.number_features(numbers)], "csr"))


def texts_and_labels(
    rows: Rows,
    options: TextOptions,
    columns: Callable[[], Columns | None],
    source: str,
    *,
    name: str,
    cache: str | Path | None,
    key: Mapping[str, Any],
    state: Mapping[str, Any],
    propensity: Sequence[float],
) -> SparseDataset:
    """The data set of the ``rows`` of ``"train"`` and ``"test"``, which are read twice.

    ``columns`` is asked for only if there is no cache; without a cache arrays are in memory. See
    `cached`.
    """
    counted = functools.cache(lambda: _count(rows, options, columns(), source))
    if cache is None:
        own = counted()
        sizes = own.num_columns
        train, test = (_in_memory(own.blocks(rows(part)), *sizes) for part in SPLITS)
        found = SparseDataset(name, train, test, *sizes, check_propensity(propensity))
    else:
        found = cached(
            cache,
            name=name,
            key=key,
            state=state,
            blocks=lambda part: counted().blocks(rows(part)),
            num_columns=lambda: counted().num_columns,
            extra=lambda: _arrays(counted()),
            propensity=propensity,
        )
        assert found.folder is not None
        own = _opened(found.folder, options)
    found = replace(
        found,
        label_names=own.labels,
        vectorizer=own.vectorizer,
        columns=own.columns,
        test_row_names=own.test_rows,
    )
    # Made now, since a model needs them after hours of training.
    names = found.feature_names
    assert names is not None
    assert len(names) == found.num_features
    return found


def _count(rows: Rows, options: TextOptions, columns: Columns | None, source: str) -> _Counted:
    labels: set[str] = set()
    width = 0 if columns is None else len(columns.numbers)
    # A sample of all rows' numbers (Vitter 1985, "Random sampling with a reservoir").
    most = min(SAMPLED, _NUMBERS // width) if width else 0
    sample, draws, count = [], random.Random(0), 0

    def texts() -> Iterator[str]:
        nonlocal count
        for row in rows("train"):
            labels.update(row.labels)
            count += 1
            if len(sample) < most:
                sample.append(np.array(row.numbers, float))
            elif (place := draws.randrange(count)) < most:
                sample[place][:] = row.numbers
            yield row.text
        if not count:
            raise DataError(f"{source}: there are no rows to train on")

    vectorizer = None
    if columns is None or columns.text:
        vectorizer = TextVectorizer.fit(texts(), options)
    else:
        for _ in texts():
            pass
    test_rows = []
    for row in rows("test"):
        labels.update(row.labels)
        test_rows += [row.name] if row.name else []
    if not labels:
        where = "" if columns is None else f" in the column {', '.join(columns.label_columns)}"
        raise DataError(f"{source}: no row has a label{where}")
    if columns is not None:
        numbers = np.array(sample).reshape(len(sample), width)
        columns = columns.fitted(numbers)
    names = Names.of(test_rows) if test_rows else None
    return _Counted(vectorizer, Names.of(sorted(labels)), columns, names)


def _in_memory(blocks: Iterable[Block], num_features: int, num_labels: int) -> Split:
    none = Pattern.from_lists([])
    found = [Block(CSR(*none, np.empty(0, np.float32)), none), *blocks]
    features = stacked([block.features for block in found])
    labels = stacked([block.labels for block in found])
    return Split(features, labels, num_features, num_labels)


def _arrays(counted: _Counted) -> dict[str, np.ndarray | str]:
    """What stands beside the rows."""
    found: dict[str, np.ndarray | str] = {}
    names = {"labels": counted.labels}
    if counted.test_rows is not None:
        names["test_rows"] = counted.test_rows
    if counted.vectorizer is not None:
        assert counted.vectorizer.terms is not None
        assert counted.vectorizer.idf is not None
        names["terms"], found["idf"] = counted.vectorizer.terms, counted.vectorizer.idf
    if counted.columns is not None:
        found[_COLUMNS] = json.dumps(counted.columns.settings())
    for part, own in names.items():
        found |= {f"{part}_text": own.text, f"{part}_ends": own.ends}
    return found


def _opened(folder: Path, options: TextOptions) -> _Counted:
    arrays = {path.stem: np.load(path, mmap_mode="r") for path in folder.glob("*.npy")}

    def names(part: str) -> Names:
        return Names(arrays[f"{part}_text"], arrays[f"{part}_ends"])

    vectorizer = columns = None
    if "idf" in arrays:
        vectorizer = TextVectorizer(options, names("terms"), arrays["idf"])
    if (folder / _COLUMNS).is_file():
        columns = Columns.restored(json.loads(read_text(folder / _COLUMNS)))
    test_rows = names("test_rows") if "test_rows_text" in arrays else None
    return _Counted(vectorizer, names("labels"), columns, test_rows)
