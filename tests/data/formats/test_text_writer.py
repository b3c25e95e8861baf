"""Rows that are written as text are read back bit by bit."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from helpers.damage import fuzzed
from hypothesis import given
from hypothesis import strategies as st

from slide.data import Split, synthetic, write_xmc, xmc
from slide.data import row_files as write_module
from slide.data.row_files import read_header, read_text_blocks, text_variant
from slide.sparse import CSR, Pattern

COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
MAX_INDEX = 2**31 - 1
TINY, SMALLEST = np.finfo(np.float32).tiny, np.finfo(np.float32).smallest_subnormal
EXTREMES = [0.0, -0.0, TINY, -TINY, SMALLEST, -SMALLEST, np.finfo(np.float32).max, 1.0, -1.0]
FORMATS = [("xmc", None, None), ("svmlight", None, None), ("svmlight", 0, 7), ("xmc", 2, 3)]


def read_back(path, format="xmc", first_feature=None, first_label=None):
    """The rows of a file."""
    blocks = list(read_text_blocks(path, text_variant(format, first_feature, first_label)))
    assert len(blocks) <= 1, "the file has several chunks"
    empty = np.zeros(1, np.int64), np.empty(0, np.int32)
    return blocks[0][:2] if blocks else (CSR(*empty, np.empty(0, np.float32)), Pattern(*empty))


def assert_same_rows(found, split):
    for one, other in zip(found[0] + found[1], split.features + split.labels, strict=True):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes()


def make_split(rows, num_features, num_labels):
    """A split from a list of (labels, {feature: value})."""
    features, labels = Pattern.from_lists([list(r[1]) for r in rows]), [r[0] for r in rows]
    values = np.array([value for row in rows for value in row[1].values()], np.float32)
    return Split(CSR(*features, values), Pattern.from_lists(labels), num_features, num_labels)


values = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.sampled_from(EXTREMES),
    st.integers(-(10**10), 10**10).map(lambda i: float(np.float32(i / 10**5))),
)


@st.composite
def splits(draw):
    num_features = draw(st.sampled_from([1, 20, MAX_INDEX]))
    num_labels = draw(st.sampled_from([1, 20, MAX_INDEX]))
    labels = st.lists(st.integers(0, num_labels - 1), unique=True, max_size=5)
    features = st.dictionaries(st.integers(0, num_features - 1), values, max_size=5)
    rows = draw(st.lists(st.tuples(labels, features), max_size=6))
    return make_split(rows, num_features, num_labels)


@fuzzed(150)
@given(splits(), st.sampled_from(FORMATS))
def test_any_split_is_read_back_equal(split, variant):
    format, first_feature, first_label = variant
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data.txt")
        write_xmc(path, split, format=format, first_feature=first_feature, first_label=first_label)
        assert_same_rows(read_back(path, *variant), split)
        if format == "xmc":
            assert read_header(path) == (len(split), split.num_features, split.num_labels)


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
    assert_same_rows(read_back(path), split)
    words = path.read_text().split("\n")[1].split()
    exact = np.array([float(word.partition(":")[2]) for word in words]).astype(np.float32)
    assert exact.tobytes() == values.tobytes(), "another reader does not read them"


def test_files_are_as_short_as_a_person_would_write_them(tmp_path):
    numbers = [0.5, 1, -2, 0.1811, 100000, 1e6, 1e-5, 1e-7, 16777216, 0.1, 1e30, -0.0, 1e-30, 12.25]
    rows = [([3, 0], dict(enumerate(numbers))), ([], {}), ([], {19: 1 / 3}), ([2], {})]
    path = tmp_path / "data.txt"
    write_xmc(path, make_split(rows, 20, 4))
    assert path.read_text() == (
        "4 20 4\n"
        "3,0 0:0.5 1:1 2:-2 3:0.1811 4:100000 5:1e6 6:0.00001 7:1e-7 8:16777216 9:0.1 10:1e30"
        " 11:-0 12:1e-30 13:12.25\n"
        " \n"
        " 19:0.33333334\n"
        "2\n"
    )
    write_xmc(path, make_split(rows[1:], 20, 4), format="svmlight", first_label=1)
    assert path.read_text() == " \n 20:0.33333334\n3\n"


def test_generated_sets_are_read_back_equal(tmp_path, monkeypatch):
    monkeypatch.setattr(write_module, "FORMATTED_ENTRIES", 500)
    sizes = {"num_features": 300, "num_labels": 200, "train_samples": 400, "test_samples": 50}
    data = synthetic(cache=tmp_path / "cache", **sizes)
    write_xmc(tmp_path / "train.txt", data.train)
    write_xmc(str(tmp_path / "test.txt"), data.test)
    found = xmc(name="written", root=tmp_path, cache=tmp_path / "cache", **sizes)
    for one, other in ((found.train, data.train), (found.test, data.test)):
        assert_same_rows((one.features, one.labels), other)


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
