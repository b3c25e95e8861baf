"""Pairs of SciPy matrices: all kinds, and files that are not as they should be."""

import io
import re
import zipfile

import numpy as np
import pytest
from helpers.matrices import make_csr
from helpers.naive_rows import to_lists
from scipy import sparse

from slide.data import DataError, xmc
from slide.data.row_files import read_npz_blocks, read_npz_sizes

KINDS = ["csr", "csc", "coo", "bsr", "dia"]
FILES = {
    "train_file": "X.trn.npz",
    "train_labels_file": "Y.trn.npz",
    "test_file": "X.tst.npz",
    "test_labels_file": "Y.tst.npz",
}


def save(path, matrix):
    """Also without the suffix that numpy would add."""
    with open(path, "wb") as file:
        sparse.save_npz(file, matrix)


def save_arrays(path, **arrays):
    """A file that says what SciPy would not write."""
    with open(path, "wb") as file:
        np.savez(file, **arrays)


@pytest.fixture
def paths(tmp_path):
    """Two rows of four features and three labels."""
    paths = tmp_path / "x.npz", tmp_path / "y.npz"
    save(paths[0], sparse.csr_matrix([[0.0, 1, 2, 0], [0, 0, 0, 3]]))
    save(paths[1], sparse.csr_matrix([[1.0, 0, 1], [0, 0, 0]]))
    return paths


def read(features, labels):
    """A list of (labels, pairs)."""
    (block,) = read_npz_blocks(features, labels)
    assert [a.dtype for a in block.features] == [np.int64, np.int32, np.float32]
    assert [a.dtype for a in block.labels] == [np.int64, np.int32]
    assert block.skipped == 0
    return to_lists(block.features, block.labels)


def assert_fails(paths, at, message):
    with pytest.raises(DataError, match=rf"^{re.escape(str(paths[at]))}: .*{message}"):
        read(*paths)


def test_a_label_may_have_a_value_that_is_zero_in_float32(paths):
    save(paths[1], sparse.csr_array([[0, 1e-50, 1], [0, 0, 0]]))
    assert [labels for labels, _ in read(*paths)] == [[1, 2], []]


@pytest.mark.parametrize("array", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_any_kind_is_read(tmp_path, kind, array):
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((12, 8)) * (rng.random((12, 8)) < 0.3)
    flags = (rng.random((12, 6)) < 0.2) * rng.integers(-2, 3, (12, 6))
    assert (flags.any(1) == 0).any(), "no row without labels"
    wrap = sparse.csr_array if array else sparse.csr_matrix
    paths = tmp_path / "x.npz", tmp_path / "y"
    save(paths[0], wrap(dense).asformat(kind))
    save(paths[1], wrap(flags).asformat(kind))
    assert read_npz_sizes(*paths) == (12, 8, 6)
    rows = read(*paths)
    for (labels, pairs), values, own in zip(rows, dense, flags, strict=True):
        found = dict(pairs)
        assert len(found) == len(pairs)
        assert [found.get(i, 0) for i in range(8)] == values.astype(np.float32).tolist()
        assert sorted(found) == np.flatnonzero(values).tolist()
        assert sorted(labels) == np.flatnonzero(own).tolist()


def test_entries_keep_their_order(tmp_path, paths):
    features = make_csr(np.random.default_rng(0), [5, 0, 9], 20)
    order = [features.indices.tolist(), features.values.tolist()]
    matrix = sparse.csr_matrix(features[::-1], shape=(3, 20))
    assert not matrix.has_sorted_indices
    save(paths[0], matrix)
    save(paths[1], sparse.csr_matrix((3, 3)))
    (block,) = read_npz_blocks(*paths)
    assert [block.features.indices.tolist(), block.features.values.tolist()] == order


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint16, np.int64, np.float32, np.float64])
def test_values_of_any_type_become_float32(paths, dtype):
    save(paths[0], sparse.csr_matrix(np.array([[1, 0], [0, 1]], dtype)))
    save(paths[1], sparse.csr_matrix(np.array([[1, 0], [1, 1]], dtype)))
    assert read(*paths) == [([0], [(0, 1.0)]), ([0, 1], [(1, 1.0)])]


def test_stored_zeros_are_neither_features_nor_labels(paths):
    stored = sparse.csr_matrix(([0.0, 2.0, 0.0], [1, 0, 2], [0, 1, 3]), shape=(2, 3))
    for path in paths:
        save(path, stored)
    assert read(*paths) == [([], []), ([0], [(0, 2.0)])]


def test_values_that_are_not_finite_are_named(paths):
    for value, shown in ((np.nan, "nan"), (-np.inf, "-inf"), (1e39, r"1e\+39")):
        save(paths[0], sparse.csr_matrix([[0.0, 1], [0, value]]))
        assert_fails(paths, 0, rf"value {shown} at \(1, 1\) is not a finite float32")
    save(paths[0], sparse.csr_matrix([[1], [2j]]))
    assert_fails(paths, 0, "values are of type complex128, not real numbers")
    arrays = {"format": b"csr", "shape": [2, 2], "indices": [0, 1], "indptr": [0, 1, 2]}
    save_arrays(paths[0], **arrays, data=np.array(["1", "2"]))
    assert_fails(paths, 0, "values are of type <U1, not real numbers")


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "bsr"])
def test_entries_that_occur_twice_are_named(paths, at, kind):
    ones, rows, columns = [1.0] * 4, [0, 1, 1, 1], [0, 1, 0, 1]
    if kind == "coo":
        matrix = sparse.coo_matrix((ones, (rows, columns)), shape=(2, 3))
    elif kind == "csr":
        matrix = sparse.csr_matrix((ones, columns, [0, 1, 4]), shape=(2, 3))
    elif kind == "csc":
        matrix = sparse.csc_matrix((ones, [0, 1, 1, 1], [0, 2, 4, 4]), shape=(2, 3))
    else:
        matrix = sparse.bsr_matrix((np.ones((4, 1, 1)), columns, [0, 1, 4]), shape=(2, 3))
    assert matrix.nnz == 4
    save(paths[at], matrix)
    assert_fails(paths, at, r"\(1, 1\) has more than one entry")


@pytest.mark.parametrize("at", [0, 1])
def test_files_that_are_no_matrices(paths, at):
    broken = paths[at]
    whole = broken.read_bytes()
    with io.BytesIO() as buffer:
        np.save(buffer, np.eye(2))
        array = buffer.getvalue()
    for data in (b"", b"<!DOCTYPE html>", array, whole[:-40], whole[:100], b"\0" * 500):
        broken.write_bytes(data)
        assert_fails(paths, at, "cannot be read as a SciPy sparse matrix")
    save_arrays(broken, x=np.eye(2))
    assert_fails(paths, at, "cannot be read as a SciPy sparse matrix: KeyError")
    with zipfile.ZipFile(broken, "w") as archive:
        archive.writestr("shape.npy", b"no array")
    assert_fails(paths, at, "cannot be read as a SciPy sparse matrix")


def test_objects_are_not_unpickled(paths):
    class Trap:
        def __reduce__(self):
            return pytest.fail, ("unpickled",)

    trap = np.array([Trap(), Trap(), Trap()], object)
    for name in ("shape", "data", "format"):
        good = {"format": b"csr", "shape": (2, 4), "data": np.ones(3, "f4")}
        good |= {"indices": [1, 2, 3], "indptr": [0, 2, 3], name: trap}
        save_arrays(paths[0], **good)
        assert_fails(paths, 0, "cannot be read .*allow_pickle=False")


# What SciPy takes for a matrix, though it is none.
UNSOUND = {
    "column too large": {"indices": [1, 2, 4]},
    "column negative": {"indices": [1, 2, -1]},
    "pointers decrease": {"indptr": [0, 5, 3]},
    "pointers decrease to nothing": {"indptr": [0, 3, 0]},
    "pointers beyond the end": {"indptr": [0, 2, 4]},
    "pointers begin late": {"indptr": [1, 2, 3]},
    "too few pointers": {"indptr": [0, 3]},
    "too few columns": {"indices": [1, 2]},
    "shape of three": {"shape": [2, 2, 2]},
    "shape of one": {"shape": [2]},
    "no shape": {"shape": []},
    "unknown kind": {"format": b"lol"},
    "kind of another": {"format": b"coo"},
    "no kind": {"format": [1, 2]},
    "two-dimensional values": {"data": np.ones((3, 1))},
}


@pytest.mark.parametrize("kind", ["csr", "csc"])
@pytest.mark.parametrize("change", UNSOUND.values(), ids=UNSOUND)
def test_unsound_matrices_are_errors(paths, change, kind):
    shape = [2, 4] if kind == "csr" else [4, 2]
    sound = {"format": kind.encode(), "shape": shape, "data": np.ones(3, "f4")}
    sound |= {"indices": [1, 2, 3], "indptr": [0, 2, 3]}
    save(paths[1], sparse.csr_matrix((shape[0], 3)))
    save_arrays(paths[0], **sound)
    assert sum(len(pairs) for _, pairs in read(*paths)) == 3
    save_arrays(paths[0], **sound | change)
    assert_fails(paths, 0, "cannot be read as a SciPy sparse matrix")


@pytest.mark.parametrize("offset", [5, -5, 2**31 - 1, -(2**31), 2**31])
def test_diagonals_beyond_the_matrix_are_errors(paths, offset):
    arrays = {"format": b"dia", "shape": [2, 4], "data": np.ones((1, 4), "f4")}
    save_arrays(paths[0], **arrays, offsets=np.array([1]))
    assert read(*paths)[0] == ([0, 2], [(1, 1.0)])
    save_arrays(paths[0], **arrays, offsets=np.array([offset]))
    assert_fails(paths, 0, "cannot be read as a SciPy sparse matrix")


@pytest.mark.parametrize("shape", [[2**31, 4], [2, 2**31], [-1, 4], [2, -(2**63)]])
def test_sizes_beyond_int32_are_errors(paths, shape):
    arrays = {"format": b"coo", "data": [1.0], "row": [0], "col": [0]}
    save_arrays(paths[0], **arrays, shape=np.array(shape))
    assert_fails(paths, 0, "not between 0 and 2147483647")


def test_rows_of_features_and_labels_agree(paths):
    save(paths[1], sparse.csr_matrix((3, 3)))
    assert_fails(paths, 1, f"file has 3 rows, but 2 are in {paths[0]}")


@pytest.fixture
def open_set(tmp_path):
    root = tmp_path / "files"
    root.mkdir()
    for name, rows in (("trn", 3), ("tst", 2)):
        save(root / f"X.{name}.npz", sparse.csr_matrix(np.eye(rows, 5)))
        save(root / f"Y.{name}.npz", sparse.csr_matrix(np.eye(rows, 4)))

    def open_set(**options):
        places = {"name": "tiny", "root": root, "cache": tmp_path / "cache"}
        return xmc(**{"format": "npz", **places, **FILES, **options})

    return open_set


def test_a_set_of_four_files(open_set, tmp_path):
    for _ in range(2):  # the second time from the cache
        data = open_set(train_samples=3, test_samples=2, num_features=5, num_labels=4)
        assert (len(data.train), len(data.test)) == (3, 2)
        assert (data.num_features, data.num_labels) == (5, 4)
        assert to_lists(data.test.features, data.test.labels) == [
            ([0], [(0, 1.0)]),
            ([1], [(1, 1.0)]),
        ]
    save(tmp_path / "files/Y.tst.npz", sparse.csr_matrix(2 * np.eye(2, 4)[::-1]))
    assert open_set().test.labels.indices.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_samples": 4}, "X.trn.npz: file has 3 rows, but 4 were expected"),
        ({"test_samples": 3}, "X.tst.npz: file has 2 rows, but 3 were expected"),
        ({"num_features": 6}, "X.trn.npz: file has 5 features, but 6 were expected"),
        ({"num_labels": 1}, "Y.trn.npz: file has 4 labels, but 1 were expected"),
    ],
)
def test_unexpected_counts_name_both(open_set, options, message):
    for _ in range(2):
        with pytest.raises(DataError, match=message):
            open_set(**options)
        open_set()


def test_splits_must_agree(open_set, tmp_path):
    save(tmp_path / "files/Y.tst.npz", sparse.csr_matrix((2, 7)))
    with pytest.raises(DataError, match=r"Y.tst.npz: file has 7 labels, but 4 are in .*X.trn.npz"):
        open_set()


def test_missing_files_are_named(open_set, tmp_path):
    (tmp_path / "files/Y.trn.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"files/Y.trn.npz is missing. Get it. Put X.trn"):
        open_set(hint="Get it.")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_labels_file": None}, "train_labels_file must be the name of a file, not None"),
        ({"test_file": ""}, "test_file must be the name of a file, not ''"),
        ({"lenient": True}, "lenient is for text, not for format=npz"),
        ({"first_feature": 1}, "first_feature is for text, not for format=npz"),
    ],
)
def test_options_that_do_not_go_with_matrices(open_set, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        open_set(**options)
