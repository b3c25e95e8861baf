"""The reader of rows as text, compared with a naive parser."""

import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers import naive_rows
from helpers.damage import fuzzed
from helpers.naive_rows import assert_agrees, read
from hypothesis import given
from hypothesis import strategies as st

from slide.data import DataError
from slide.data.row_files import read_header, read_text_blocks
from slide.ops.kernels.text_rows import TABLE_SIZE

ROOT = Path(__file__).parents[3]
DATA = Path(os.environ.get("SLIDE_DATA", "nowhere"))  # real sets, where there are any
COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
SETS = [name for name in ("bibtex", "delicious", "debian") if (DATA / name / "train.txt").is_file()]
HAND_WRITTEN = {
    "plain": "2 5 4\n1,3 0:0.5 4:2\n0 2:1\n",
    "unsorted": "1 5 4\n3,0,1 4:1 0:2 3:3\n",
    "no final newline": "2 5 4\n1 0:1\n2 3:4",
    "crlf": "2 5 4\r\n1 0:1\r\n 3:4\r\n",
    "no labels": "2 5 4\n 0:1 1:1\n 4:2\n",
    "no features": "3 5 4\n1,2\n1,2 \n3\t\n",
    "neither": "3 5 4\n\n \n  \n",
    "neither, crlf": "2 5 4\r\n\r\n \r\n",
    "last row is empty": "2 5 4\n1 0:1\n\n",
    "blank lines at the end": "1 5 4\n1 0:1\n\n\r\n\n",
    "many spaces": "1 5 4\n1  0:1   2:2 \t 3:3 \n",
    "signs and exponents": "1 9 4\n1 0:+1 1:-.5 2:1e-3 3:2.5E+2 4:1.e2 5:-0 6:0 7:1e-60 8:3e38\n",
    "many digits": "1 9 4\n1 0:0.1234567890123456789 1:12345678901234567890123 2:0.00000000001\n",
    "leading zeros": "1 9 4\n001 0007:00.25\n",
    "no rows": "0 5 4\n",
    "no rows, blank lines": "0 5 4\n\n\n",
    "same feature in two rows": "2 5 4\n1 2:1\n1 2:1\n",
}


@pytest.mark.parametrize("chunk_bytes", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize("text", HAND_WRITTEN.values(), ids=HAND_WRITTEN)
def test_hand_written_files_are_read_as_the_naive_parser_reads_them(tmp_path, text, chunk_bytes):
    naive_rows.parse(text.encode())  # these are all valid
    assert_agrees(tmp_path / "data.txt", text, chunk_bytes=chunk_bytes)


ERRORS = {
    "empty file": ("", 1, "the file is empty"),
    "no header": ("\n1 1:1\n", 1, "no header"),
    "words in the header": ("1 x 4\n1 1:1\n", 1, "'1 x 4' is not 'rows features labels'"),
    "two counts": ("1 5\n1 1:1\n", 1, "'1 5' is not"),
    "negative count": ("1 -5 4\n", 1, "'1 -5 4' is not"),
    "a row for a header": ("1 2:3 4:5\n", 1, "is not 'rows features labels'"),
    "huge count": ("1 5 4000000000\n1 1:1\n", 1, "4000000000 labels, more than 2147483647"),
    "too few rows": ("3 5 4\n1 1:1\n2 1:1\n", 1, "header has 3 rows, but the file has 2"),
    "too many rows": ("1 5 4\n1 1:1\n2 1:1\n", 3, "row 2, but the header has 1"),
    "too many after blank": ("1 5 4\n1 1:1\n\n\n2 1:1\n", 5, "row 2, but the header has 1"),
    "a space is a row": ("1 5 4\n1 1:1\n \n", 3, "row 2, but the header has 1"),
    "label in words": ("2 5 4\n1 1:1\nx 1:1\n", 3, "malformed labels 'x'"),
    "label list ends in a comma": ("1 5 4\n1,2, 1:1\n", 2, "malformed labels '1,2,'"),
    "line ends in a comma": ("1 5 4\n1,2,\n", 2, "malformed labels '1,2,'"),
    "row without labels or space": ("1 5 4\n1:1 2:1\n", 2, "malformed labels '1:1'"),
    "label above": ("2 5 4\n1 1:1\n0,4 1:1\n", 3, r"label 4 is not in \[0, 4\)"),
    "label negative": ("1 5 4\n-1 1:1\n", 2, r"label -1 is not in \[0, 4\)"),
    "label enormous": ("1 5 4\n99999999999999999999999 1:1\n", 2, r"label 9+ is not in \[0, 4\)"),
    "feature above": ("1 5 4\n1 0:1 5:1\n", 2, r"feature 5 is not in \[0, 5\)"),
    "feature negative": ("1 5 4\n1 -2:1\n", 2, r"feature -2 is not in \[0, 5\)"),
    "feature without value": ("1 5 4\n1 2:\n", 2, "malformed feature '2:'"),
    "feature without colon": ("1 5 4\n1 2:1 3\n", 2, "malformed feature '3'"),
    "feature in words": ("1 5 4\n1 a:1\n", 2, "malformed feature 'a:1'"),
    "two colons": ("1 5 4\n1 2:1:1\n", 2, "malformed feature '2:1:1'"),
    "two points": ("1 5 4\n1 2:1.1.1\n", 2, "malformed feature '2:1.1.1'"),
    "only a point": ("1 5 4\n1 2:.\n", 2, "malformed feature '2:.'"),
    "exponent without digits": ("1 5 4\n1 2:1e\n", 2, "malformed feature '2:1e'"),
    "stray carriage return": ("1 5 4\n1 2:1\r 3:1\n", 2, "malformed feature"),
    "byte above 127": ("1 5 4\n1 2:1 \u00e9:1\n", 2, "malformed feature '\u00e9:1'"),
    "nan": ("1 5 4\n1 2:nan\n", 2, "value nan of feature 2 is not a finite float32"),
    "infinite": ("2 5 4\n1 2:1\n1 2:-inf 3:1\n", 3, "value -inf of feature 2 is not a finite"),
    "too large": ("1 5 4\n1 2:1e39\n", 2, "value 1e39 of feature 2 is not a finite float32"),
    "at the limit": ("1 5 4\n1 2:3.4028235677973366e38\n", 2, "is not a finite float32"),
    "too large by far": ("1 5 4\n1 2:1e999999999999\n", 2, "is not a finite float32"),
    "feature twice": ("1 5 4\n1 2:1 0:1 2:1\n", 2, "feature 2 occurs more than once"),
    "label twice": ("1 5 4\n1,3,1 2:1\n", 2, "label 1 occurs more than once"),
}


@pytest.mark.parametrize("chunk_bytes", [3, 1 << 20])
@pytest.mark.parametrize(("text", "line", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_name_the_line_and_the_value(tmp_path, text, line, message, chunk_bytes):
    path = tmp_path / "data.txt"
    path.write_bytes(text.encode())
    with pytest.raises(DataError, match=rf"^{re.escape(str(path))}:{line}: .*{message}"):
        read(path, chunk_bytes=chunk_bytes)


@pytest.mark.parametrize("chunk_bytes", [1, 5, 1 << 20])
def test_lenient_reading_leaves_bad_lines_out(tmp_path, chunk_bytes):
    text = "6 5 4\n1 0:1\nx 1:1\n1,1 0:1\n1 3:1 3:1\n\n2,1 2:nan\n"
    path = tmp_path / "data.txt"
    path.write_text(text)
    expected = [([1], [(0, 1.0)]), ([], [])], 4
    assert read(path, lenient=True, chunk_bytes=chunk_bytes) == expected
    assert naive_rows.parse(text.encode(), lenient=True) == expected


def test_lenient_reading_still_counts_lines(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("3 5 4\nx\n1 0:1\n")
    with pytest.raises(DataError, match=r":1: header has 3 rows, but the file has 2"):
        read(path, lenient=True)
    path.write_text("1 5 4\nx\n1 0:1\n")
    with pytest.raises(DataError, match=r":3: row 2, but the header has 1"):
        read(path, lenient=True)


numbers = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(10**6), 10**6).map(lambda i: f"{i / 10**5:.5f}"),
    st.builds("{}{}.{}e{}".format, st.sampled_from(["", "+", "-"]), *[st.integers(0, 999)] * 2,
              st.integers(-20, 20)),
)  # fmt: skip


@st.composite
def files(draw):
    """The text of a valid file."""
    num_features = draw(st.integers(1, 50))
    num_labels = draw(st.integers(1, 50))
    end = draw(st.sampled_from(["\n", "\r\n"]))
    lines = []
    for _ in range(draw(st.integers(0, 8))):
        labels = draw(st.lists(st.integers(0, num_labels - 1), unique=True, max_size=5))
        features = draw(st.lists(st.integers(0, num_features - 1), unique=True, max_size=5))
        pairs = [f" {feature}:{draw(numbers)}" for feature in features]
        lines.append(",".join(map(str, labels)) + "".join(pairs))
    text = end.join([f"{len(lines)} {num_features} {num_labels}", *lines])
    # An empty last row without a line end would be no row at all.
    return text + (end if not lines or not lines[-1] else draw(st.sampled_from([end, ""])))


@fuzzed(150)
@given(files(), st.sampled_from([1, 4, 16, 1 << 20]))
def test_what_is_written_is_read(text, chunk_bytes):
    naive_rows.parse(text.encode())
    with tempfile.TemporaryDirectory() as folder:
        assert_agrees(Path(folder, "data.txt"), text, chunk_bytes=chunk_bytes)


@fuzzed(300)
@given(files(), st.data())
def test_damaged_files_fail_in_the_line_in_which_the_naive_parser_fails(text, data):
    start = text.index("\n") + 1
    at = data.draw(st.integers(start, len(text)))
    cut = data.draw(st.integers(0, 2))
    insert = data.draw(st.text("0123456789,:.-+e \t\r\nx", max_size=3))
    text = text[:at] + insert + text[at + cut :]
    lenient = data.draw(st.booleans())
    chunk_bytes = data.draw(st.sampled_from([1, 16, 1 << 20]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data.txt")
        assert_agrees(path, text, lenient=lenient, chunk_bytes=chunk_bytes)


def test_values_are_the_nearest_float32(tmp_path):
    rng = np.random.default_rng(0)
    count = 20_000 if COMPILED else 500
    words = [
        f"{m}e{e}"
        for m, e in zip(rng.integers(1, 10**15, count), rng.integers(-22, 23, count), strict=True)
    ]
    words += [repr(x) for x in rng.standard_normal(count).tolist()]
    path = tmp_path / "data.txt"
    path.write_text(f"1 {len(words)} 1\n0 " + " ".join(f"{i}:{w}" for i, w in enumerate(words)))
    (block,) = read_text_blocks(path)
    expected = np.array([float(word) for word in words]).astype(np.float32)
    np.testing.assert_array_equal(block.features.values, expected)


def test_a_line_longer_than_many_chunks(tmp_path):
    line = "0 " + " ".join(f"{i}:{i}" for i in range(2000))
    assert_agrees(tmp_path / "data.txt", f"3 2000 1\n{line}\n0 1:1\n{line}", chunk_bytes=100)


def make_long_line(columns):
    pairs = " ".join(f"{column}:1" for column in columns)
    return f"{','.join(map(str, columns))} {pairs}\n"


@pytest.mark.parametrize("lenient", [False, True])
def test_columns_that_occur_twice_in_long_rows(tmp_path, lenient):
    count = 3 * TABLE_SIZE if COMPILED else TABLE_SIZE
    columns = np.unique(np.random.default_rng(0).integers(0, 2**31 - 1, count)).tolist()
    good = make_long_line(columns)
    for bad in (good[:-1] + f" {columns[0]}:2\n", f"{columns[-1]}," + good):
        text = f"3 2147483647 2147483647\n{good}{bad}{good}"
        assert_agrees(tmp_path / "data.txt", text, lenient=lenient)


def test_columns_that_fall_on_one_place(tmp_path):
    # Multiples of a power of two, which a poor hash would not tell apart.
    columns = [place << 18 for place in range(1 << 13 if COMPILED else 1 << 8)]
    assert_agrees(tmp_path / "data.txt", f"1 2147483647 2147483647\n{make_long_line(columns)}")


@pytest.mark.parametrize("name", SETS)
def test_real_rows_are_read_as_the_naive_parser_reads_them(tmp_path, name):
    with (DATA / name / "test.txt").open() as file:
        _, num_features, num_labels = file.readline().split()
        lines = [next(file) for _ in range(300 if COMPILED else 20)]
    text = "".join([f"{len(lines)} {num_features} {num_labels}\n", *lines])
    assert_agrees(tmp_path / "data.txt", text, chunk_bytes=10_000)


def test_header_is_read_alone(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("10 20 30 \nnothing of this is read")
    assert read_header(path) == (10, 20, 30)
