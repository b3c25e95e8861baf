"""What `describe` counts."""

from helpers.splits import split_of

from slide.data import SparseDataset
from slide.data.describe import describe, folder_bytes


def described(train, test):
    return describe(SparseDataset("made", train, test, train.num_features, train.num_labels))


def test_the_table():
    rows = [[0, 1, 2], [], [0], [0, 1]]
    train = split_of(rows, [[0, 1], [0], [], [0, 5, 1]], 5, 6)
    test = split_of([[0], range(5)], [[0, 2, 4], [2, 5]], 5, 6)
    assert described(train, test) == (
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
    nothing, rows = split_of([], [], 0, 0), split_of([], [], 5, 6)
    assert "0.0 %" in described(nothing, nothing)
    assert "labels without a training row       100.0 %" in described(rows, rows)


def test_bytes_of_a_folder(tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "one").write_bytes(b"123")
    (tmp_path / "below/two").write_bytes(b"4567")
    assert folder_bytes(tmp_path) == 7
