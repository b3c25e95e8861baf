"""The rows of an index of packages, compared with a twin that reads it word by word."""

import math
from collections import Counter

import numpy as np
import pytest
from helpers.naive_rows import to_lists
from helpers.packages import INDEX, build, naive_rows, random_index
from helpers.prepare import command

from slide.data import xmc

DEBIAN = command("debian")


def entries(text):
    return list(DEBIAN.read_packages(text.encode().splitlines(keepends=True), "index"))


def test_entries_are_read():
    first, second, third = entries(INDEX)
    assert first["Package"] == third["Package"] == "gcc-12"
    assert "Version" not in first, "only what is used is kept"
    assert first["Description"].endswith("compiler of GNU A line more. . And an other: one.")
    assert second == {
        "Package": "base-files",
        "Maintainer": "Santiago Vila",
        "Section": "admin",
        "Description": "Debian base system",
    }
    spaced = "\n\n" + INDEX.replace("\n\n", "\n \n\n").replace("\n", "\r\n").rstrip()
    assert entries(spaced) == [first, second, third]
    assert entries("") == []


def naive_weights(train, rows, min_rows):
    """Rows of ``{(field, word): tf-idf weight}``, of length 1."""
    frequency = Counter(word for counts, _ in train for word in counts)
    weighed = []
    for counts, _ in rows:
        row = {
            word: count * (math.log((1 + len(train)) / (1 + frequency[word])) + 1)
            for word, count in counts.items()
            if frequency[word] >= min_rows
        }
        norm = math.sqrt(sum(value**2 for value in row.values()))
        weighed.append({word: value / norm for word, value in row.items()})
    return weighed, sorted(word for word, count in frequency.items() if count >= min_rows)


def read(root):
    return xmc(name="debian", root=root, cache=root / "cache")


@pytest.mark.parametrize(("seed", "min_rows", "share"), [(0, 2, 0.2), (1, 1, 0.5), (2, 4, 0.25)])
def test_rows_agree_with_the_twin(tmp_path, seed, min_rows, share):
    index = random_index(seed=seed)
    build(tmp_path / "root", index, seed=seed, min_rows=min_rows, test_share=share)
    data = read(tmp_path / "root")
    expected = naive_rows(index)
    assert len(expected) > 40
    labels = sorted({label for _, needed in expected for label in needed})
    aside = round(share * len(expected))
    order = np.random.default_rng(seed).permutation(len(expected))
    test, train = ([expected[i] for i in sorted(p)] for p in (order[:aside], order[aside:]))
    for split, rows in ((data.train, train), (data.test, test)):
        weighed, names = naive_weights(train, rows, min_rows)
        assert (data.num_features, data.num_labels) == (len(names), len(labels))
        assert len(split) == len(rows)
        read_rows = to_lists(split.features, split.labels)
        for (found, pairs), weights, (_, needed) in zip(read_rows, weighed, rows, strict=True):
            assert {labels[label] for label in found} == needed
            assert {names[i]: value for i, value in pairs} == pytest.approx(weights)


def test_of_a_package_the_first_entry_counts(tmp_path):
    other = "\nPackage: other\nDepends: gcc-12\n"
    build(tmp_path / "root", INDEX + other, min_rows=1, test_share=0.5)
    data = read(tmp_path / "root")
    assert len(data.train) + len(data.test) == 2, "base-files needs nothing"
    assert data.num_labels == 9, "something-else is no label"


@pytest.mark.parametrize(
    ("option", "value", "bound"),
    [
        ("test_share", 0, "a number above 0"),
        ("test_share", 1, r"in \[0, 1\)"),
        ("seed", -1, "a whole number of at least 0"),
        ("min_rows", 0, "a whole number of at least 1"),
    ],
)
def test_arguments_out_of_range_are_named(tmp_path, option, value, bound):
    with pytest.raises(ValueError, match=rf"^{option} must be {bound}, not {value}"):
        build(tmp_path / "root", INDEX, **{option: value})
