"""What `describe` counts."""

import numpy as np
import pytest

from slide.data import SparseDataset, Split
from slide.data.describe import describe, folder_bytes
from slide.sparse import CSR, Pattern


def make_split(rows, labels, features=5, num_labels=6):
    """Rows with so many features each, and these labels."""
    pattern = Pattern.from_lists([range(count) for count in rows])
    values = np.ones(len(pattern.indices), np.float32)
    return Split(CSR(*pattern, values), Pattern.from_lists(labels), features, num_labels)


def make_data(train, test):
    return SparseDataset("made", train, test, train.num_features, train.num_labels)


@pytest.fixture
def made():
    train = make_split([3, 0, 1, 2], [[0, 1], [0], [], [0, 5, 1]])
    test = make_split([1, 5], [[0, 2, 4], [2, 5]])
    return make_data(train, test)


def test_the_table(made):
    assert describe(made) == (
        "made                                  train     test\n"
        "rows                                      4        2\n"
        "features                                  5\n"
        "labels                                    6\n"
        "non-zeros a row (most)              1.5 (3)  3.0 (5)\n"
        "labels a row (most)                 1.5 (3)  2.5 (3)\n"
        "rows without features                     1        0\n"
        "rows without labels                       1        0\n"
        "training rows of a label, least           0\n"
        "training rows of a label, 10 %            0\n"
        "training rows of a label, median          0\n"
        "training rows of a label, 90 %            2\n"
        "training rows of a label, 99 %            2\n"
        "training rows of a label, most            3\n"
        "labels without a training row        50.0 %\n"
        "labels with one training row         16.7 %\n"
        "test labels without a training row            60.0 %\n"
        "  each distinct label once                    50.0 %\n"
    )


def test_empty_sets_can_be_described():
    nothing, rows = make_split([], [], 0, 0), make_split([], [])
    assert "0.0 %" in describe(make_data(nothing, nothing))
    assert "labels without a training row       100.0 %" in describe(make_data(rows, rows))


def test_bytes_of_a_folder(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "one").write_bytes(b"123")
    (tmp_path / "below/two").write_bytes(b"4567")
    assert folder_bytes(tmp_path) == 7
