"""Tables of CSV and JSON: rows that stay the same, written and read again, or an error."""

import csv
from pathlib import Path

from helpers.limits import more_memory

from fuzz.shared import MEMORY, check_sentence
from slide.data import DataError
from slide.data.columns import understood
from slide.data.table_files import read_table
from slide.utils.checks import error_message

_SOUND = (
    b"title,price,tags\na red fox,3,red;fox\nold car,,\n",
    b'sep=;\r\n"a ""b""";"x\ny"\r\n1,5;2\r\n',
    b"text\tlabel\nred\tx|y\nblue\t['x', 'z']\n",
    b'{"text": "a car", "labels": ["x"], "n": 1e3}\n\n{"text": null, "labels": []}\n',
    b'[{"a": 1, "label": "x"},\n {"a": "n/a", "label": "y"}]',
    "title,label\ncafé,é\n".encode("utf-16"),
    "\ufefftitle, label\ncafé, é\n".encode(),
)


def seeds(folder: Path) -> list[bytes]:
    """See `fuzz`."""
    return list(_SOUND)


def check(data: bytes, folder: Path) -> bool:
    """See `fuzz`."""
    path, again = folder / "rows.csv", folder / "again.csv"
    path.write_bytes(data)
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    try:
        with more_memory(MEMORY):
            rows = [row for _, row in read_table(path, encoding)]
    except DataError as error:
        check_sentence(error, path)
        return False
    if rows and all(isinstance(cell, str) for row in rows for cell in row.values()):
        with again.open("w", encoding="utf-8", errors="surrogatepass", newline="") as file:
            file.write("sep=,\n")
            writer = csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n")
            writer.writerows([list(rows[0]), *(row.values() for row in rows)])
        if len({tuple(row) for row in rows}) == 1:  # Objects of JSON may lack cells.
            assert [row for _, row in read_table(again)] == rows
    _check_columns(path, rows)
    return True


def _check_columns(path: Path, rows: list) -> None:
    """What the columns are taken for, and each row of them, or an error of a sentence."""
    try:
        columns, count = understood((f"{path}: row", row) for row in rows)
        assert count == len(rows)
        for row in rows:
            found = columns.row(row)
            assert len(found.numbers) == len(columns.numbers)
            assert all(isinstance(label, str) for label in found.labels)
    except ValueError as error:
        if len(error_message(error)) > 2000:
            raise AssertionError("an error without an end") from error
