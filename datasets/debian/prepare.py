"""A data set from the package index of a Debian or Ubuntu machine: what a package needs.

    python datasets/debian/prepare.py          # then: python train.py dataset=debian
    python datasets/debian/prepare.py --index path/to/Packages.xz --root my/folder

A row is a package that needs others. Its features are its tags and the words, in lower case, of its
name, description, section and maintainer's name; the same word in two of these fields is two
features. Values are tf-idf weights of counts, from the training rows, and rows have L2 norm 1. Its
labels are the packages that it depends on, pre-depends on or recommends, with all alternatives.
The first entry of a package counts if there are more. Features and labels are numbered in
alphabetical order.

References:
    Debian Policy Manual, sections 5.1 (syntax of control files) and 7.1 (relations)
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from slide.data.dataset import Split, holdout
from slide.data.errors import DataError
from slide.data.fetching import FetchError
from slide.data.row_transform import normalize_rows, row_counts, tf_idf_values, tf_idf_weights
from slide.sparse import Pattern
from slide.utils.progress_bar import ProgressBar

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from package_index import (
    SHARES,
    SHOWN_LINE,
    WORD,
    NamedRows,
    check_request,
    command_output,
    keep_features,
    opened_file,
    run,
    write_files,
)

COMMAND = ("apt-cache", "dumpavail")
INSTEAD = (
    "on a machine without apt, an index of packages (Packages.xz of a Debian mirror) can be given "
    "by --index"
)
RELATIONS = ("Depends", "Pre-Depends", "Recommends")
# The name in each alternative of a relation; a version, architecture or profile may follow it.
NEEDED = re.compile(r"(?:^|[,|])\s*([^\s,|:(\[<]+)")
ADDRESS = re.compile(r"<[^>]*>$")
TAG = re.compile(r"[^\s,]+")
DESCRIBING = {
    **dict.fromkeys(("Package", "Description", "Section", "Maintainer"), WORD),
    "Tag": TAG,
}
ARCHIVED = "Filename"  # The place of a package in an archive.
FIELDS = {*RELATIONS, *DESCRIBING, ARCHIVED}


def prepare(
    root: Path,
    index: Path | None = None,
    test_share: float = SHARES["debian"],
    seed: int = 0,
    min_rows: int = 2,
) -> None:
    """Write ``train.txt`` and ``test.txt``, in XMC text format, from an index of packages.

    Args:
        root: folder for the files; neither may be there.
        index: a file of entries (``Packages``), plain or packed by gzip, bzip2 or xz; None: the
            index of this machine, as ``apt-cache dumpavail`` prints it.
        test_share, seed: share of the rows that is drawn as test rows, in (0, 1).
        min_rows: a feature of fewer training rows is left out.
    """
    check_request(root, test_share, seed=(seed, 0), min_rows=(min_rows, 1))
    write_files(root, *weigh_counts(*holdout(_read_rows(index), test_share, seed), min_rows))


def _read_rows(index: Path | None) -> Split:
    """Reads an index; raises an error if it has too few packages."""
    opened = command_output(COMMAND, INSTEAD) if index is None else opened_file(index)
    with opened as lines:
        entries = read_packages(lines, str(index or " ".join(COMMAND)))
        # apt also names packages that are installed but in none of its archives.
        known = (entry for entry in entries if index is not None or ARCHIVED in entry)
        rows = count_packages(ProgressBar(known, unit=" packages"))
    if len(rows) < 2:
        what = f"{len(rows)} packages that depend on others"
        if index is not None:
            raise DataError(f"{index}: it has {what}, at least 2 are needed")
        said = f"{' '.join(COMMAND)} names {what}; apt-get update fetches the index"
        raise FetchError(f"  {said}")
    return rows


def read_packages(lines: Iterable[bytes], source: str) -> Iterator[dict[str, str]]:
    """Yields the entries of an index, as dictionaries of the fields of `FIELDS`."""
    entry: dict[str, str] = {}
    field = ""
    for number, line in enumerate(lines, 1):
        text = line.decode("utf-8", "replace").rstrip()
        if not text:
            if entry:
                yield entry
            entry, field = {}, ""
        elif text[0] in " \t" and field:
            if field in entry:
                entry[field] += text
        else:
            field, colon, value = text.partition(":")
            if not colon or not field or field[0] in " \t":
                raise DataError(f"{source}:{number}: '{text[:SHOWN_LINE]}' is not 'Field: value'")
            if field in FIELDS:
                entry[field] = value.strip()
    if entry:
        yield entry


def needed_packages(entry: dict[str, str]) -> set[str]:
    """Returns the packages that an entry depends on or recommends, with all alternatives."""
    return {name for field in RELATIONS for name in NEEDED.findall(entry.get(field, ""))}


def package_words(entry: dict[str, str]) -> Counter[tuple[str, str]]:
    """Counts the words of each field, as ``{(field, word): count}``."""
    counts: Counter[tuple[str, str]] = Counter()
    for field, pattern in DESCRIBING.items():
        text = entry.get(field, "")
        if field == "Maintainer":
            text = ADDRESS.sub("", text)
        counts.update((field, word) for word in pattern.findall(text.lower()))
    return counts


def count_packages(entries: Iterable[dict[str, str]]) -> Split:
    """Makes a row of each package that needs others: counts of words, and labels."""
    seen: set[str] = set()
    features, labels = NamedRows(), NamedRows()
    for entry in entries:
        name, needed = entry.get("Package"), needed_packages(entry)
        if name and needed and name not in seen:
            seen.add(name)
            features.append(package_words(entry))
            labels.append(dict.fromkeys(needed, 1))
    counts, (indptr, indices, _) = features.matrix(), labels.matrix()
    return Split(counts, Pattern(indptr, indices), len(features.numbers), len(labels.numbers))


def weigh_counts(train: Split, test: Split, min_rows: int) -> tuple[Split, Split]:
    """Turns counts into tf-idf weights of rows of length 1, without features of few rows."""
    counts = row_counts(train.features, train.num_features)
    kept = counts >= min_rows
    weights = tf_idf_weights(counts[kept], len(train))

    def weighed(part: Split) -> Split:
        part = keep_features(part, kept)
        features = normalize_rows(tf_idf_values(part.features, weights))
        return Split(features, part.labels, part.num_features, part.num_labels)

    return weighed(train), weighed(test)


if __name__ == "__main__":
    run(prepare, __doc__.splitlines()[0], Path(__file__).parent, seed=0, min_rows=2)
