"""Files without a header: counted columns, comments, other first numbers."""

import gzip
import re
import tempfile
from pathlib import Path

import pytest
from helpers import naive_rows
from helpers.damage import fuzzed
from helpers.naive_rows import assert_agrees, read, to_lists
from hypothesis import given
from hypothesis import strategies as st

from slide.data import DataError, xmc
from slide.data.row_files import (
    VARIANTS,
    XMC,
    Sizes,
    Variant,
    count_rows,
    read_text_blocks,
)

SVMLIGHT = VARIANTS["svmlight"]
TRAIN = "# made by hand\n0,2 1:0.5 4:2\n 3:1  # no labels\n\n1 2:-1\n"
TEST = "3 1:1\n0 7:1\n"

HAND_WRITTEN = {
    "plain": "1,3 1:0.5 4:2\n0 2:1\n",
    "no final newline": "1 1:1\n2 3:4",
    "crlf": "1 1:1\r\n\r\n 3:4\r\n",
    "no labels": " 1:1\n 2:1\n",
    "no features": "1,2\n1,2 \n",
    "neither": " \n  \n",
    "empty": "",
    "empty lines": "\n\n1 1:1\n\n\n",
    "comments": "#\n# x\n#1 1:1\n1 1:1 # y\n1 2:1\t#z 3:x\n2 #\n #\n1 1:1 #",
    "comments after white space": "  # x\n\t#\n1 1:1\n \t # y\r\n \n \t\n #",
    "comments, crlf": "# x\r\n1 1:1 # y\r\n #\r\n",
    "a comment after many rows": "1 1:1\n" * 20 + "# end",
    "large numbers": "2147483646 2147483647:1\n",
}


@pytest.mark.parametrize("chunk_bytes", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("text", HAND_WRITTEN.values(), ids=HAND_WRITTEN)
def test_hand_written_files_are_read_as_the_naive_parser_reads_them(tmp_path, text, chunk_bytes):
    rows, _ = naive_rows.parse(text.encode(), SVMLIGHT)  # these are all valid
    assert_agrees(tmp_path / "data.txt", text, SVMLIGHT, chunk_bytes=chunk_bytes)
    assert count_rows(tmp_path / "data.txt") == len(rows)


def test_lines_that_are_no_rows(tmp_path):
    """White space alone is an empty row; a comment after it is none."""
    (tmp_path / "a").write_bytes(b"  # x\n1 1:1\n\t#\r\n\n\r\n \n1 #\n")
    assert read(tmp_path / "a", SVMLIGHT) == ([([1], [(0, 1.0)]), ([], []), ([1], [])], 0)
    assert count_rows(tmp_path / "a") == 3


@pytest.mark.parametrize("lenient", [False, True])
def test_compressed_files_are_named_as_such(tmp_path, lenient):
    """Lenient reading would leave out all of their lines without a word."""
    path = tmp_path / "data.txt"
    path.write_bytes(gzip.compress(b"1 1:1\n" * 1000))
    with pytest.raises(DataError, match=rf"{path} is compressed by gzip; unpack it first"):
        read(path, SVMLIGHT, lenient=lenient)


def test_numbers_begin_where_they_are_said_to(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("5,7 12:1 10:2\n")
    assert read(path, Variant(False, 10, 5)) == ([([0, 2], [(2, 1.0), (0, 2.0)])], 0)
    with pytest.raises(DataError, match=rf"{path}:1: feature 10 is not in \[11, 2147483658\)"):
        read(path, Variant(False, 11, 5))
    with pytest.raises(DataError, match=rf"{path}:1: label 5 is not in \[6, 2147483653\)"):
        read(path, Variant(False, 10, 6))


ERRORS = {
    "a header": ("2 5 4\n1 1:1\n", 1, "malformed feature '5'"),
    "feature 0": ("1 1:1\n1 0:1\n", 2, r"feature 0 is not in \[1, 6\)"),
    "feature above": ("# x\n\n1 5:1 6:1\n", 3, r"feature 6 is not in \[1, 6\)"),
    "label above": ("1 1:1\n\n4 1:1\n", 3, r"label 4 is not in \[0, 4\)"),
    "feature twice": ("1 1:1 2:1 1:1\n", 1, "feature 1 occurs more than once"),
    "comment without a space": ("1 1:1# x\n", 1, "malformed feature '1:1#'"),
    "comment in the labels": ("1#,2 1:1\n", 1, "malformed labels '1#,2'"),
    "query number": ("1 qid:3 1:1\n", 1, "malformed feature 'qid:3'"),
    "number for a label": ("0.5 1:1\n", 1, "malformed labels '0.5'"),
    "web page": ("<!DOCTYPE html>\n", 1, "malformed labels '<!DOCTYPE'"),
}


@pytest.mark.parametrize("chunk_bytes", [3, 1 << 20])
@pytest.mark.parametrize(("text", "line", "message"), ERRORS.values(), ids=ERRORS)
def test_errors_name_the_line_and_the_value(tmp_path, text, line, message, chunk_bytes):
    path = tmp_path / "data.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=rf"^{re.escape(str(path))}:{line}: .*{message}"):
        read(path, SVMLIGHT, sizes=Sizes(None, 5, 4), chunk_bytes=chunk_bytes)


def test_numbers_beyond_int32_are_errors(tmp_path):
    for text in ("2147483647 1:1\n", "1 2147483648:1\n", "1 99999999999999999999:1\n"):
        with pytest.raises(naive_rows.BadLine):
            naive_rows.parse(text.encode(), SVMLIGHT)
        assert_agrees(tmp_path / "data.txt", text, SVMLIGHT)


@fuzzed(300)
@given(
    st.lists(st.text("0123 ,:.-#\t\rx", max_size=20), max_size=6),
    st.sampled_from([1, 4, 1 << 20]),
    st.booleans(),
    st.sampled_from([Sizes(), Sizes(2, 13, 13)]),
)
def test_any_lines(lines, chunk_bytes, lenient, sizes):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data.txt")
        options = {"chunk_bytes": chunk_bytes, "lenient": lenient, "sizes": sizes}
        assert_agrees(path, "\n".join(lines), SVMLIGHT, **options)
        assert_agrees(path, "\n".join(lines), Variant(False, 0, 2), **options)


@pytest.fixture
def open_set(tmp_path):
    root = tmp_path / "files"
    root.mkdir()
    (root / "train.txt").write_text(TRAIN)
    (root / "test.txt").write_text(TEST)

    def open_set(**options):
        places = {"name": "tiny", "root": root, "cache": tmp_path / "cache"}
        return xmc(**{"format": "svmlight", **places, **options})

    return open_set


def test_columns_are_counted_in_both_files(open_set):
    for _ in range(2):  # the second time from the cache
        data = open_set()
        assert (data.num_features, data.num_labels) == (7, 4)
        assert to_lists(data.train.features, data.train.labels) == [
            ([0, 2], [(0, 0.5), (3, 2.0)]),
            ([], [(2, 1.0)]),
            ([1], [(1, -1.0)]),
        ]
        assert to_lists(data.test.features, data.test.labels) == [
            ([3], [(0, 1.0)]),
            ([0], [(6, 1.0)]),
        ]
        assert data.train.num_features == data.test.num_features == 7
        assert data.train.num_labels == data.test.num_labels == 4


def test_counts_that_are_given_hold(open_set, tmp_path):
    data = open_set(num_features=10)
    assert (data.num_features, data.num_labels) == (10, 4)
    data = open_set(num_features=7, num_labels=20, train_samples=3, test_samples=2)
    assert (data.num_features, data.num_labels) == (7, 20)
    with pytest.raises(DataError, match=r"test.txt:2: feature 7 is not in \[1, 7\)"):
        open_set(num_features=6)
    with pytest.raises(DataError, match=r"test.txt:1: label 3 is not in \[0, 3\)"):
        open_set(num_labels=3)
    for _ in range(2):
        with pytest.raises(DataError, match=r"train.txt: file has 3 rows, but 4 were expected"):
            open_set(train_samples=4)


def test_lines_that_are_left_out_count_for_nothing(open_set, tmp_path):
    with (tmp_path / "files/train.txt").open("a") as file:
        file.write("99 99:1 x\n50 50:1 50:1\n")
    data = open_set(lenient=True, train_samples=5)
    assert len(data.train) == 3
    assert (data.num_features, data.num_labels) == (7, 4)
    with pytest.raises(DataError, match=r"train.txt:6: malformed feature 'x'"):
        open_set()


def test_other_first_numbers_are_another_data_set(open_set):
    assert open_set().num_features == 7
    assert open_set(first_feature=0).num_features == 8
    with pytest.raises(DataError, match=r"train.txt:2: label 0 is not in \[1, "):
        open_set(first_label=1)
    assert open_set(first_feature=1).num_features == 7


def test_an_empty_set(open_set, tmp_path):
    for name in ("train", "test"):
        (tmp_path / f"files/{name}.txt").write_text("")
    data = open_set()
    assert (len(data.train), data.num_features, data.num_labels) == (0, 0, 0)


@pytest.mark.parametrize(
    ("first", "line", "said"),
    [
        (1, "0 0:1 2:1", r"feature 0 is not in \[1, 6\); does this file count features from 0\?$"),
        (0, "0 5:1", r"feature 5 is not in \[0, 5\); does this file count features from 1\?$"),
        (0, "0 6:1", r"feature 6 is not in \[0, 5\)$"),
        (1, "0 6:1", r"feature 6 is not in \[1, 6\)$"),
    ],
)
def test_files_that_may_count_otherwise(tmp_path, first, line, said):
    (tmp_path / "rows").write_text(line + "\n")
    variant = SVMLIGHT._replace(first_feature=first)
    with pytest.raises(DataError, match=said):
        list(read_text_blocks(tmp_path / "rows", variant, Sizes(features=5, labels=9)))


def test_a_compressed_file_is_named(tmp_path):
    (tmp_path / "rows.gz").write_bytes(gzip.compress(b"1 5 9\n0 1:1\n"))
    with pytest.raises(DataError, match=r"rows.gz is compressed by gzip; unpack it first"):
        list(read_text_blocks(tmp_path / "rows.gz", XMC))
