"""Data sets in files, and what is said of files that do not fit."""

import json
import re

import pytest
from helpers import datafiles, job
from helpers.caches import TRAIN, forbid
from helpers.splits import assert_same_rows

from slide.data import DataError, xmc

NAMES = {
    "xmc": {},
    "svmlight": {"train_file": "train.svm"},
    "npz": {
        **{f"{part}_file": f"X.{part}.npz" for part in ("train", "test")},
        **{f"{part}_labels_file": f"Y.{part}.npz" for part in ("train", "test")},
    },
}


def config_of(format, folder):
    """What writes the files of a format, and what reads them."""
    config = {"format": format, **NAMES[format]}
    return config, {"name": "x", "root": folder / "root", "cache": folder / "cache", **config}


@pytest.fixture
def data(tmp_path):
    return job.make_data(tmp_path, train_samples=12, test_samples=6)


def counts_of(data):
    return {
        "train_samples": len(data.train),
        "test_samples": len(data.test),
        "num_features": data.num_features,
        "num_labels": data.num_labels,
    }


@pytest.mark.parametrize("format", NAMES)
def test_missing_files_are_fetched_and_checked(tmp_path, data, format):
    config, places = config_of(format, tmp_path)
    counts = counts_of(data)

    def fetch(root, check):
        datafiles.write_rows(root / "new", data, config)
        check(root / "new")
        datafiles.write_rows(root, data, config)

    with pytest.raises(FileNotFoundError, match=r"root/\S+ is missing. By hand. Put "):
        xmc(**places, hint="By hand.")
    assert not (tmp_path / "root").exists()
    for name, count in counts.items():  # Another version is told before it is taken.
        other = counts | {name: count - (30 if name.startswith("num") else 1)}
        what = "rows" if "samples" in name else "features|labels|feature|label"
        with pytest.raises(DataError, match=rf"^{places['root']}/new/.*({what})"):
            xmc(**places, **other, fetch=fetch)
    assert_same_rows(xmc(**places, **counts, fetch=fetch), data)
    xmc(**places, **counts, fetch=forbid)  # What is there is used.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "csv"}, "format must be one of xmc, svmlight, npz, not 'csv'"),
        ({"root": None}, "root must be the path of a folder, not None"),
        ({"train_file": 3}, "train_file must be the name of a file, not 3"),
        ({"lenient": "no"}, "lenient must be true or false, not 'no'"),
        ({"num_labels": -1}, "num_labels must be a whole number of at least 0, not -1"),
        ({"num_features": 2**31}, "num_features must be in [0, 2147483647], not 2147483648"),
        (
            {"train_labels_file": "y", "format": "svmlight"},
            "train_labels_file is for format=npz and xmc; svmlight has labels in train_file",
        ),
    ],
)
def test_options_are_checked_before_anything_is_fetched(tmp_path, options, message):
    places = {"name": "x", "root": tmp_path, "cache": tmp_path, "fetch": forbid}
    with pytest.raises(ValueError, match=re.escape(message)):
        xmc(**{**places, **options})


# Errors of sets that lack a file or have other counts than expected.


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


FEATURES, LABELS = "3 5\n0:0.5 4:2\n2:1\n1:1\n", "3 4\n1:1.0 3:1\n\n2\n"


def test_features_and_labels_in_two_files(open_set, root):
    (root / "train_X.txt").write_text(FEATURES)
    (root / "train_Y.txt").write_text(LABELS)
    names = {"train_file": "train_X.txt", "train_labels_file": "train_Y.txt"}
    assert_same_rows(open_set(**names), open_set())


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (FEATURES, LABELS.replace("3:1", "3:2"), "X.txt and Y.txt:2: malformed labels '1,3:2'"),
        (FEATURES, LABELS.replace("2\n", "4\n"), "X.txt and Y.txt:4: label 4 is not in [0, 4)"),
        (
            FEATURES.replace("0.5", "1e300"),
            LABELS,
            "X.txt and Y.txt:2: value 1e300 of feature 0 is",
        ),
        (FEATURES, "2 4\n1\n2\n", "Y.txt:1: header has 2 rows, but that of {root}/X.txt has 3"),
        (FEATURES, "3 4\n1\n2\n", "Y.txt:1: header has 3 rows, but the file has 2"),
        (FEATURES + "1:1\n", LABELS, "X.txt: row 4, but the header has 3"),
        (
            "a red fox\nan old car\n",
            LABELS,
            "X.txt:1: header 'a red fox' is not 'rows columns'; te",
        ),
        (
            TRAIN,
            LABELS,
            "header '3 5 4' is not 'rows columns'; it looks like a file that has the l",
        ),
        (
            FEATURES,
            None,
            "header '3 5' is not 'rows features labels'; of two files, of features an",
        ),
    ],
)
def test_two_files_that_do_not_fit(open_set, root, features, labels, message):
    (root / "X.txt").write_text(features)
    (root / "Y.txt").write_text(labels or "")
    names = {"train_file": "X.txt", "train_labels_file": labels and "Y.txt"}
    with pytest.raises(DataError, match=re.escape(message.format(root=root))):
        open_set(**names)
