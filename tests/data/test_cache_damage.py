"""Cached arrays that were damaged on the disk: noticed when they are opened, and written again."""

import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.caches import blocks_of, forbid, leftovers, open_blocks
from helpers.splits import make_split, rows

from slide.data import cache as cache_module
from slide.data import synthetic
from slide.data.cache import ARRAYS
from slide.data.dataset import Block


def empty(path):
    path.write_bytes(b"")


def no_entries(path):
    np.save(path, np.load(path)[:0])


def cut(path):
    path.write_bytes(path.read_bytes()[:-3])


def entry(value, place=1):
    def damage(path):
        array = np.load(path)
        array[place] = value
        np.save(path, array)

    return damage


DAMAGES = [(array, damage) for array in ARRAYS for damage in (empty, no_entries, cut)]
DAMAGES += [(f"{kind}_indices", entry(i)) for kind in ("feature", "label") for i in (-1, 2**30)]
DAMAGES += [(f"{kind}_indptr", entry(i)) for kind in ("feature", "label") for i in (-1, 2**40)]
DAMAGES += [("feature_values", entry(x)) for x in (np.nan, np.inf, -np.inf)]
DAMAGES += [(f"{kind}_indptr", entry(1, 0)) for kind in ("feature", "label")]
DAMAGES += [("feature_values", entry(0.125)), ("label_indices", entry(29))]


@pytest.mark.parametrize("part", ["train", "test"])
@pytest.mark.parametrize(("array", "damage"), DAMAGES)
def test_a_damaged_array_is_written_again(tmp_path, array, damage, part):
    split = make_split(5)
    open_blocks(tmp_path, blocks_of(split), state=1)
    (folder,) = tmp_path.glob(f"*/{part}")
    damage(folder / f"{array}.npy")
    found = open_blocks(tmp_path, blocks_of(split), state=1)
    assert rows(found.train) == rows(split)
    assert rows(open_blocks(tmp_path, forbid, state=1).train) == rows(split)
    assert leftovers(tmp_path) == []


def test_copies_of_a_cache_are_read_and_found_good(tmp_path):
    split = make_split(5)
    open_blocks(tmp_path / "first", blocks_of(split), state=1)
    shutil.copytree(tmp_path / "first", tmp_path / "second", copy_function=shutil.copyfile)
    assert rows(open_blocks(tmp_path / "second", forbid, state=1).train) == rows(split)


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
    with pytest.raises(OSError, match=r"needs 1,000,000.0 GB, and .* GB are free") as caught:
        open_blocks(tmp_path, forbid, state=1, size=10**15)
    assert caught.value.errno == errno.ENOSPC
    assert leftovers(tmp_path) == []
    open_blocks(tmp_path, blocks_of(make_split()), state=1, size=100)


def test_generated_rows_ask_for_space_first(tmp_path):
    with pytest.raises(OSError, match=r"the cache of .* needs .* GB, and"):
        synthetic(cache=tmp_path, train_samples=99999999999)
    for name in ("num_features", "num_labels"):
        with pytest.raises(
            ValueError, match=rf"{name} must be in \[1, 2147483647\], not 2147483648"
        ):
            synthetic(cache=tmp_path, **{name: 2**31})


@pytest.mark.parametrize("short", ["indices", "values"])
def test_blocks_whose_parts_do_not_fit_are_no_cache(tmp_path, short):
    """A fault of a reader: its checksums are right."""
    split = make_split(5)
    less = split.features._replace(**{short: getattr(split.features, short)[:-1]})
    with pytest.raises(OSError, match="the cache of made cannot be read back") as caught:
        open_blocks(tmp_path, lambda: [Block(less, split.labels)], state=1)
    cause = caught.value.__cause__
    assert isinstance(cause, ValueError)
    assert caught.value.strerror.endswith(f"cannot be read back: {cause}")


def test_a_cache_that_is_gone_before_it_is_read_back(tmp_path, monkeypatch):
    install = cache_module._install

    def without(folder, remove):
        def call(temporary, final):
            install(temporary, final)
            remove(final)

        monkeypatch.setattr(cache_module, "_install", call)
        with pytest.raises(OSError, match="cannot be read back") as caught:
            open_blocks(folder, blocks_of(make_split(5)), state=1)
        return caught.value.strerror.partition(" read back: ")[2]

    said = without(tmp_path / "a", lambda folder: (folder / "train/label_indices.npy").unlink())
    assert said.endswith("label_indices.npy: No such file or directory")
    said = without(tmp_path / "b", shutil.rmtree)
    assert said == "another process removed or replaced it"
