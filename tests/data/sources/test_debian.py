"""A data set out of an index of packages, against a twin that goes word by word."""

import bz2
import gzip
import lzma
import math
import re
from collections import Counter
from functools import partial

import numpy as np
import pytest

from slide.data import DataError, build_debian, xmc
from slide.data.fetching.fetch import FetchError
from slide.data.sources.debian import needed_packages, package_words, read_packages

INDEX = """\
Package: gcc-12
Source: gcc
Version: 12.2
Maintainer: Debian GCC Maintainers <debian-gcc@lists.debian.org>
Depends: cpp-12 (= 12.2), libc6 (>= 2.36), libgcc-12-dev:any | libgcc-dev,
 binutils [amd64] (>> 2.38) <!nocheck>
Pre-Depends: dpkg
Recommends: libc6-dev (>= 2.13-5)|libc-dev
Suggests: gcc-doc
Description: GNU C compiler, the C compiler of GNU
 A line more.
 .
 And an other: one.
Tag: devel::compiler, devel::lang:c,
 role::program
Section: devel

Package: base-files
Maintainer: Santiago Vila
Section: admin
Description: Debian base system

Package: gcc-12
Version: 11.0
Depends: something-else
Description: an older one
"""


def entries(text):
    return list(read_packages(text.encode().splitlines(keepends=True), "index"))


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


def test_all_alternatives_are_needed():
    assert needed_packages(entries(INDEX)[0]) == {
        *("cpp-12", "libc6", "libgcc-12-dev", "libgcc-dev", "binutils", "dpkg"),
        *("libc6-dev", "libc-dev"),
    }
    assert needed_packages({"Package": "a", "Depends": "", "Suggests": "b"}) == set()


def test_words_are_those_of_a_field():
    found = package_words(entries(INDEX)[0])
    assert found["Description", "c"] == 2
    assert found["Description", "compiler"] == 2
    assert found["Package", "gcc"] == found["Maintainer", "gcc"] == found["Package", "12"] == 1
    assert found["Tag", "devel::lang:c"] == found["Tag", "role::program"] == 1
    assert found["Section", "devel"] == 1
    assert not {word for _, word in found} & {"lists", "debian-gcc", "C", "libc6"}


def random_index(packages=60, seed=0):
    rng = np.random.default_rng(seed)
    vocabulary = [f"word{i}" for i in range(30)] + ["éclair", "Straße", "x86"]

    def draw(most, names):
        return [str(rng.choice(names)) for _ in range(rng.integers(0, most + 1))]

    names = [f"lib{i}-dev" if i % 3 else f"tool{i}" for i in range(packages)]
    text = []
    for name in names:
        described = " ".join(draw(6, vocabulary)).capitalize()
        text.append(f"Package: {name}\nMaintainer: Team {rng.integers(3)} <t@x.org>\nSection: misc")
        text.append(f"Description: {described}")
        if tags := draw(3, ["a::b", "c::d", "e::f"]):
            text.append("Tag: " + ",\n ".join(tags))
        for field in ("Depends", "Pre-Depends", "Recommends"):
            if needed := draw(3, names):
                text.append(f"{field}: " + rng.choice([", ", " | ", " (>= 1), "]).join(needed))
        text.append("")
    return "\n".join(text)


def naive_rows(index):
    """``[({(field, word): count}, {labels})]`` of the packages that need others."""
    rows = []
    for stanza in index.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in stanza.replace(",\n ", ", ").splitlines() if line
        )
        needed = set()
        for field in ("Depends", "Pre-Depends", "Recommends"):
            for part in fields.get(field, "").replace("|", ",").replace("(>= 1)", "").split(","):
                needed |= {part.strip()} - {""}
        counts = Counter()
        for field in ("Package", "Description", "Section"):
            parts = fields.get(field, "").lower().replace("-", " ").split()
            counts.update((field, word) for word in parts)
        team = fields["Maintainer"].split()[:2] if stanza else []
        counts.update(("Maintainer", word.lower()) for word in team)
        counts.update(("Tag", tag) for tag in fields.get("Tag", "").split(", ") if tag)
        if needed:
            rows.append((counts, needed))
    return rows


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


def build(root, index, check=lambda folder: None, **arguments):
    root.mkdir(exist_ok=True)
    path = root.parent / "Packages"
    path.write_bytes(index.encode() if isinstance(index, str) else index)
    build_debian(root, check, index=path, **arguments)


def read(root):
    return xmc(name="debian", root=root, cache=root / "cache")


def rows_of(split):
    """``[({feature: value}, {labels})]`` by number."""
    rows = [split.slice(i, i + 1) for i in range(len(split))]
    return [
        (
            dict(zip(row.features.indices.tolist(), row.features.values.tolist(), strict=True)),
            set(row.labels.indices.tolist()),
        )
        for row in rows
    ]


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
        for (features, found), weights, (_, needed) in zip(
            rows_of(split), weighed, rows, strict=True
        ):
            assert {labels[label] for label in found} == needed
            assert {names[i]: value for i, value in features.items()} == pytest.approx(weights)


def test_the_seed_decides(tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        build(tmp_path / name, random_index(), seed=seed)
    a, b, c = ((tmp_path / name / "train.txt").read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_of_a_package_the_first_entry_counts(tmp_path):
    other = "\nPackage: other\nDepends: gcc-12\n"
    build(tmp_path / "root", INDEX + other, min_rows=1, test_share=0.5)
    data = read(tmp_path / "root")
    assert len(data.train) + len(data.test) == 2, "base-files needs nothing"
    assert data.num_labels == 9, "something-else is no label"


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
        ("<!DOCTYPE html>\n<html>", ":1: '<!DOCTYPE html>' is not 'Field: value'"),
        ("Package: a\nDepends: b\n\n  c", ":4: '  c' is not 'Field: value'"),
        ("Package: a\n: b", ":2: ': b' is not 'Field: value'"),
    ],
)
def test_bad_indices(tmp_path, index, message):
    with pytest.raises(DataError) as error:
        build(tmp_path / "root", index)
    assert str(error.value).startswith(f"{tmp_path}/Packages{message}")
    assert not list((tmp_path / "root").iterdir())


def test_files_appear_checked_or_not_at_all(tmp_path):
    root = tmp_path / "root"
    seen = []

    def check(folder):
        seen.append(sorted(path.name for path in folder.iterdir()))
        assert not (root / "train.txt").exists()
        raise DataError(f"{folder}/train.txt:1: header has too few rows")

    (root / ".build").mkdir(parents=True)
    (root / ".build" / "left").touch()
    with pytest.raises(FetchError, match=r"else: train.txt:1: header has too few rows$"):
        build(root, random_index(), check)
    assert seen == [["test.txt", "train.txt"]]
    assert not list(root.iterdir())
    build(root, random_index())
    assert sorted(path.name for path in root.iterdir()) == ["test.txt", "train.txt"]


@pytest.mark.parametrize("name", ["train.txt", "test.txt"])
def test_one_file_alone_is_not_completed(tmp_path, name):
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / name).write_text("mine")
    with pytest.raises(FetchError, match=rf"{name} is there; both files are built, or none"):
        build(tmp_path / "root", random_index())
    assert (tmp_path / "root" / name).read_text() == "mine"


def make_apt(folder, script):
    """Puts a program of the name of apt's into a folder."""
    program = folder / "apt-cache"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_the_index_of_the_machine(tmp_path, monkeypatch):
    index = random_index().replace("Section: misc", "Section: misc\nFilename: pool/some.deb")
    build(tmp_path / "expected", index)
    installed = "\n\nPackage: from-nowhere\nDepends: lib1-dev, and-more\n"
    (tmp_path / "Packages").write_text(index + installed)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    make_apt(tmp_path, f'test "$1" = dumpavail && cat {tmp_path}/Packages')
    data = xmc(name="d", root=tmp_path / "new", cache=tmp_path / "c", fetch=build_debian)
    assert len(data.train) + len(data.test) == len(naive_rows(index))
    made = (tmp_path / "new/train.txt").read_bytes()
    assert made == (tmp_path / "expected/train.txt").read_bytes()
    make_apt(tmp_path, "exit 1")
    again = xmc(name="d", root=tmp_path / "new", cache=tmp_path / "c", fetch=build_debian)
    assert len(again.train) == len(data.train)


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
        make_apt(tmp_path, script)
    with pytest.raises(FileNotFoundError) as error:
        xmc(name="d", root=tmp_path / "new", cache=tmp_path / "c", fetch=build_debian, hint="Help.")
    assert message in str(error.value)
    assert "train.txt is missing" in str(error.value)
    assert "Help." in str(error.value)


def test_an_index_that_is_not_there(tmp_path):
    fetch = partial(build_debian, index=tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=rf"there is no index {tmp_path}/none"):
        xmc(name="d", root=tmp_path / "new", cache=tmp_path / "c", fetch=fetch)


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
