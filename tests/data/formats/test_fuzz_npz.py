"""Damaged matrices: the reader names the file in an error, or reads as the naive one."""

from itertools import count

import numpy as np
import pytest
from helpers import damage, datafiles, job, naive_rows
from helpers.damage import BINARY, REPEAT
from helpers.naive_matrix import naive_matrix
from scipy import sparse

from slide.data import DataError
from slide.data.row_files import read_npz_blocks

SIZES = {"train_samples": 12, "test_samples": 4, "num_features": 60, "num_labels": 40}


def assert_matrices_agree(features, labels):
    """Whether the reader takes two files for matrices; if so, these are the naive reader's."""
    message = None
    try:
        (block,) = read_npz_blocks(features, labels)
    except DataError as error:
        message = str(error)
    if message is not None:
        assert message.startswith((f"{features}: ", f"{labels}: "))
        return False
    rows = naive_rows.to_lists(block.features, block.labels)
    (found, shape), (flags, label_shape) = naive_matrix(features), naive_matrix(labels)
    assert shape[0] == label_shape[0] == len(rows)
    kept = {(i, j): v for i, (_, pairs) in enumerate(rows) for j, v in pairs}
    assert kept == {place: value for place, value in found.items() if value != 0}
    assert {(i, j) for i, (own, _) in enumerate(rows) for j in own} == {
        place for place, value in flags.items() if value != 0
    }
    return True


@pytest.fixture
def matrices(tmp_path):
    """Paths of two matrices, and both in memory."""
    data = job.make_data(tmp_path, **SIZES)
    features, labels = datafiles.matrices(data.train)
    return [tmp_path / "x.npz", tmp_path / "y.npz"], [features, labels]


def save(path, matrix, compressed=True):
    with path.open("wb") as file:
        sparse.save_npz(file, matrix, compressed=compressed)


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia"])
def test_damaged_archives(matrices, kind):
    paths, pair = matrices
    accepted = count()
    repeat = int(100 * REPEAT)
    for seed in range(repeat):
        rng = damage.rng_of(kind, seed)
        for path, matrix in zip(paths, pair, strict=True):
            save(path, matrix.asformat(kind), compressed=rng.random() < 0.5)
        assert seed or assert_matrices_agree(*paths)
        path = rng.choice(paths)
        path.write_bytes(damage.damage(rng, path.read_bytes(), BINARY))
        if assert_matrices_agree(*paths):
            next(accepted)
    # What is not checked in an archive: times, attributes, names of systems.
    assert next(accepted) < repeat / 2


def change_entry(rng, arrays, name):
    array = arrays[name]
    other = [0, 1, -1, 11, 12, 59, 60, 2**31 - 1]
    if array.dtype.kind == "f":
        other = [0, np.nan, np.inf, -1e300, 1e39, 1e-60]
    elif array.dtype.itemsize == 8 and name != "offsets":
        other += [2**31, 2**32, -(2**63), 2**63 - 1]
    if array.size:
        value = rng.choice([*other, array.flat[rng.randrange(array.size)]])
        with np.errstate(all="ignore"):
            array.flat[rng.randrange(array.size)] = np.array(value).astype(array.dtype)


def change_length(rng, arrays, name):
    array = arrays[name]
    if array.ndim:
        arrays[name] = array[:-1] if rng.random() < 0.5 else np.concatenate([array, array[-1:]])


def change_type(rng, arrays, name):
    if name == "offsets":
        return  # SciPy cuts them to 32 bits.
    kinds = ["i8", "u8", "i2"] if arrays[name].dtype.kind in "iu" else ["f8", "f2", "c8", "U", "?"]
    with np.errstate(all="ignore"):
        arrays[name] = arrays[name].astype(rng.choice(kinds))


def change_shape(rng, arrays, name):
    array = arrays[name]
    arrays[name] = rng.choice([array.reshape(1, -1), array.reshape(-1, 1), array.ravel(), array.T])


def remove(rng, arrays, name):
    del arrays[name]


def exchange(rng, arrays, name):
    # SciPy makes integers of indices, whatever they are.
    kind = arrays[name].dtype.kind
    other = rng.choice([other for other in arrays if arrays[other].dtype.kind == kind])
    arrays[name], arrays[other] = arrays[other], arrays[name]


CHANGES = [change_entry] * 8 + [change_length, change_length, change_type, change_shape]
CHANGES += [remove, exchange]


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr", "dia"])
def test_archives_of_unsound_arrays(matrices, kind):
    paths, pair = matrices
    accepted = {True: 0, False: 0}
    for seed in range(int(100 * REPEAT)):
        rng = damage.rng_of(kind, seed)
        for path, matrix in zip(paths, pair, strict=True):
            save(path, matrix.asformat(kind), compressed=False)
        path = rng.choice(paths)
        with np.load(path) as file:
            arrays = {name: file[name].copy() for name in file}
        for _ in range(rng.choice([1, 1, 2])):
            name = rng.choice([name for name in arrays if name != "format"])
            rng.choice(CHANGES)(rng, arrays, name)
        with path.open("wb") as file:
            np.savez(file, **arrays)
        accepted[assert_matrices_agree(*paths)] += 1
    assert min(accepted.values()) > 0
