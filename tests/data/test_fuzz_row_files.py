"""Files of rows that are damaged at random: an error that names the place, or the rows."""

import itertools
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from helpers import corpus, damage, datafiles, job, naive_rows
from helpers.damage import REPEAT, TEXTUAL
from scipy import sparse

from slide.data import DataError, xmc
from slide.data.row_files import VARIANTS, read_npz_blocks

DATA = Path(os.environ.get("SLIDE_DATA", "nowhere"))  # real sets, where there are any
REAL = [name for name in ("bibtex", "delicious", "debian") if (DATA / name / "train.txt").is_file()]
REAL_ROWS = 12
SIZES = {"train_samples": 12, "test_samples": 4, "num_features": 60, "num_labels": 40}


def naive_matrix(path):
    """``{(row, column): value}`` and the shape; raises whatever there is to raise."""
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        kind = arrays["format"].item()
        kind = kind if isinstance(kind, str) else kind.decode()
        num_rows, num_columns = arrays["shape"].tolist()
        data = arrays["data"]
        if kind == "dia":
            offsets = arrays["offsets"].tolist()
            columns = range(min(data.shape[1], num_columns))
            entries = [
                (j - offset, j, data[i, j])
                for i, offset in enumerate(offsets)
                for j in columns
                if 0 <= j - offset < num_rows and data[i, j] != 0
            ]
        elif kind == "coo":
            positions = arrays["coords"] if "coords" in arrays else (arrays["row"], arrays["col"])
            entries = list(zip(*(p.tolist() for p in positions), data, strict=True))
        else:
            entries = list(naive_compressed(kind, data, arrays["indices"], arrays["indptr"]))
            lines = num_columns if kind == "csc" else num_rows
            block = data.shape[1] if kind == "bsr" else 1
            assert lines == block * (len(arrays["indptr"]) - 1)
    assert data.dtype.kind in "biuf"
    found = {}
    for row, column, value in entries:
        assert (row, column) not in found
        assert 0 <= row < num_rows
        assert 0 <= column < num_columns
        with np.errstate(over="ignore"):
            found[row, column] = np.float32(value)
        assert np.isfinite(found[row, column])
    return found, (num_rows, num_columns)


def naive_compressed(kind, data, indices, indptr):
    """(row, column, value) of each entry."""
    indices, indptr = indices.tolist(), indptr.tolist()
    assert indptr[0] == 0
    assert indptr[-1] <= len(indices) == len(data)
    for line, (begin, end) in enumerate(pairwise(indptr)):
        assert begin <= end
        for k in range(begin, end):
            if kind == "csr":
                yield line, indices[k], data[k]
            elif kind == "csc":
                yield indices[k], line, data[k]
            else:
                assert kind == "bsr"
                height, width = data.shape[1:]
                for (i, j), value in np.ndenumerate(data[k]):
                    yield height * line + i, width * indices[k] + j, value


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Whole files by variant: generated rows, and rows of real sets."""
    folder = tmp_path_factory.mktemp("texts")
    data = job.make_data(folder, **SIZES)
    texts = {}
    for format in VARIANTS:
        datafiles.write_rows(folder, data, {"format": format})
        texts[format] = [(folder / "train.txt").read_bytes()]
    for name in REAL:
        with (DATA / name / "train.txt").open("rb") as file:
            sizes = file.readline().split()
            rows = [file.readline() for _ in range(REAL_ROWS)]
        header = b"%d %s %s\n" % (REAL_ROWS, *sizes[1:])
        texts["xmc"].append(header + b"".join(rows))
    return texts


@pytest.mark.parametrize("format", VARIANTS)
def test_damaged_rows(tmp_path, texts, format):
    variant = VARIANTS[format]
    whole = 0
    repeat = int(300 * REPEAT)
    for seed in range(repeat):
        rng = damage.rng_of(format, seed)
        data = damage.damage(rng, rng.choice(texts[format]), TEXTUAL)
        options = {"lenient": rng.random() < 0.3, "chunk_bytes": rng.choice([1, 50, 1 << 20])}
        agree(tmp_path, data, format, options)
        whole += accepts(data, variant, options["lenient"])
    assert 0.1 * repeat < whole < 0.9 * repeat, "damage is too small or too great"


def agree(folder, data, format, options):
    """Fail, and keep the file if this is a longer run, unless reader and naive parser agree."""
    try:
        naive_rows.assert_agrees(folder / "data.txt", data, VARIANTS[format], **options)
    except BaseException:
        print(f"{options}: {data!r}")
        if REPEAT > 1:
            corpus.keep(format, data)
        raise


@pytest.mark.parametrize("format", VARIANTS)
def test_files_of_the_corpus(tmp_path, format):
    files = corpus.kept(format)
    accepted = [accepts(data, VARIANTS[format], False) for data in files.values()]
    assert 0 < sum(accepted) < len(files), "the corpus has files of both kinds"
    for name, data in files.items():
        for lenient, size in itertools.product((False, True), (1, 1 << 20)):
            agree(tmp_path, data, format, {"lenient": lenient, "chunk_bytes": size})
        for seed in range(int(5 * REPEAT)):
            rng = damage.rng_of(name, seed)
            damaged = damage.damage(rng, data, TEXTUAL)
            agree(tmp_path, damaged, format, {"lenient": rng.random() < 0.3, "chunk_bytes": 50})


def accepts(data, variant, lenient):
    try:
        naive_rows.parse(data, variant, lenient)
    except naive_rows.BadLine:
        return False
    return True


@pytest.mark.parametrize("format", VARIANTS)
def test_sets_with_a_damaged_file(tmp_path, texts, format):
    variant = VARIANTS[format]
    outcomes = {True: 0, False: 0}
    for seed in range(max(30, int(60 * REPEAT))):
        rng = damage.rng_of("sets", format, seed)
        contents = {"train": texts[format][0], "test": texts[format][0]}
        part = rng.choice(["train", "test"])
        contents[part] = damage.damage(rng, contents[part], TEXTUAL)
        for other, data in contents.items():
            (tmp_path / f"{other}.txt").write_bytes(data)
        same = len({sizes_of(data) for data in contents.values()}) == 1
        sound = same and accepts(contents[part], variant, False)
        outcomes[sound] += 1
        places = {"name": "x", "root": tmp_path, "cache": tmp_path / str(seed)}
        if not sound:
            # Where only the sizes disagree, the error is in the line of the one or of the other.
            place = f"{tmp_path}/({part}.txt:|test.txt:1: )"
            with pytest.raises(DataError, match=f"^{place}"):
                xmc(**places, format=format)
            assert not list(tmp_path.glob(f"{seed}/*/meta.json"))
            continue
        data = xmc(**places, format=format)
        for other, split in (("train", data.train), ("test", data.test)):
            read = naive_rows.parse(contents[other], variant)[0]
            expected = [(own, [pair for pair in pairs if pair[1]]) for own, pairs in read]
            assert naive_rows.to_lists(split.features, split.labels) == expected
    assert min(outcomes.values()) > 0


def sizes_of(data):
    """Columns in a header; of a svmlight file, the same always."""
    match = naive_rows.COUNTS.fullmatch(data.split(b"\n")[0])
    return match and (int(match[2]), int(match[3]))


# Damaged matrices: the reader names the file in an error, or reads as the naive one.


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
