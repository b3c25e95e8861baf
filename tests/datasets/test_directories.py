"""Directories and their files, from an index of contents, compared with a looped twin."""

import gzip
import re
from collections import Counter

import numpy as np
import pytest
from helpers.prepare import command

from slide.data import DataError, xmc
from slide.data.fetching import FetchError

FILES = command("files")


def random_contents(directories=80, seed=0):
    """Lines of an index: paths with spaces, packages with and without sections, shared paths."""
    rng = np.random.default_rng(seed)
    names = ["README", "copyright", "Main Page.html", *(f"f{i}.so" for i in range(40))]
    lines = []
    for number in range(directories):
        place = f"usr/share/doc/Lib-{number % 17}_x/{number}"
        for name in rng.choice(names, rng.integers(1, 6), replace=False):
            packages = rng.choice(["doc/liba", "net/b-tools", "c"], rng.integers(1, 3))
            lines.append(f"{place}/{name}  {','.join(packages)}")
    lines.append("at-the-top c")
    return "\n".join(lines) + "\n"


def build(root, contents, **options):
    root.mkdir(exist_ok=True)
    path = root.parent / "Contents"
    path.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    FILES.prepare(root, index=path, **options)


def naive_rows(contents):
    """``[(features, labels)]`` of all directories with labels, in the order of the index."""
    files, packages = {}, {}
    for line in contents.splitlines():
        path, owners = re.fullmatch(r"(.*\S)\s+(\S+)", line).groups()
        folder, name = path.rsplit("/", 1) if "/" in path else ("", path)
        files.setdefault(folder, set()).add(name)
        packages.setdefault(folder, set()).update(x.split("/")[-1] for x in owners.split(","))
    count = Counter(name for own in files.values() for name in own)
    rows = []
    for folder, own in files.items():
        labels = {name for name in own if count[name] > 1}
        words = {w for part in folder.split("/") for w in re.findall("[a-z0-9]+", part.lower())}
        features = {("part", part) for part in folder.split("/")} | {("word", w) for w in words}
        if labels:
            rows.append((features | {("package", p) for p in packages[folder]}, labels))
    return rows


def named(split, features, labels):
    """The rows as pairs of sets of names."""
    rows = [split.slice(i, i + 1) for i in range(len(split))]
    return [
        (
            frozenset(features[i] for i in row.features.indices),
            frozenset(labels[i] for i in row.labels.indices),
        )
        for row in rows
    ]


def test_rows_are_those_of_the_twin(tmp_path):
    contents = random_contents()
    build(tmp_path / "root", contents, min_rows=1)
    data = xmc(name="f", root=tmp_path / "root", cache=tmp_path)
    rows = naive_rows(contents)
    # Names are numbered in alphabetical order; features of the test rows alone are left out.
    labels = sorted({name for _, own in rows for name in own})
    by_labels = Counter(frozenset(own) for _, own in rows)
    tested = Counter(frozenset(labels[i] for i in row) for row in lists(data.test.labels))
    trained = by_labels - tested
    assert Counter(frozenset(labels[i] for i in row) for row in lists(data.train.labels)) == trained
    known = sorted({x for own, names in rows if frozenset(names) in trained for x in own})
    assert data.num_features == len(known)
    found = Counter(named(data.train, known, labels))
    wanted = Counter((frozenset(own), frozenset(names)) for own, names in rows)
    assert not found - wanted
    assert (data.train.features.values == 1).all()


def lists(pattern):
    return [
        pattern.indices[a:b].tolist()
        for a, b in zip(pattern.indptr[:-1], pattern.indptr[1:], strict=True)
    ]


def test_paths_and_packages_are_read():
    text = (
        "A text before the table.\nFILE                  LOCATION\n"
        "usr/bin/a b\t   admin/one,two\nusr/bin/c non-free/x/three\n\n"
    )
    directories, names = FILES.read_contents(text.encode().splitlines(keepends=True), "index")
    assert list(names) == ["a b", "c"]
    assert list(directories) == ["usr/bin"]
    assert directories["usr/bin"].packages == {"one", "two", "three"}
    assert list(FILES.described("usr/X11-r6", ["p"])) == [
        *(("part", "usr"), ("word", "usr"), ("part", "X11-r6"), ("word", "x11"), ("word", "r6")),
        ("package", "p"),
    ]


def test_no_row_has_too_many_labels(tmp_path):
    lines = [f"{place}/{i} p" for place in ("a", "b", "c") for i in range(50)]
    build(tmp_path / "root", "\n".join(lines), most_labels=7, test_share=0.3)
    data = xmc(name="f", root=tmp_path / "root", cache=tmp_path)
    assert (np.diff(data.train.labels.indptr) == 7).all()
    assert data.num_labels > 7


def test_rare_features_are_left_out(tmp_path):
    contents = random_contents()
    for least in (1, 3):
        build(tmp_path / f"least{least}", contents, min_rows=least)
    every, some = (
        xmc(name="f", root=tmp_path / f"least{n}", cache=tmp_path / str(n)) for n in (1, 3)
    )
    assert some.num_features < every.num_features
    assert np.bincount(some.train.features.indices).min() >= 3


def test_packed_indexes_and_bad_lines(tmp_path):
    contents = random_contents()
    build(tmp_path / "plain", contents)
    build(tmp_path / "packed", gzip.compress(contents.encode()))
    made = [(tmp_path / name / "train.txt").read_bytes() for name in ("plain", "packed")]
    assert made[0] == made[1]
    with pytest.raises(DataError, match="Contents:2: 'alone' is not 'path package'"):
        build(tmp_path / "bad", "a/b c\nalone\n")
    with pytest.raises(DataError, match="0 directories have files that other directories have"):
        build(tmp_path / "bad", "a/b c\na/d e\n")
    assert not list((tmp_path / "bad").iterdir())
    with pytest.raises(FileExistsError, match=r"train\.txt is there; both files are written"):
        build(tmp_path / "plain", contents)


def make_program(folder, name, script):
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_the_index_of_the_machine(tmp_path, monkeypatch):
    contents = random_contents()
    build(tmp_path / "expected", contents)
    kept = tmp_path / "lists" / "main_Contents-amd64"
    kept.parent.mkdir()
    kept.write_text(contents)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    make_program(tmp_path, "apt-get", f'test "$1" = indextargets && echo {kept}')
    helper = make_program(tmp_path, "apt-helper", 'test "$1" = cat-file && shift && cat "$@"')
    monkeypatch.setattr(FILES, "READER", (helper, "cat-file"))
    FILES.prepare(tmp_path / "new")
    made = (tmp_path / "new" / "train.txt").read_bytes()
    assert made == (tmp_path / "expected" / "train.txt").read_bytes()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "apt-get cannot be run: No such file or directory; on a machine without apt, "),
        ("echo no >&2; exit 3", "apt-get indextargets failed: no"),
        ("", "apt has no index of contents: apt-get install apt-file, then apt-get update"),
    ],
)
def test_machines_without_an_index(tmp_path, monkeypatch, script, message):
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        make_program(tmp_path, "apt-get", script)
    with pytest.raises(FetchError) as error:
        FILES.prepare(tmp_path / "new")
    assert message in str(error.value)
