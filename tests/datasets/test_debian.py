"""An index of packages: its rows, compared with a twin, where it comes from, where files go."""

import bz2
import gzip
import lzma
import math
import re
import runpy
import sys
from collections import Counter

import numpy as np
import pytest
from helpers import job
from helpers.naive_rows import to_lists
from helpers.packages import INDEX, build, naive_rows, random_index
from helpers.prepare import DATASETS, command, make_program

from slide.config import open_dataset as build_data
from slide.data import DataError, xmc
from slide.data.fetching import FetchError

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


@pytest.mark.parametrize(("seed", "min_rows", "share"), [(0, 2, 0.2), (2, 4, 0.25)])
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
    [("test_share", 1, r"in \[0, 1\)"), ("min_rows", 0, "a whole number of at least 1")],
)
def test_arguments_out_of_range_are_named(tmp_path, option, value, bound):
    with pytest.raises(ValueError, match=rf"^{option} must be {bound}, not {value}"):
        build(tmp_path / "root", INDEX, **{option: value})


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_packed_indices(tmp_path, pack):
    index = random_index()
    build(tmp_path / "plain", index)
    build(tmp_path / "packed", pack(index.encode()))
    for name in ("train.txt", "test.txt"):
        expected = (tmp_path / "plain" / name).read_bytes()
        assert (tmp_path / "packed" / name).read_bytes() == expected
    damaged = bytearray(pack(index.encode()))
    damaged[len(damaged) // 2] ^= 0xFF
    for data, said in (
        (bytes(damaged), ":"),  # bzip2 notices only after nonsense has come out
        (pack(index.encode())[:-30], ": it cannot be unpacked"),
    ):
        with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path))}/Packages{said}"):
            build(tmp_path / "bad", data)
        assert not list((tmp_path / "bad").iterdir())


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("", ": it has 0 packages that depend on others"),
        (INDEX, ": it has 1 packages that depend on others"),
        ("Package: a\nDepends: b\n\n  c", ":4: '  c' is not 'Field: value'"),
        ("Package: a\n: b", ":2: ': b' is not 'Field: value'"),
    ],
)
def test_bad_indices(tmp_path, index, message):
    with pytest.raises(DataError) as error:
        build(tmp_path / "root", index)
    assert str(error.value).startswith(f"{tmp_path}/Packages{message}")
    assert not list((tmp_path / "root").iterdir())


def test_both_files_appear_or_none(tmp_path, monkeypatch):
    root, index = tmp_path / "root", sys.modules[DEBIAN.write_files.__module__]
    write = index.write_xmc

    def full(path, split):
        if path.name == "test.txt":
            raise OSError("no space")
        write(path, split)

    with monkeypatch.context() as patched:
        patched.setattr(index, "write_xmc", full)
        with pytest.raises(OSError, match="no space"):
            build(root, random_index())
    assert not list(root.iterdir())
    build(root, random_index())
    assert sorted(path.name for path in root.iterdir()) == ["test.txt", "train.txt"]
    for name, other in (("train.txt", "test.txt"), ("test.txt", "train.txt")):
        (root / other).unlink(missing_ok=True)
        (root / name).write_text("mine")
        with pytest.raises(FileExistsError, match=rf"{name} is there; both files are written, or"):
            build(root, random_index())
        assert (root / name).read_text() == "mine"


def test_the_command(tmp_path, monkeypatch):
    """Its files are read by dataset=debian; what is wrong is said in one line."""
    (tmp_path / "Packages").write_text(random_index())

    def run(*words):
        program = str(DATASETS / "debian" / "prepare.py")
        monkeypatch.setattr(sys, "argv", [program, "--root", str(tmp_path), *map(str, words)])
        runpy.run_path(program, run_name="__main__")

    with pytest.raises(SystemExit, match=f"^error: there is no index {tmp_path}/none$"):
        run("--index", tmp_path / "none")
    run("--index", tmp_path / "Packages", "--min-rows", "1")
    words = ["dataset=debian", f"dataset.root={tmp_path}", f"dataset.cache={tmp_path}/cache"]
    data = build_data(job.compose(*words))
    assert len(data.train) + len(data.test) == len(naive_rows(random_index()))


def test_the_index_of_the_machine(tmp_path, monkeypatch):
    index = random_index().replace("Section: misc", "Section: misc\nFilename: pool/some.deb")
    build(tmp_path / "expected", index)
    installed = "\n\nPackage: from-nowhere\nDepends: lib1-dev, and-more\n"
    (tmp_path / "Packages").write_text(index + installed)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    make_program(tmp_path, "apt-cache", f'test "$1" = dumpavail && cat {tmp_path}/Packages')
    DEBIAN.prepare(tmp_path / "new")
    data = read(tmp_path / "new")
    assert len(data.train) + len(data.test) == len(naive_rows(index))
    made = (tmp_path / "new/train.txt").read_bytes()
    assert made == (tmp_path / "expected/train.txt").read_bytes()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "apt-cache cannot be run: No such file or directory; on a machine without apt, "),
        ("exit 3", "apt-cache dumpavail ended with code 3"),
        ("", "apt-cache dumpavail names 0 packages that depend on others; apt-get update fetches"),
    ],
)
def test_machines_without_an_index(tmp_path, monkeypatch, script, message):
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        make_program(tmp_path, "apt-cache", script)
    with pytest.raises(FetchError) as error:
        DEBIAN.prepare(tmp_path / "new")
    assert message in str(error.value)
