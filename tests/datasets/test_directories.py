"""Directories and their files, from an index of contents, compared with a looped twin."""

import gzip
import re
from collections import Counter

import numpy as np
import pytest
from helpers.naive_rows import to_lists
from helpers.prepare import command, make_program

from slide.data import DataError, xmc
from slide.data.fetching import FetchError

FILES = command("files")
INDEX = FILES.contents_index


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


def test_rows_are_those_of_the_twin(tmp_path):
    contents = random_contents()
    build(tmp_path / "root", contents, min_rows=1)
    data = xmc(name="f", root=tmp_path / "root", cache=tmp_path)
    rows = naive_rows(contents)
    # Names are numbered in alphabetical order; features of the test rows alone are left out.
    labels = sorted({name for _, own in rows for name in own})
    by_labels = Counter(frozenset(own) for _, own in rows)
    tested, trained = (
        Counter(
            frozenset(labels[i] for i in own) for own, _ in to_lists(split.features, split.labels)
        )
        for split in (data.test, data.train)
    )
    assert trained == by_labels - tested
    known = sorted({x for own, names in rows if frozenset(names) in trained for x in own})
    assert data.num_features == len(known)
    found = Counter(
        (frozenset(known[i] for i, _ in pairs), frozenset(labels[i] for i in own))
        for own, pairs in to_lists(data.train.features, data.train.labels)
    )
    assert not found - Counter((frozenset(own), frozenset(names)) for own, names in rows)
    assert (data.train.features.values == 1).all()


def test_paths_and_packages_are_read():
    text = (
        "A text before the table.\nFILE                  LOCATION\n"
        "usr/bin/a b\t   admin/one,two\nusr/bin/c non-free/x/three\n\n"
    )
    directories, names = INDEX.read_contents(text.encode().splitlines(keepends=True), "index")
    assert list(names) == ["a b", "c"]
    assert list(directories) == ["usr/bin"]
    assert directories["usr/bin"].packages == {"one", "two", "three"}
    assert list(INDEX.described("usr/X11-r6", ["p"])) == [
        *(("part", "usr"), ("word", "usr"), ("part", "X11-r6"), ("word", "x11"), ("word", "r6")),
        ("package", "p"),
    ]


def test_many_labels_and_rare_features_are_left_out(tmp_path):
    lines = [f"{place}/{i} p" for place in ("a", "b", "c") for i in range(50)]
    build(tmp_path / "many", "\n".join(lines), most_labels=7, test_share=0.3)
    data = xmc(name="f", root=tmp_path / "many", cache=tmp_path)
    assert (np.diff(data.train.labels.indptr) == 7).all()
    assert data.num_labels > 7
    sizes = {}
    for least in (1, 3):
        build(tmp_path / f"least{least}", random_contents(), min_rows=least)
        data = xmc(name="f", root=tmp_path / f"least{least}", cache=tmp_path)
        sizes[least] = data.num_features
        assert np.bincount(data.train.features.indices).min() >= least
    assert sizes[3] < sizes[1]


def test_bad_lines(tmp_path):
    with pytest.raises(DataError, match="Contents:2: 'alone' is not 'path package'"):
        build(tmp_path / "bad", "a/b c\nalone\n")
    with pytest.raises(DataError, match="0 directories have files that other directories have"):
        build(tmp_path / "bad", "a/b c\na/d e\n")
    assert not list((tmp_path / "bad").iterdir())


@pytest.mark.parametrize(("name", "kind"), [("files", "Contents-deb"), ("sources", "Contents-dsc")])
def test_the_index_of_the_machine(tmp_path, monkeypatch, name, kind):
    made = command(name)
    contents = random_contents()
    share = made.prepare.keywords["test_share"]
    build(tmp_path / "expected", gzip.compress(contents.encode()), test_share=share)
    kept = tmp_path / "lists" / "main_Contents-amd64"
    kept.parent.mkdir()
    kept.write_text(contents)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    make_program(
        tmp_path,
        "apt-get",
        rf'[ "$*" = "indextargets --format \$(FILENAME) Identifier: {kind}" ] && echo {kept}',
    )
    helper = make_program(tmp_path, "apt-helper", 'test "$1" = cat-file && shift && cat "$@"')
    monkeypatch.setattr(INDEX, "READER", (helper, "cat-file"))
    made.prepare(tmp_path / "new")
    written = (tmp_path / "new" / "train.txt").read_bytes()
    assert written == (tmp_path / "expected" / "train.txt").read_bytes()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "apt-get cannot be run: No such file or directory; on a machine without apt, "),
        ("echo no >&2; exit 3", "apt-get indextargets failed: no"),
        ("", "apt has no index Contents-deb: apt-get install apt-file, then apt-get update"),
    ],
)
def test_machines_without_an_index(tmp_path, monkeypatch, script, message):
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        make_program(tmp_path, "apt-get", script)
    with pytest.raises(FetchError) as error:
        FILES.prepare(tmp_path / "new")
    assert message in str(error.value)
