"""Errors of sets that lack a file or have other counts than expected."""

import json

import pytest
from helpers.caches import TRAIN

from slide.data import DataError


def test_missing_file_says_what_to_fetch_and_where_to_put_it(open_set, root, tmp_path):
    (root / "test.txt").unlink()
    with pytest.raises(FileNotFoundError) as caught:
        open_set(hint="Fetch tiny.zip.")
    assert str(caught.value) == (
        f"{root / 'test.txt'} is missing. Fetch tiny.zip. "
        f"Put train.txt and test.txt into the folder {root}."
    )
    with pytest.raises(FileNotFoundError, match="nowhere"):
        open_set(root=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_samples": 4}, "train.txt:1: header has 3 rows, but 4 were expected"),
        ({"test_samples": 3}, "test.txt:1: header has 2 rows, but 3 were expected"),
        ({"num_features": 6}, "train.txt:1: header has 5 features, but 6 were expected"),
        ({"num_labels": 1}, "train.txt:1: header has 4 labels, but 1 were expected"),
    ],
)
def test_unexpected_counts_name_both(open_set, options, message):
    with pytest.raises(DataError, match=message):
        open_set(**options)
    open_set(train_samples=3, test_samples=2, num_features=5, num_labels=4)
    with pytest.raises(DataError, match=message):  # also when there is a cache
        open_set(**options)


def test_splits_must_agree(open_set, root):
    (root / "test.txt").write_text("1 6 4\n0 5:1\n")
    with pytest.raises(DataError, match=r"test.txt:1: header has 6 features, but 5 are in .*train"):
        open_set()


def test_lenient_set_keeps_the_number_of_lines_left_out(open_set, root, tmp_path, capsys):
    (root / "train.txt").write_text(TRAIN.replace("4:2", "4:x"))
    dataset = open_set(lenient=True, train_samples=3)
    assert len(dataset.train) == 2
    (meta,) = (tmp_path / "cache").glob("*/meta.json")
    assert json.loads(meta.read_text())["train"]["skipped"] == 1
    assert "train rows: malformed lines were left out: 1" in capsys.readouterr().err
