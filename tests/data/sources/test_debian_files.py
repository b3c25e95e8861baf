"""Where the index of packages comes from, and where the files go."""

import bz2
import gzip
import lzma
import re
from functools import partial

import pytest
from helpers.packages import INDEX, build, naive_rows, random_index

from slide.data import DataError, build_debian, xmc
from slide.data.fetching.fetch import FetchError


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
    assert sorted(path.name for path in root.iterdir()) == ["built.json", "test.txt", "train.txt"]


def test_files_of_other_settings_are_not_used(tmp_path):
    root, index = tmp_path / "root", tmp_path / "Packages"
    index.write_text(random_index())

    def read(**settings):
        fetch = partial(build_debian, **settings)
        return xmc(name="debian", root=root, cache=tmp_path / "cache", fetch=fetch)

    read(index=index)
    said = f"^{root} was built with min_rows=2, not 5: remove its files, or name another "
    with pytest.raises(ValueError, match=said):
        read(min_rows=5)
    with pytest.raises(ValueError, match=r"was built with index=\S+/Packages, not other"):
        read(index="other")
    assert len(read(min_rows=2).train), "without an index, that of the build"
    xmc(name="debian", root=root, cache=tmp_path / "cache")
    (root / "built.json").write_text("[3]")
    with pytest.raises(DataError, match=r"built.json does not say how the files were built"):
        read()
    (root / "built.json").unlink()
    assert len(read(min_rows=5).train), "prepared files have no note"


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
