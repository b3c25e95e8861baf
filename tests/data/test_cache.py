"""The cache of parsed and generated data: what is written, reused and replaced."""

import importlib
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.caches import TRAIN, blocks_of, forbid, leftovers, open_blocks
from helpers.splits import assert_types, make_split, rows

from slide.data import DataError, SparseDataset, Split
from slide.data import cache as cache_module
from slide.data.dataset import Block
from slide.sparse import CSR, Pattern

# slide.data.sources.xmc is the function; this is the module of the same name.
xmc_module = importlib.import_module("slide.data.sources.xmc")


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


def resident_bytes():
    """Of this process, memory maps that were read included; 0 where that is not told."""
    path = Path("/proc/self/statm")
    return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if path.exists() else 0
