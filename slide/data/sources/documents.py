"""Texts with labels, in lines of JSON: ``{"text": "...", "labels": ["...", ...]}``.

A row is a text. Its features are the words of the training texts, weighted by tf-idf
(`slide.data.TextVectorizer`). Its labels are names, and the names of both files are numbered
in alphabetical order. A line without ``labels``, or with null, is a row without any, and other keys
of a line do not count.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache as cache_result
from functools import partial
from pathlib import Path
from typing import Any

from slide.data.columns import Row
from slide.data.dataset import ASIDE, PROPENSITY, SETS_ASIDE, SparseDataset
from slide.data.errors import DataError
from slide.data.fetching import check_folders, ensure_files
from slide.data.sources.table import drawn, texts_and_labels
from slide.data.tables import counted_lines, json_rows
from slide.data.text_vectorizer import TextOptions
from slide.utils.files import file_state
from slide.utils.progress_bar import log

# Part of the cache's key. Increase it when the same arguments give other rows.
DOCUMENTS_VERSION = 1


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

    `slide.data.sources.documents` describes the lines.

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
    if test_file is None:
        log(ASIDE)
    elif paths["train"].is_file():
        hint = f"{hint} {SETS_ASIDE}".lstrip()
    ensure_files(Path(root), list(dict.fromkeys(names.values())), None, lambda _: None, hint)
    chosen = cache_result(lambda: drawn(sum(1 for _ in read_documents(paths["train"]))))

    def rows(part: str) -> Iterator[Row]:
        every = read_documents(paths[part])
        if test_file is not None:
            return every
        return (
            row for row, aside in zip(every, chosen(), strict=True) if aside == (part == "test")
        )

    key: dict[str, Any] = {"reader": "documents", "version": DOCUMENTS_VERSION}
    key["files"] = {part: str(path.resolve()) for part, path in paths.items()}
    if test_file is None:
        key["set aside"] = True
    return texts_and_labels(
        {part: partial(rows, part) for part in paths},
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
        raise ValueError(f"labels must be a list of names, not {labels!r}")
    found = Row(row["text"], list(dict.fromkeys(map(str, labels))))
    for each in (found.text, *found.labels):
        each.encode()  # Half a pair of surrogates is no text. Here its line is known.
    return found


def read_documents(path: Path) -> Iterator[Row]:
    """The documents of a file, one after the other."""
    with counted_lines(path, "reading") as lines:
        for position, row in json_rows(lines, str(path)):
            try:
                yield document_of(row)._replace(name=Path(position).name)
            except ValueError as error:
                raise DataError(f"{position}: {error}") from error
