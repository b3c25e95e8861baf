"""The cache: what is kept, damaged files, full disks, several threads, and bits that changed."""

import errno
import importlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from helpers.caches import TRAIN, blocks_of, forbid, leftovers, open_blocks
from helpers.damage import REPEAT, flip, rng_of
from helpers.splits import assert_types, make_split, rows

from slide.data import SparseDataset, Split, documents, synthetic, text, transform
from slide.data import cache as cache_module
from slide.data.cache import ARRAYS
from slide.data.dataset import Block
from slide.sparse import CSR, Pattern
from slide.utils.files import json_digest, write_json


def resident_bytes():
    """Of this process, memory maps that were read included; 0 where that is not told."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.exists() else 0


# slide.data.sources.xmc is the function; this is the module of the same name.
xmc_module = importlib.import_module("slide.data.sources.xmc")


def test_files_are_parsed_once_and_opened_as_memory_maps(open_set, root, monkeypatch):
    dataset = open_set()
    assert isinstance(dataset, SparseDataset)
    assert (dataset.name, dataset.num_features, dataset.num_labels) == ("tiny", 5, 4)
    assert rows(dataset.train) == [
        ([0, 4], [0.5, 2.0], [1, 3]),
        ([2], [1.0], []),
        ([1], [1.0], [2]),
    ]
    assert rows(dataset.test) == [([3], [1.0], [0]), ([0], [1.0], [1])]
    assert_types(dataset.train)
    values = dataset.train.features.values
    assert isinstance(values.base, np.memmap)
    values[:] = 7  # stays in this process
    with monkeypatch.context() as again:
        again.setattr(xmc_module, "read_text_blocks", forbid)
        assert open_set().train.features.values.tolist() == [0.5, 2.0, 1.0, 1.0]
        with pytest.raises(AssertionError, match="parsed again"):
            open_set(lenient=True)  # other rows, in general
    monkeypatch.setattr(cache_module, "CACHE_VERSION", cache_module.CACHE_VERSION + 1)
    open_set()
    monkeypatch.setattr(xmc_module, "read_text_blocks", forbid)
    open_set()
    assert sorted(path.name for path in root.iterdir()) == ["test.txt", "train.txt"]


def test_changed_file_replaces_the_cache(open_set, root, tmp_path):
    open_set()
    before = (root / "train.txt").stat()
    (root / "train.txt").write_text(TRAIN.replace("0.5", "0.7"))
    os.utime(root / "train.txt", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert open_set().train.features.values[0] == np.float32(0.7)
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 1


def test_blocks_of_any_size_are_joined(tmp_path):
    split = make_split()
    pieces = [split.slice(a, b) for a, b in ((0, 0), (0, 7), (7, 8), (8, 23))]
    dataset = open_blocks(tmp_path, lambda: [Block(p.features, p.labels) for p in pieces], state=1)
    assert rows(dataset.train) == rows(split)
    empty = open_blocks(tmp_path, list, state=2)
    assert len(empty.train) == 0
    assert_types(empty.train)


def test_propensities_are_no_part_of_the_cache(tmp_path):
    split = make_split()
    assert open_blocks(tmp_path, blocks_of(split), state=1).propensity == (0.55, 1.5)
    data = open_blocks(tmp_path, forbid, state=1, propensity=[0.6, 2])
    assert data.propensity == (0.6, 2.0)


@pytest.mark.parametrize(
    ("propensity", "message"),
    [
        (0.5, "propensity must be a list, such as .*, not 0.5"),
        ([1, 2, 3], r"propensity must be two numbers, a and b, not \[1, 2, 3\]"),
        ([-1, 2], r"propensity\[0\] must be a number of at least 0, not -1"),
        ([1, 0], r"propensity\[1\] must be a number above 0, not 0"),
    ],
)
def test_propensities_are_checked_before_anything_is_read(tmp_path, propensity, message):
    with pytest.raises(ValueError, match=message):
        open_blocks(tmp_path, forbid, state=1, propensity=propensity)


# Cached arrays that were damaged on the disk: noticed when they are opened, and written again.


def entry(value, place=1):
    def damage(path):
        array = np.load(path)
        array[place] = value
        np.save(path, array)

    return damage


def reseal(folder, **changes):
    """Write checksums that fit a cache that was edited."""
    path = folder / "meta.json"
    meta = {**json.loads(path.read_text()), **changes}
    del meta["sha256"]
    for name in meta["files"]:
        data = (folder / name).read_bytes()
        header = 10 + int.from_bytes(data[8:10], "little")
        meta["files"][name] = [len(data), header, crc32(data[:header], crc32(data[header:]))]
    write_json(path, meta | {"sha256": json_digest(meta)})


UNSOUND = [(f"{kind}_indices", entry(i)) for kind in ("feature", "label") for i in (-1, 2**30)]
UNSOUND += [(f"{kind}_indptr", entry(i)) for kind in ("feature", "label") for i in (-1, 2**40)]
UNSOUND += [(f"{kind}_indptr", entry(1, 0)) for kind in ("feature", "label")]
UNSOUND += [("feature_values", entry(x)) for x in (np.nan, np.inf, -np.inf)]
UNSOUND += [(name, lambda path: np.save(path, np.load(path)[:-1])) for name in ARRAYS]
UNSOUND += [(name, lambda path: np.save(path, np.load(path).astype("u1"))) for name in ARRAYS]


@pytest.mark.parametrize(("array", "damage"), UNSOUND)
def test_an_unsound_array_is_written_again(tmp_path, array, damage):
    """Its checksums fit, but kernels trust what a cache holds."""
    split = make_split(5)
    open_blocks(tmp_path, blocks_of(split), state=1)
    (folder,) = tmp_path.glob("*/train")
    damage(folder / f"{array}.npy")
    reseal(folder.parent)
    found = open_blocks(tmp_path, blocks_of(split), state=1)
    assert rows(found.train) == rows(split)
    assert rows(open_blocks(tmp_path, forbid, state=1).train) == rows(split)


def test_all_is_on_the_disk_before_the_folder_gets_its_name(tmp_path, monkeypatch):
    synced, sync, rename = set(), os.fsync, Path.rename

    def note(handle):
        sync(handle)
        synced.add(os.fstat(handle).st_ino)

    def checked(self, target):
        if (self / "meta.json").exists():
            files = [path for path in self.rglob("*") if path.is_file()]
            assert len(files) == 1 + 2 * len(ARRAYS)
            assert {path.stat().st_ino for path in files} <= synced
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(Path, "rename", checked)
    open_blocks(tmp_path, blocks_of(make_split(5)), state=1)
    assert tmp_path.stat().st_ino in synced


def test_a_cache_that_would_fill_the_disk(tmp_path):
    with pytest.raises(OSError, match=r"takes 1,000,000.0 GB, .* GB are free") as caught:
        open_blocks(tmp_path, forbid, state=1, size=10**15)
    assert caught.value.errno == errno.ENOSPC
    assert leftovers(tmp_path) == []
    open_blocks(tmp_path, blocks_of(make_split()), state=1, size=100)


def test_generated_rows_ask_for_space_first(tmp_path):
    with pytest.raises(OSError, match=r"the cache of .* takes .* GB, "):
        synthetic(cache=tmp_path, train_samples=99999999999)
    for name in ("num_features", "num_labels"):
        said = rf"{name} must be in \[1, 2147483647\], not 2147483648"
        with pytest.raises(ValueError, match=said):
            synthetic(cache=tmp_path, **{name: 2**31})


# The cache after errors, and with several processes or threads.


def failing(error):
    def blocks():
        yield Block(*blocks_of(make_split(5))()[0])
        raise error

    return blocks


def test_an_error_of_the_disk_names_the_file(tmp_path, monkeypatch):
    def fail(file):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=r"Input/output error: '.*/train/\w+.npy'"):
        open_blocks(tmp_path, blocks_of(make_split()), state=1)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyboardInterrupt("stop"), "stop"),
        (RuntimeError("broken"), "broken"),
        (OSError(errno.ENOSPC, "full"), "no space left for the cache of made"),
    ],
)
def test_an_error_leaves_the_old_cache(tmp_path, error, said):
    split = make_split()
    open_blocks(tmp_path, blocks_of(split), state=1)
    with pytest.raises(type(error), match=said) as caught:
        open_blocks(tmp_path, failing(error), state=2)
    assert getattr(caught.value, "errno", None) == getattr(error, "errno", None)
    assert leftovers(tmp_path) == []
    assert rows(open_blocks(tmp_path, forbid, state=1).train) == rows(split)
    # What a killed process left is removed by the next one that writes.
    (folder,) = (meta.parent for meta in tmp_path.glob("*/meta.json"))
    left = tmp_path / f"{folder.name}.{'0' * 32}.tmp" / "train"
    left.mkdir(parents=True)
    open_blocks(tmp_path, blocks_of(split), state=2)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("locks", [True, False])
def test_threads_get_a_whole_cache(tmp_path, monkeypatch, locks):
    """Which one of them writes; without locks each may."""

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    if not locks:
        monkeypatch.setattr("fcntl.flock", no_locks)
    barrier, calls, split = threading.Barrier(3), [], make_split()

    def slow():
        calls.append(1)
        if locks:
            time.sleep(0.1)
        else:
            barrier.wait()
        return blocks_of(split)()

    def work(_):
        if locks:
            barrier.wait()
        return rows(open_blocks(tmp_path, slow, state=1).train)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(work, range(3))) == [rows(split)] * 3
    assert len(calls) == (1 if locks else 3)
    assert leftovers(tmp_path) == []


# Every file of cache folders, damaged without a change of its time: noticed, and written again.


LINES = [
    {"text": f"the {animal} {verb}s {often}", "labels": [animal, verb]}
    for animal in ("cat", "dog", "owl", "fox")
    for verb in ("eat", "sleep", "run")
    for often in ("daily", "twice")
]


def texts(folder):
    """Rows of texts, and what was made from them; a cache folder for each."""
    for part in ("train", "test"):
        (folder / f"{part}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in LINES))
        os.utime(folder / f"{part}.jsonl", ns=(10**18, 10**18))
    data = documents(name="mine", root=folder, cache=folder / "cache")
    return transform(data, tf_idf=True, min_label_count=7)


def skip_grams(folder):
    """Rows with a list of words beside them."""
    (folder / "some.txt").write_text("a rose is a rose is a rose " * 9)
    os.utime(folder / "some.txt", ns=(10**18, 10**18))
    return text(name="rose", root=folder, file="some.txt", cache=folder / "cache", subsample=0)


def content(data):
    """All that a run takes from a data set."""
    found = [rows(data.train), rows(data.test), data.num_features, data.num_labels]
    found += [(step.settings(), step.num_columns) for step in data.steps]
    found += [array.tolist() for step in data.steps for array in step.arrays().values()]
    if data.vectorizer is not None:
        found += [list(data.vectorizer.terms), data.vectorizer.idf.tolist()]
        found.append(list(data.label_names))
    return found


def cut_at_random(rng, whole):
    return whole[: rng.randrange(len(whole))]


def emptied(rng, whole):
    return b""


def longer(rng, whole):
    return whole + b"0"


SOURCES = {"texts": texts, "skip_grams": skip_grams}


@pytest.mark.parametrize(
    ("source", "damage"),
    [
        *(("texts", damage) for damage in (flip, None)),
        *(("skip_grams", damage) for damage in (cut_at_random, emptied, longer)),
    ],
)
def test_each_damaged_file_is_noticed_and_written_again(tmp_path, source, damage, capsys):
    expected = content(SOURCES[source](tmp_path))
    paths = [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.suffix]
    paths = sorted(path for path in paths if path.suffix != ".lock")
    assert len(paths) == {"texts": 31, "skip_grams": 12}[source]
    kept = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}
    rng = rng_of(source)
    for path, (whole, nanoseconds) in kept.items():
        for _ in range(max(1, int(2 * REPEAT)) if damage in (flip, cut_at_random) else 1):
            capsys.readouterr()
            if damage is None:
                path.unlink()
            else:
                path.write_bytes(damage(rng, whole))
                os.utime(path, ns=(nanoseconds, nanoseconds))
            assert content(SOURCES[source](tmp_path)) == expected, path
            said = capsys.readouterr().err
            if path.name == "meta.json":
                continue  # Its white space may be damaged.
            assert f"{path}" in said
            assert path.read_bytes() == whole
            os.utime(path, ns=(nanoseconds, nanoseconds))
    assert leftovers(tmp_path / "cache") == []


@pytest.mark.parametrize("key", ["num_features", "num_labels", "format"])
def test_each_number_of_the_list_counts(tmp_path, key):
    expected = content(skip_grams(tmp_path))
    (path,) = tmp_path.glob("cache/*/meta.json")
    meta = json.loads(path.read_text())
    path.write_text(json.dumps(meta | {key: meta[key] + 1}, indent=2) + "\n")
    assert content(skip_grams(tmp_path)) == expected
    assert json.loads(path.read_text()) == meta
    for value in (None, -1, "many", 2**70, [], 1):
        reseal(path.parent, **{key: value})
        assert content(skip_grams(tmp_path)) == expected
        assert json.loads(path.read_text()) == meta


def test_an_open_cache_takes_next_to_no_memory(tmp_path):
    size = 3_000_000
    split = Split(
        CSR(np.arange(size + 1), np.zeros(size, np.int32), np.ones(size, np.float32)),
        Pattern(np.arange(size + 1), np.zeros(size, np.int32)),
        50,
        30,
    )
    open_blocks(tmp_path, blocks_of(split), state=1)
    bytes_of_arrays = sum(path.stat().st_size for path in tmp_path.glob("*/*/*.npy"))
    start, before = time.perf_counter(), resident_bytes()
    data = open_blocks(tmp_path, forbid, state=1)
    assert time.perf_counter() - start < 0.5
    assert resident_bytes() - before < bytes_of_arrays / 10
    data.train.slice(0, 10)
    assert resident_bytes() - before < bytes_of_arrays / 10


def unlisted(folder):
    """An array that no kernel must read, and that the list leaves out."""
    entry(2**30)(folder / "train/label_indices.npy")
    reseal(folder, files={})


def outside(folder):
    name = "../other.npy"
    (folder / name).write_bytes(bytes(200))
    reseal(folder, files={**json.loads((folder / "meta.json").read_text())["files"], name: None})


def planted(folder):
    np.save(folder / "label_ids.npy", np.array([2**30]))


def pipe(folder):
    (folder / "train/label_indices.npy").unlink()
    os.mkfifo(folder / "train/label_indices.npy")


@pytest.mark.parametrize("edit", [unlisted, outside, planted, pipe])
def test_the_list_of_a_cache_names_all_its_files_and_no_others(tmp_path, edit, capsys):
    split = make_split(5)
    folder = open_blocks(tmp_path, blocks_of(split), state=1).folder
    edit(folder)
    found = open_blocks(tmp_path, blocks_of(split), state=1)
    assert rows(found.train) == rows(split)
    assert "is written again" in capsys.readouterr().err
    assert not (folder / "label_ids.npy").exists()
