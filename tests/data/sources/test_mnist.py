"""Images out of idx files, and everything that can be wrong with such files."""

import gzip
from importlib import import_module

import numpy as np
import pytest
from helpers.idx_files import idx, make_images, write
from helpers.matrices import to_dense
from helpers.splits import assert_types

from slide.data import DataError, mnist
from slide.data.sources.mnist import IDX_FILES

NAMES = [name for pair in IDX_FILES.values() for name in pair]


def read(folder, **arguments):
    return mnist(name="mnist", root=folder, cache=folder / "cache", **arguments)


def dense(split):
    return to_dense(split.features, 784).numpy()


@pytest.mark.parametrize("chunk", [4, 4096])
@pytest.mark.parametrize("packed", [True, False])
def test_images_are_read_as_they_were_written(tmp_path, packed, chunk, monkeypatch):
    monkeypatch.setattr(import_module("slide.data.sources.mnist"), "IMAGE_CHUNK", chunk)
    made = write(tmp_path, rows=(11, 5), packed=packed)
    data = read(tmp_path)
    assert (data.num_features, data.num_labels) == (784, 10)
    for split, (images, labels) in made.items():
        found = getattr(data, split)
        np.testing.assert_array_equal(dense(found), images.reshape(-1, 784) / np.float32(255))
        assert (found.features.values > 0).all()
        assert found.labels.indices.tolist() == labels.tolist()
        assert found.labels.indptr.tolist() == list(range(len(images) + 1))
        assert_types(found)


def test_a_packed_file_may_be_called_plain_and_the_other_way_round(tmp_path):
    made = write(tmp_path)
    (tmp_path / f"{NAMES[0]}.gz").rename(tmp_path / NAMES[0])
    plain = gzip.decompress((tmp_path / f"{NAMES[2]}.gz").read_bytes())
    (tmp_path / f"{NAMES[2]}.gz").write_bytes(plain)
    data = read(tmp_path)
    for split, (images, _) in made.items():
        np.testing.assert_array_equal(dense(getattr(data, split)) > 0, images.reshape(-1, 784) > 0)


def bad(folder, name, data):
    """The message for a set in which one file holds ``data``."""
    write(folder, packed=False)
    (folder / name).write_bytes(data)
    with pytest.raises(DataError) as error:
        read(folder)
    assert not list((folder / "cache").glob("*/meta.json")), "nothing wrong may be kept"
    return str(error.value)


IMAGES, LABELS = make_images(7, seed=7)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        (NAMES[0], b"", "it is cut off"),
        (NAMES[1], idx(LABELS)[:-1], "it is cut off"),
        (NAMES[0], gzip.compress(idx(IMAGES))[:-9], "it is cut off"),
        (NAMES[1], idx(LABELS) + b"\0", "it is longer than its 7 rows"),
        (NAMES[1], idx(IMAGES), "it begins with 00 00 08 03 instead of 00 00 08 01"),
        (NAMES[0], idx(IMAGES[:, :14]), r"its rows are of shape (14, 28) instead of (28, 28)"),
        (NAMES[0], idx(IMAGES[:0]), "it must have 1 to 2739137 images, not 0"),
        (NAMES[1], idx(LABELS[:5]), "it has 5 labels for the 7 images of"),
        (NAMES[0], idx(IMAGES, shape=(2**32 - 1, 28, 28)), "it must have 1 to 2739137 images"),
        (NAMES[1], idx(np.array([0, 1, 2, 3, 10, 5, 6])), "label 10 of image 4 is not in [0, 10)"),
    ],
)
def test_bad_files(tmp_path, name, data, message):
    said = bad(tmp_path, name, data)
    assert said.startswith(f"{tmp_path / name}: {message}")


def test_damaged_gzip(tmp_path):
    data = bytearray(gzip.compress(idx(IMAGES)))
    for at in (12, len(data) // 2, len(data) - 6):
        damaged = data.copy()
        damaged[at] ^= 0xFF
        said = bad(tmp_path, NAMES[0], bytes(damaged))
        assert said.startswith(f"{tmp_path / NAMES[0]}: "), at


def test_missing_files_are_fetched_and_checked(tmp_path):
    checked = []

    def fetch(root, check):
        write(root)
        check(root)
        checked.append(root)
        (root / f"{NAMES[1]}.gz").write_bytes(b"other")
        with pytest.raises(DataError, match="begins with"):
            check(root)
        write(root)

    data = read(tmp_path / "new", fetch=fetch)
    assert (len(data.train), len(data.test)) == (7, 3)
    read(tmp_path / "new", fetch=fetch)
    assert checked == [tmp_path / "new"]
