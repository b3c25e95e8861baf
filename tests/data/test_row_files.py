"""Files of rows: text of both variants, read and written, and pairs of matrices."""

import gzip
import io
import os
import re

import numpy as np
import pytest
from helpers import naive_rows
from helpers.caches import opening
from helpers.matrices import make_csr
from helpers.naive_rows import assert_agrees, read, to_lists
from helpers.splits import assert_same_rows
from scipy import sparse

from slide.data import DataError, Split, synthetic, write_xmc, xmc
from slide.data import row_files as write_module
from slide.data.row_files import (
    VARIANTS,
    XMC,
    Sizes,
    Variant,
    count_rows,
    read_npz_blocks,
    read_npz_sizes,
    read_text_blocks,
)
from slide.ops.text_rows import TABLE_SIZE
from slide.sparse import CSR, Pattern

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
SVMLIGHT = VARIANTS["svmlight"]

HAND_WRITTEN = {
    "crlf": "2 5 4\r\n1 0:1\r\n 3:4\r\n",
    "neither": "3 5 4\n\n \n  \n",
    "neither, crlf": "2 5 4\r\n\r\n \r\n",
    "last row is empty": "2 5 4\n1 0:1\n\n",
    "blank lines at the end": "1 5 4\n1 0:1\n\n\r\n\n",
    "signs and exponents": "1 9 4\n1 0:+1 1:-.5 2:1e-3 3:2.5E+2 4:1.e2 5:-0 6:0 7:1e-60 8:3e38\n",
    "many digits": "1 9 4\n1 0:0.1234567890123456789 1:12345678901234567890123 2:0.00000000001\n",
    "leading zeros": "1 9 4\n001 0007:00.25\n",
    "no rows, blank lines": "0 5 4\n\n\n",
}


HAND_WRITTEN_LINES = {
    "no final newline": "1 1:1\n2 3:4",
    "crlf": "1 1:1\r\n\r\n 3:4\r\n",
    "no features": "1,2\n1,2 \n",
    "neither": " \n  \n",
    "empty": "",
    "empty lines": "\n\n1 1:1\n\n\n",
    "comments": "#\n# x\n#1 1:1\n1 1:1 # y\n1 2:1\t#z 3:x\n2 #\n #\n1 1:1 #",
    "comments after white space": "  # x\n\t#\n1 1:1\n \t # y\r\n \n \t\n #",
    "a comment after many rows": "1 1:1\n" * 20 + "# end",
    "large numbers": "2147483646 2147483647:1\n",
}


VALID = [
    *((XMC, text) for text in HAND_WRITTEN.values()),
    *((SVMLIGHT, text) for text in HAND_WRITTEN_LINES.values()),
]


@pytest.mark.parametrize("chunk_bytes", [1, 7, 1 << 20])
@pytest.mark.parametrize(("variant", "text"), VALID, ids=[*HAND_WRITTEN, *HAND_WRITTEN_LINES])
def test_hand_written_files_are_read_as_the_naive_parser_reads_them(
    tmp_path, variant, text, chunk_bytes
):
    rows, _ = naive_rows.parse(text.encode(), variant)  # These are all valid.
    assert_agrees(tmp_path / "data.txt", text, variant, chunk_bytes=chunk_bytes)
    if variant == SVMLIGHT:
        assert count_rows(tmp_path / "data.txt") == len(rows)


ERRORS = {
    "empty file": ("", 1, "the file is empty"),
    "no header": ("\n1 1:1\n", 1, "no header"),
    "two counts": ("1 5\n1 1:1\n", 1, "'1 5' is not"),
    "huge count": ("1 5 4000000000\n1 1:1\n", 1, "4000000000 labels, more than 2147483647"),
    "too few rows": ("3 5 4\n1 1:1\n2 1:1\n", 1, "header has 3 rows, but the file has 2"),
    "too many rows": ("1 5 4\n1 1:1\n2 1:1\n", 3, "row 2, but the header has 1"),
    "too many after blank": ("1 5 4\n1 1:1\n\n\n2 1:1\n", 5, "row 2, but the header has 1"),
    "label in words": ("2 5 4\n1 1:1\nx 1:1\n", 3, "malformed labels 'x'"),
    "line ends in a comma": ("1 5 4\n1,2,\n", 2, "malformed labels '1,2,'"),
    "label above": ("2 5 4\n1 1:1\n0,4 1:1\n", 3, r"label 4 is not in \[0, 4\)"),
    "feature above": ("1 5 4\n1 0:1 5:1\n", 2, r"feature 5 is not in \[0, 5\)"),
    "feature without value": ("1 5 4\n1 2:\n", 2, "malformed feature '2:'"),
    "two points": ("1 5 4\n1 2:1.1.1\n", 2, "malformed feature '2:1.1.1'"),
    "byte above 127": ("1 5 4\n1 2:1 \u00e9:1\n", 2, "malformed feature '\u00e9:1'"),
    "infinite": ("2 5 4\n1 2:1\n1 2:-inf 3:1\n", 3, "value -inf of feature 2 is not a finite"),
    "at the limit": ("1 5 4\n1 2:3.4028235677973366e38\n", 2, "is not a finite float32"),
    "feature twice": ("1 5 4\n1 2:1 0:1 2:1\n", 2, "feature 2 occurs more than once"),
    "label twice": ("1 5 4\n1,3,1 2:1\n", 2, "label 1 occurs more than once"),
}


ERRORS_SVMLIGHT = {
    "a header": ("2 5 4\n1 1:1\n", 1, "malformed feature '5'"),
    "feature 0": ("1 1:1\n1 0:1\n", 2, r"feature 0 is not in \[1, 6\)"),
    "feature above": ("# x\n\n1 5:1 6:1\n", 3, r"feature 6 is not in \[1, 6\)"),
    "label above": ("1 1:1\n\n4 1:1\n", 3, r"label 4 is not in \[0, 4\)"),
    "feature twice": ("1 1:1 2:1 1:1\n", 1, "feature 1 occurs more than once"),
    "comment without a space": ("1 1:1# x\n", 1, "malformed feature '1:1#'"),
    "query number": ("1 qid:3 1:1\n", 1, "malformed feature 'qid:3'"),
}


WRONG = [
    *((XMC, *case) for case in ERRORS.values()),
    *((SVMLIGHT, *case) for case in ERRORS_SVMLIGHT.values()),
]


@pytest.mark.parametrize("chunk_bytes", [3, 1 << 20])
@pytest.mark.parametrize(("variant", "text", "line", "message"), WRONG)
def test_errors_name_the_line_and_the_value(tmp_path, variant, text, line, message, chunk_bytes):
    path = tmp_path / "data.txt"
    path.write_bytes(text.encode())
    with pytest.raises(DataError, match=rf"^{re.escape(str(path))}:{line}: .*{message}"):
        read(path, variant, sizes=Sizes(None, 5, 4), chunk_bytes=chunk_bytes)


@pytest.mark.parametrize("chunk_bytes", [1, 5, 1 << 20])
def test_lenient_reading_leaves_bad_lines_out(tmp_path, chunk_bytes):
    text = "6 5 4\n1 0:1\nx 1:1\n1,1 0:1\n1 3:1 3:1\n\n2,1 2:nan\n"
    path = tmp_path / "data.txt"
    path.write_text(text)
    expected = [([1], [(0, 1.0)]), ([], [])], 4
    assert read(path, lenient=True, chunk_bytes=chunk_bytes) == expected
    assert naive_rows.parse(text.encode(), lenient=True) == expected
    for text, said in (
        ("3 5 4\nx\n1 0:1\n", ":1: header has 3 rows, but the file has 2"),
        ("1 5 4\nx\n1 0:1\n", ":3: row 2, but the header has 1"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=said):
            read(path, lenient=True)


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


def test_long_lines_and_columns_that_fall_on_one_place(tmp_path):
    line = "0 " + " ".join(f"{i}:{i}" for i in range(2000))
    assert_agrees(tmp_path / "data.txt", f"3 2000 1\n{line}\n0 1:1\n{line}", chunk_bytes=100)
    # Multiples of a power of two, which a poor hash would not tell apart.
    columns = [place << 18 for place in range(1 << 13 if COMPILED else 1 << 8)]
    assert_agrees(tmp_path / "data.txt", f"1 2147483647 2147483647\n{make_long_line(columns)}")


# Files without a header: counted columns, comments, other first numbers.


TRAIN = "# made by hand\n0,2 1:0.5 4:2\n 3:1  # no labels\n\n1 2:-1\n"
TEST = "3 1:1\n0 7:1\n"


def test_compressed_files_are_named_as_such(tmp_path):
    """Lenient reading would leave out all of their lines without a word."""
    path = tmp_path / "data.txt"
    path.write_bytes(gzip.compress(b"1 5 9\n0 1:1\n" * 1000))
    with pytest.raises(DataError, match=rf"{path} is compressed by gzip; unpack it first"):
        read(path, lenient=True)


def test_numbers_begin_where_they_are_said_to(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("5,7 12:1 10:2\n")
    assert read(path, Variant(False, 10, 5)) == ([([0, 2], [(2, 1.0), (0, 2.0)])], 0)
    with pytest.raises(DataError, match=rf"{path}:1: feature 10 is not in \[11, 2147483658\)"):
        read(path, Variant(False, 11, 5))
    with pytest.raises(DataError, match=rf"{path}:1: label 5 is not in \[6, 2147483653\)"):
        read(path, Variant(False, 10, 6))


@pytest.fixture
def open_set(tmp_path):
    root = tmp_path / "files"
    root.mkdir()
    (root / "train.txt").write_text(TRAIN)
    (root / "test.txt").write_text(TEST)
    return opening(tmp_path, format="svmlight")


def sizes_of(data):
    assert data.train.num_features == data.test.num_features == data.num_features
    assert data.train.num_labels == data.test.num_labels == data.num_labels
    return data.num_features, data.num_labels


def test_columns_are_counted_in_both_files_unless_they_are_given(open_set):
    for _ in range(2):  # The second time from the cache.
        data = open_set()
        assert sizes_of(data) == (7, 4)
        assert to_lists(data.train.features, data.train.labels) == [
            ([0, 2], [(0, 0.5), (3, 2.0)]),
            ([], [(2, 1.0)]),
            ([1], [(1, -1.0)]),
        ]
    assert sizes_of(open_set(num_features=10)) == (10, 4)
    assert sizes_of(open_set(num_labels=20, train_samples=3, test_samples=2)) == (7, 20)
    assert sizes_of(open_set(first_feature=0)) == (8, 4)
    for options, message in (
        ({"num_features": 6}, r"test.txt:2: feature 7 is not in \[1, 7\)"),
        ({"num_labels": 3}, r"test.txt:1: label 3 is not in \[0, 3\)"),
        ({"train_samples": 4}, r"train.txt: file has 3 rows, but 4 were expected"),
        ({"first_label": 1}, r"train.txt:2: label 0 is not in \[1, "),
    ):
        with pytest.raises(DataError, match=message):
            open_set(**options)


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


# Rows that are written as text are read back bit by bit.


TINY, SMALLEST = np.finfo(np.float32).tiny, np.finfo(np.float32).smallest_subnormal
EXTREMES = [0.0, -0.0, TINY, -TINY, SMALLEST, -SMALLEST, np.finfo(np.float32).max, 1.0, -1.0]
FORMATS = [("xmc", None, None), ("svmlight", None, None), ("svmlight", 0, 7), ("xmc", 2, 3)]


def make_split(rows, num_features, num_labels):
    """A split from a list of (labels, {feature: value})."""
    features, labels = Pattern.from_lists([list(r[1]) for r in rows]), [r[0] for r in rows]
    values = np.array([value for row in rows for value in row[1].values()], np.float32)
    return Split(CSR(*features, values), Pattern.from_lists(labels), num_features, num_labels)


def test_values_of_all_sizes_are_read_back_equal(tmp_path):
    rng = np.random.default_rng(0)
    count = 200_000 if COMPILED else 300
    bits = [rng.integers(0, 2**32, count, np.uint32)]
    # Around powers of two the neighbours are not equally far; around powers of ten digits change.
    powers = np.concatenate([2.0 ** np.arange(-149, 128), 10.0 ** np.arange(-45, 39)])
    around = powers.astype(np.float32).view(np.uint32)[:, None] + np.arange(-2, 3)
    bits.append(around.ravel().astype(np.uint32) if COMPILED else around[::20].ravel())
    values = np.concatenate(bits).astype(np.uint32).view(np.float32)
    values = np.concatenate([values[np.isfinite(values)], np.array(EXTREMES, np.float32)])
    features = CSR(np.array([0, len(values)]), np.arange(len(values), dtype=np.int32), values)
    split = Split(features, Pattern.from_lists([[]]), len(values), 1)
    path = tmp_path / "data.txt"
    write_xmc(path, split)
    (block,) = read_text_blocks(path)
    assert_same_rows(block, split)
    words = path.read_text().split("\n")[1].split()
    exact = np.array([float(word.partition(":")[2]) for word in words]).astype(np.float32)
    assert exact.tobytes() == values.tobytes(), "another reader does not read them"


def test_files_are_as_short_as_a_person_would_write_them(tmp_path):
    numbers = [0.5, 1, -2, 0.1811, 100000, 1e-5, 1e-7, 0.1, 1e30, -0.0, 1e-30, 12.25]
    rows = [([3, 0], dict(enumerate(numbers))), ([], {}), ([], {19: 1 / 3}), ([2], {})]
    path = tmp_path / "data.txt"
    write_xmc(path, make_split(rows, 20, 4))
    assert path.read_text() == (
        "4 20 4\n"
        "3,0 0:0.5 1:1 2:-2 3:0.1811 4:100000 5:1e-05 6:1e-07 7:0.1 8:1e+30 9:-0 10:1e-30"
        " 11:12.25\n"
        " \n"
        " 19:0.33333334\n"
        "2\n"
    )
    write_xmc(path, make_split(rows[1:], 20, 4), format="svmlight", first_label=1)
    assert path.read_text() == " \n 20:0.33333334\n3\n"


@pytest.mark.parametrize(("format", "first_feature", "first_label"), FORMATS)
def test_generated_sets_are_read_back_equal(
    tmp_path, monkeypatch, format, first_feature, first_label
):
    monkeypatch.setattr(write_module, "FORMATTED_ENTRIES", 500)
    sizes = {"num_features": 300, "num_labels": 200, "train_samples": 400, "test_samples": 50}
    data = synthetic(cache=tmp_path / "cache", **sizes)
    variant = {"format": format, "first_feature": first_feature, "first_label": first_label}
    write_xmc(tmp_path / "train.txt", data.train, **variant)
    write_xmc(str(tmp_path / "test.txt"), data.test, **variant)
    found = xmc(name="written", root=tmp_path, cache=tmp_path / "cache", **sizes, **variant)
    assert_same_rows(found, data)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (([], {2: 1.0, 3: np.nan}), "row 1: value nan of feature 3 is not finite"),
        (([], {2: -np.inf}), "row 1: value -inf of feature 2 is not finite"),
        (([], {5: 1.0}), r"row 1: feature 5 is not in \[0, 5\)"),
        (([0, -1], {}), r"row 1: label -1 is not in \[0, 4\)"),
    ],
)
def test_rows_that_cannot_be_read_are_not_written(tmp_path, row, message):
    path = tmp_path / "data.txt"
    path.write_text("old")
    with pytest.raises(ValueError, match=message):
        write_xmc(path, make_split([([1], {0: 1.0}), row], 5, 4))
    assert path.read_text() == "old"
    assert [other.name for other in tmp_path.iterdir()] == ["data.txt"]


def test_options_are_checked(tmp_path):
    split = make_split([], 5, 4)
    with pytest.raises(ValueError, match="format must be one of xmc, svmlight, not 'npz'"):
        write_xmc(tmp_path / "data.txt", split, format="npz")
    with pytest.raises(ValueError, match="first_label must be a whole number of at least 0"):
        write_xmc(tmp_path / "data.txt", split, first_label=-1)
    with pytest.raises(OSError, match=r"cannot write .*nowhere"):
        write_xmc(tmp_path / "nowhere/data.txt", split)


# Pairs of SciPy matrices: all kinds, and files that are not as they should be.


KINDS = ["csr", "csc", "coo", "bsr", "dia"]
FILES = {
    "train_file": "X.trn.npz",
    "train_labels_file": "Y.trn.npz",
    "test_file": "X.tst.npz",
    "test_labels_file": "Y.tst.npz",
}


def save(path, matrix):
    """Also without the suffix that numpy would add."""
    with open(path, "wb") as file:
        sparse.save_npz(file, matrix)


def save_arrays(path, **arrays):
    """A file that says what SciPy would not write."""
    with open(path, "wb") as file:
        np.savez(file, **arrays)


@pytest.fixture
def paths(tmp_path):
    """Two rows of four features and three labels."""
    paths = tmp_path / "x.npz", tmp_path / "y.npz"
    save(paths[0], sparse.csr_matrix([[0.0, 1, 2, 0], [0, 0, 0, 3]]))
    save(paths[1], sparse.csr_matrix([[1.0, 0, 1], [0, 0, 0]]))
    return paths


def read_matrices(features, labels):
    """A list of (labels, pairs)."""
    (block,) = read_npz_blocks(features, labels)
    assert [a.dtype for a in block.features] == [np.int64, np.int32, np.float32]
    assert [a.dtype for a in block.labels] == [np.int64, np.int32]
    assert block.skipped == 0
    return to_lists(block.features, block.labels)


def assert_fails(paths, at, message):
    with pytest.raises(DataError, match=rf"^{re.escape(str(paths[at]))}: .*{message}"):
        read_matrices(*paths)


@pytest.mark.parametrize("kind", KINDS)
def test_any_kind_is_read(tmp_path, kind):
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((12, 8)) * (rng.random((12, 8)) < 0.3)
    flags = (rng.random((12, 6)) < 0.2).astype(int)
    assert (flags.any(1) == 0).any(), "no row without labels"
    paths = tmp_path / "x.npz", tmp_path / "y"
    save(paths[0], sparse.csr_array(dense).asformat(kind))
    save(paths[1], sparse.csr_matrix(flags).asformat(kind))
    assert read_npz_sizes(*paths) == (12, 8, 6)
    rows = read_matrices(*paths)
    for (labels, pairs), values, own in zip(rows, dense, flags, strict=True):
        found = dict(pairs)
        assert len(found) == len(pairs)
        assert [found.get(i, 0) for i in range(8)] == values.astype(np.float32).tolist()
        assert sorted(found) == np.flatnonzero(values).tolist()
        assert sorted(labels) == np.flatnonzero(own).tolist()


def test_entries_keep_their_order(tmp_path, paths):
    features = make_csr(np.random.default_rng(0), [5, 0, 9], 20)
    order = [features.indices.tolist(), features.values.tolist()]
    matrix = sparse.csr_matrix(features[::-1], shape=(3, 20))
    assert not matrix.has_sorted_indices
    save(paths[0], matrix)
    save(paths[1], sparse.csr_matrix((3, 3)))
    (block,) = read_npz_blocks(*paths)
    assert [block.features.indices.tolist(), block.features.values.tolist()] == order


def test_stored_zeros_are_neither_features_nor_labels(paths):
    for path, value in zip(paths, (2.0, 1.0), strict=True):
        values = [0.0, value, 0.0]
        save(path, sparse.csr_matrix((values, [1, 0, 2], [0, 1, 3]), shape=(2, 3)))
    assert read_matrices(*paths) == [([], []), ([0], [(0, 2.0)])]


@pytest.mark.parametrize("value", [-1, 0.5, 2, 1e-50, 1 + 1e-9])
def test_values_of_labels_are_zeros_and_ones(paths, value):
    """Every value but 0 was a label. In float32 the last two are 0 and 1."""
    save(paths[1], sparse.csr_array([[0, 1.0, 1], [0, 0, value]]))
    shown = re.escape(f"{float(value)} at (1, 2)")
    assert_fails(paths, 1, f"value {shown} is neither 0 nor 1: save matrix != 0 where each")


def test_values_that_are_not_finite_are_named(paths):
    for value, shown in ((np.nan, "nan"), (-np.inf, "-inf"), (1e39, r"1e\+39")):
        save(paths[0], sparse.csr_matrix([[0.0, 1], [0, value]]))
        assert_fails(paths, 0, rf"value {shown} at \(1, 1\) is not a finite float32")
    save(paths[0], sparse.csr_matrix([[1], [2j]]))
    assert_fails(paths, 0, "values are of type complex128, not real numbers")
    arrays = {"format": b"csr", "shape": [2, 2], "indices": [0, 1], "indptr": [0, 1, 2]}
    save_arrays(paths[0], **arrays, data=np.array(["1", "2"]))
    assert_fails(paths, 0, "values are of type <U1, not real numbers")


ONES, ROWS, COLUMNS = [1.0] * 4, [0, 1, 1, 1], [0, 1, 0, 1]
TWICE = {
    "coo": lambda: sparse.coo_matrix((ONES, (ROWS, COLUMNS)), shape=(2, 3)),
    "csr": lambda: sparse.csr_matrix((ONES, COLUMNS, [0, 1, 4]), shape=(2, 3)),
    "csc": lambda: sparse.csc_matrix((ONES, ROWS, [0, 2, 4, 4]), shape=(2, 3)),
    "bsr": lambda: sparse.bsr_matrix((np.ones((4, 1, 1)), COLUMNS, [0, 1, 4]), shape=(2, 3)),
}


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("kind", TWICE)
def test_entries_that_occur_twice_are_named(paths, at, kind):
    save(paths[at], TWICE[kind]())
    assert_fails(paths, at, r"\(1, 1\) has more than one entry")


@pytest.mark.parametrize("at", [0, 1])
def test_files_that_are_no_matrices(paths, at):
    broken = paths[at]
    whole = broken.read_bytes()
    with io.BytesIO() as buffer:
        np.save(buffer, np.eye(2))
        array = buffer.getvalue()
    for data in (b"", array, whole[:-40]):
        broken.write_bytes(data)
        assert_fails(paths, at, "cannot be read as a SciPy sparse matrix")
    save_arrays(broken, x=np.eye(2))
    assert_fails(paths, at, "cannot be read as a SciPy sparse matrix: KeyError")


def test_objects_are_not_unpickled(paths):
    class Trap:
        def __reduce__(self):
            return pytest.fail, ("unpickled",)

    trap = np.array([Trap(), Trap(), Trap()], object)
    for name in ("shape", "data", "format"):
        good = {"format": b"csr", "shape": (2, 4), "data": np.ones(3, "f4")}
        good |= {"indices": [1, 2, 3], "indptr": [0, 2, 3], name: trap}
        save_arrays(paths[0], **good)
        assert_fails(paths, 0, "cannot be read .*allow_pickle=False")


# What SciPy takes for a matrix, though it is none.
UNSOUND = {
    "column too large": {"indices": [1, 2, 4]},
    "pointers decrease": {"indptr": [0, 5, 3]},
    "pointers beyond the end": {"indptr": [0, 2, 4]},
    "pointers begin late": {"indptr": [1, 2, 3]},
    "too few pointers": {"indptr": [0, 3]},
    "too few columns": {"indices": [1, 2]},
    "shape of three": {"shape": [2, 2, 2]},
    "unknown kind": {"format": b"lol"},
    "kind of another": {"format": b"coo"},
    "two-dimensional values": {"data": np.ones((3, 1))},
    "broken columns": {"indices": [1.5, 2, 3]},
    "broken pointers": {"indptr": [0, 2.5, 3]},
}


@pytest.mark.parametrize("change", UNSOUND.values(), ids=UNSOUND)
def test_unsound_matrices_are_errors(paths, change):
    sound = {"format": b"csr", "shape": [2, 4], "data": np.ones(3, "f4")}
    sound |= {"indices": [1, 2, 3], "indptr": [0, 2, 3]}
    save_arrays(paths[0], **sound)
    assert sum(len(pairs) for _, pairs in read_matrices(*paths)) == 3
    save_arrays(paths[0], **sound | change)
    assert_fails(paths, 0, "cannot be read as a SciPy sparse matrix")


@pytest.mark.parametrize("offset", [5, -5, 2**31, 0.5])
def test_diagonals_beyond_the_matrix_are_errors(paths, offset):
    arrays = {"format": b"dia", "shape": [2, 4], "data": np.ones((1, 4), "f4")}
    save_arrays(paths[0], **arrays, offsets=np.array([1]))
    assert read_matrices(*paths)[0] == ([0, 2], [(1, 1.0)])
    save_arrays(paths[0], **arrays, offsets=np.array([offset]))
    assert_fails(paths, 0, "cannot be read as a SciPy sparse matrix")


@pytest.mark.parametrize("shape", [[2**31, 4], [2, 2**31], [-1, 4]])
def test_sizes_beyond_int32_are_errors(paths, shape):
    arrays = {"format": b"coo", "data": [1.0], "row": [0], "col": [0]}
    save_arrays(paths[0], **arrays, shape=np.array(shape))
    assert_fails(paths, 0, "not between 0 and 2147483647")


def test_rows_of_features_and_labels_agree(paths):
    save(paths[1], sparse.csr_matrix((3, 3)))
    assert_fails(paths, 1, f"file has 3 rows, but 2 are in {paths[0]}")


@pytest.fixture
def open_matrices(tmp_path):
    root = tmp_path / "files"
    root.mkdir()
    for name, rows in (("trn", 3), ("tst", 2)):
        save(root / f"X.{name}.npz", sparse.csr_matrix(np.eye(rows, 5)))
        save(root / f"Y.{name}.npz", sparse.csr_matrix(np.eye(rows, 4)))
    return opening(tmp_path, format="npz", **FILES)


def test_a_set_of_four_files(open_matrices, tmp_path):
    for _ in range(2):  # The second time from the cache.
        data = open_matrices(train_samples=3, test_samples=2, num_features=5, num_labels=4)
        assert (len(data.train), data.num_features, data.num_labels) == (3, 5, 4)
        expected = [([0], [(0, 1.0)]), ([1], [(1, 1.0)])]
        assert to_lists(data.test.features, data.test.labels) == expected
    save(tmp_path / "files/Y.tst.npz", sparse.csr_matrix(np.eye(2, 4)[::-1]))
    assert open_matrices().test.labels.indices.tolist() == [1, 0]
    save(tmp_path / "files/Y.tst.npz", sparse.csr_matrix((2, 7)))
    with pytest.raises(DataError, match=r"Y.tst.npz: file has 7 labels, but 4 are in .*X.trn.npz"):
        open_matrices()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_labels_file": None}, "train_labels_file must be the name of a file, not None"),
        ({"test_file": ""}, "test_file must be the name of a file, not ''"),
        ({"lenient": True}, "lenient is for text, not for format=npz"),
        ({"first_feature": 1}, "first_feature is for text, not for format=npz"),
    ],
)
def test_options_that_do_not_go_with_matrices(open_matrices, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        open_matrices(**options)
