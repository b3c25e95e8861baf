"""The cache of parsed and generated data: reuse, replacement, and what may go wrong."""

import errno
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from slide.data import DataError, SparseDataset, Split, xmc
from slide.data import cache as cache_module
from slide.data.cache import cached
from slide.data.dataset import Block
from slide.sparse import CSR, Pattern

ROOT = Path(__file__).parents[2]
# slide.data.sources.xmc is the function; this is the module of the same name.
xmc_module = importlib.import_module("slide.data.sources.xmc")

TRAIN = "3 5 4\n1,3 0:0.5 4:2\n 2:1\n2 1:1\n"
TEST = "2 5 4\n0 3:1\n1 0:1\n"


def make_split(num_rows=23, seed=0):
    """Rows of two features and one label."""
    rng = np.random.default_rng(seed)
    indices = rng.integers(0, 50, 2 * num_rows, np.int32)
    features = CSR(2 * np.arange(num_rows + 1), indices, np.arange(len(indices), dtype=np.float32))
    labels = Pattern(np.arange(num_rows + 1), rng.integers(0, 30, num_rows, np.int32))
    return Split(features, labels, 50, 30)


def rows(split):
    """Feature indices, values and labels of each row, as lists."""
    features, labels = split.features, split.labels
    parts = (features.indptr, features.indices), (features.indptr, features.values), labels
    lists = [[array[a:b].tolist() for a, b in pairwise(indptr)] for indptr, array in parts]
    return list(zip(*lists, strict=True))


def assert_types(split):
    arrays = [*split.features, *split.labels]
    assert [a.dtype for a in arrays] == ["i8", "i4", "f4", "i8", "i4"]
    assert all(type(a) is np.ndarray and a.flags.c_contiguous for a in arrays)


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "train.txt").write_text(TRAIN)
    (folder / "test.txt").write_text(TEST)
    return folder


@pytest.fixture
def open_set(root, tmp_path):
    def open_set(**options):
        return xmc(**{"name": "tiny", "root": root, "cache": tmp_path / "cache", **options})

    return open_set


def forbid(*_, **__):
    raise AssertionError("the files are parsed again")


def leftovers(cache):
    return sorted(path.name for path in cache.iterdir() if path.suffix == ".tmp")


def test_files_are_opened_as_memory_maps(open_set, tmp_path):
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
    assert open_set().train.features.values.tolist() == [0.5, 2.0, 1.0, 1.0]


def test_second_opening_parses_nothing(open_set, monkeypatch):
    first = open_set()
    monkeypatch.setattr(xmc_module, "read_text_blocks", forbid)
    assert rows(open_set().train) == rows(first.train)
    with pytest.raises(AssertionError, match="parsed again"):
        open_set(lenient=True)  # other rows, in general


def test_root_is_left_alone(open_set, root):
    open_set()
    assert sorted(path.name for path in root.iterdir()) == ["test.txt", "train.txt"]


@pytest.mark.parametrize("text", [TRAIN.replace("0.5", "0.7"), "1 5 4\n1 1:1\n"])
def test_changed_file_replaces_the_cache(open_set, root, tmp_path, text):
    open_set()
    before = (root / "train.txt").stat()
    (root / "train.txt").write_text(text)
    os.utime(root / "train.txt", ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert len(open_set().train) == int(text[0])
    assert open_set().train.features.values[0] == np.float32(0.7 if len(text) > 20 else 1)
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 1


def test_other_format_is_replaced(open_set, monkeypatch):
    open_set()
    monkeypatch.setattr(cache_module, "CACHE_VERSION", cache_module.CACHE_VERSION + 1)
    open_set()
    monkeypatch.setattr(xmc_module, "read_text_blocks", forbid)
    open_set()


@pytest.mark.parametrize("damage", ["truncate", "remove", "meta", "type"])
def test_damaged_cache_is_replaced(open_set, tmp_path, damage):
    expected = rows(open_set().train)
    (file,) = (tmp_path / "cache").glob("*/train/feature_values.npy")
    if damage == "truncate":
        file.write_bytes(file.read_bytes()[:-4])
    elif damage == "remove":
        file.unlink()
    elif damage == "type":
        np.save(file, np.load(file).astype(np.float64))
    else:
        (file.parent.parent / "meta.json").write_text("{")
    assert rows(open_set().train) == expected
    assert leftovers(tmp_path / "cache") == []


def test_failed_parsing_leaves_nothing(open_set, root, tmp_path):
    (root / "test.txt").write_text("2 5 4\n0 3:1\n1 9:1\n")
    with pytest.raises(DataError, match=r"test.txt:3: feature 9"):
        open_set()
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def blocks_of(split):
    return lambda: [Block(split.features, split.labels)]


def open_blocks(cache, train, state, **options):
    test = make_split(4, seed=9)
    given = {"num_features": 50, "num_labels": 30, "train": train, "test": blocks_of(test)}
    options = given | options
    return cached(cache, name="made", key={"made": 1}, state={"state": state}, **options)


def failing(error):
    def blocks():
        yield Block(*blocks_of(make_split(5))()[0])
        raise error

    return blocks


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("broken")])
def test_interrupted_writing_leaves_the_old_cache(tmp_path, error):
    split = make_split()
    open_blocks(tmp_path, blocks_of(split), state=1)
    with pytest.raises(type(error)):
        open_blocks(tmp_path, failing(error), state=2)
    assert leftovers(tmp_path) == []
    assert rows(open_blocks(tmp_path, forbid, state=1).train) == rows(split)


def test_full_disk_is_told_and_leaves_the_old_cache(tmp_path):
    split = make_split()
    open_blocks(tmp_path, blocks_of(split), state=1)
    with pytest.raises(OSError, match="no space left for the cache of made") as caught:
        open_blocks(tmp_path, failing(OSError(errno.ENOSPC, "full")), state=2)
    assert caught.value.errno == errno.ENOSPC
    assert rows(open_blocks(tmp_path, forbid, state=1).train) == rows(split)


def test_folders_of_killed_processes_are_removed(tmp_path):
    open_blocks(tmp_path, blocks_of(make_split()), state=1)
    (meta,) = tmp_path.glob("*/meta.json")
    left = tmp_path / f"{meta.parent.name}.{'0' * 32}.tmp"
    (left / "train").mkdir(parents=True)
    open_blocks(tmp_path, blocks_of(make_split()), state=2)
    assert not left.exists()


def test_blocks_of_any_size_are_joined(tmp_path):
    split = make_split()
    pieces = [split.slice(a, b) for a, b in ((0, 0), (0, 7), (7, 8), (8, 23))]
    dataset = open_blocks(tmp_path, lambda: [Block(p.features, p.labels) for p in pieces], state=1)
    assert rows(dataset.train) == rows(split)


def test_a_split_without_any_rows(tmp_path):
    dataset = open_blocks(tmp_path, list, state=1)
    assert len(dataset.train) == 0
    assert_types(dataset.train)


def test_a_set_knows_where_it_lies_and_what_it_was_made_from(tmp_path):
    data = open_blocks(tmp_path, blocks_of(make_split()), state=1)
    assert data.folder.parent == tmp_path
    assert data.source == {"key": {"made": 1}, "state": {"state": 1}}
    meta = json.loads((data.folder / "meta.json").read_text())
    assert meta["source"] == data.source
    again = open_blocks(tmp_path, blocks_of(make_split()), state=2)
    assert again.folder == data.folder
    changed = json.loads((data.folder / "meta.json").read_text())
    assert changed["source_hash"] != meta["source_hash"]
    assert len(changed["source_hash"]) == 64


def test_further_arrays_and_counts_that_are_known_at_the_end(tmp_path):
    done = []

    def train():
        yield Block(*blocks_of(make_split())()[0])
        done.append("rows")

    def more(**options):
        return open_blocks(tmp_path, train, state=1, num_labels=lambda: 31 * len(done), **options)

    data = more(extra=lambda: {"numbers": np.arange(3 * len(done), dtype=np.int32)})
    assert (data.num_labels, data.train.num_labels, data.num_features) == (31, 31, 50)
    numbers = np.load(data.folder / "numbers.npy")
    assert (numbers.dtype, numbers.tolist()) == (np.int32, [0, 1, 2])
    assert more(extra=forbid).num_labels == 31
    assert done == ["rows"]


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


def test_threads_write_once(tmp_path):
    calls = []
    barrier = threading.Barrier(4)
    split = make_split()

    def slow():
        calls.append(1)
        time.sleep(0.1)
        return blocks_of(split)()

    def work(_):
        barrier.wait()
        return rows(open_blocks(tmp_path, slow, state=1).train)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [rows(split)] * 4
    assert len(calls) == 1


def test_without_locks_all_still_get_a_whole_cache(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    barrier = threading.Barrier(3)
    split = make_split()

    def together():
        barrier.wait()
        return blocks_of(split)()

    with ThreadPoolExecutor(3) as pool:
        found = pool.map(lambda _: open_blocks(tmp_path, together, state=1), range(3))
        assert [rows(dataset.train) for dataset in found] == [rows(split)] * 3
    assert leftovers(tmp_path) == []


def test_two_processes_at_once(open_set, root, tmp_path):
    text = "20000 5 4\n" + "1,3 0:0.5 4:2\n" * 20000
    (root / "train.txt").write_text(text)
    code = (
        "import sys; from slide.data import xmc;"
        "data = xmc(name='tiny', root=sys.argv[1], cache=sys.argv[2]);"
        "sys.stdout.write(str(data.train.features.values.sum()))"
    )
    command = [sys.executable, "-c", code, str(root), str(tmp_path / "cache")]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) for _ in range(2)]
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    assert outputs == [b"50000.0"] * 2
    assert leftovers(tmp_path / "cache") == []
    assert len(open_set().train) == 20000


def test_opening_a_large_cache_reads_next_to_nothing(tmp_path):
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


def resident_bytes():
    """Of this process, memory maps that were read included; 0 where that is not told."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.exists() else 0


# What the functions say


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


def test_lenient_set_keeps_the_number_of_lines_left_out(open_set, root, tmp_path, caplog):
    (root / "train.txt").write_text(TRAIN.replace("4:2", "4:x"))
    dataset = open_set(lenient=True, train_samples=3)
    assert len(dataset.train) == 2
    (meta,) = (tmp_path / "cache").glob("*/meta.json")
    assert json.loads(meta.read_text())["train"]["skipped"] == 1
    assert "1 malformed lines were left out" in caplog.text
