"""Files made to mislead, read with little memory: an error that names a file, or sound rows."""

import bz2
import gzip
import io
import lzma
import os
import re
import struct
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import idx_files
from helpers.caches import blocks_of, open_blocks
from helpers.damage import fuzzed
from helpers.limits import more_memory
from helpers.splits import make_split, rows
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from slide.data import documents, mnist, table, text, xmc
from slide.data.archives import unpack
from slide.data.errors import DataError
from slide.data.row_files import VARIANTS, read_npz_blocks, read_text_blocks
from slide.data.sources.mnist import read_idx_blocks
from slide.data.sources.table import read_documents
from slide.data.sources.text import read_words
from slide.data.table_files import read_table
from slide.sparse import check_pattern

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux"),
    pytest.mark.usefixtures("one_thread"),
]

MEMORY = 256 << 20
sizes = st.one_of(
    st.integers(0, 12), st.sampled_from([2**31 - 2, 2**31 - 1, 2**31, 2**32 - 1, 10**9, 10**12])
)
pairs = st.tuples(sizes, st.sampled_from(["1", "-0.5", "1e39", "nan", "1e-400", "", "9" * 50]))
lines = st.tuples(st.lists(sizes, max_size=3), st.lists(pairs, max_size=3))


def outcome(read):
    """The blocks, or what the error says."""
    try:
        with more_memory(MEMORY):
            return list(read()), None
    except DataError as error:
        return [], str(error)


def check_blocks(read, paths, features=None, labels=None):
    """Read all blocks: columns lie where they must, or an error names a file."""
    blocks, said = outcome(read)
    assert said is None or said.startswith(tuple(str(path) for path in paths))
    for block in blocks:
        for matrix, most in ((block.features, features), (block.labels, labels)):
            check_pattern("columns", matrix, None, 2**31 if most is None else most)
        assert np.isfinite(block.features.values).all()


@pytest.fixture(scope="module", autouse=True)
def _compiled(tmp_path_factory):
    """Kernels are compiled before memory is limited."""
    path = tmp_path_factory.mktemp("first") / "rows.txt"
    path.write_text("1 9 9\n1 2:1\n")
    list(read_text_blocks(path))


@pytest.mark.parametrize("format", VARIANTS)
@fuzzed(60)
@given(head=st.lists(sizes, min_size=3, max_size=3), body=st.lists(lines, max_size=4))
def test_text(tmp_path, format, head, body):
    path, told = tmp_path / "rows.txt", [" ".join(map(str, head))] if format == "xmc" else []
    for labels, entries in body:
        shown = " ".join(f"{column}:{value}" for column, value in entries)
        told.append(f"{','.join(map(str, labels))} {shown}")
    path.write_text("\n".join(told) + "\n")
    bounds = head[1:] if format == "xmc" else (None, None)
    check_blocks(lambda: read_text_blocks(path, VARIANTS[format]), [path], *bounds)


@fuzzed(60)
@given(
    count=sizes, others=sizes, side=st.sampled_from([28, 27, 2**31]), rest=st.binary(max_size=900)
)
def test_idx(tmp_path, count, others, side, rest):
    images, labels = tmp_path / "images.gz", tmp_path / "labels"
    count, others = (min(each, 2**32 - 1) for each in (count, others))
    images.write_bytes(gzip.compress(struct.pack(">IIII", 0x803, count, side, 28) + rest))
    labels.write_bytes(struct.pack(">II", 0x801, others) + rest[:3])
    check_blocks(lambda: read_idx_blocks(images, labels), [images, labels], 28 * 28, 10)


def array_bytes(array, shape):
    """An ``.npy`` file that says that it has another shape."""
    file = io.BytesIO()
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + array.tobytes()


@pytest.mark.parametrize("kind", ["csr", "csc", "coo"])
@fuzzed(60)
@given(shape=st.tuples(sizes, sizes), claimed=sizes, at=st.integers(0, 4), place=sizes)
def test_npz(tmp_path, kind, shape, claimed, at, place):
    numbers = {"csr": (shape[0] + 1, 2), "csc": (shape[1] + 1, 2), "coo": (2, 2)}[kind]
    index = np.array([0, min(place, 2**62)])
    names = ["row", "col"] if kind == "coo" else ["indices", "indptr"]
    arrays = dict.fromkeys(names, index) | {"data": np.ones(2, np.float32)}
    if kind != "coo":
        arrays["indptr"] = np.full(min(numbers[0], 20), 2)
        arrays["indptr"][0] = 0
    arrays |= {"shape": np.array([min(each, 2**62) for each in shape]), "format": np.array(kind)}
    path, other = tmp_path / "x.npz", tmp_path / "y.npz"
    for target, lies in ((path, True), (other, False)):
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for number, (name, array) in enumerate(arrays.items()):
                told = (claimed,) if lies and number == at and array.ndim else array.shape
                archive.writestr(f"{name}.npy", array_bytes(array, told))
    check_blocks(lambda: read_npz_blocks(path, other), [path, other], shape[1], shape[1])


def test_npz_of_more_rows_than_it_can_hold(tmp_path):
    """Its two billion rows would take 16 GB."""
    path = tmp_path / "x.npz"
    sparse.save_npz(path, sparse.coo_array(([1.0], ([0], [0])), (2**31 - 1, 5)))
    blocks, said = outcome(lambda: read_npz_blocks(path, None))
    size = path.stat().st_size
    assert blocks == []
    assert said == f"{path}: matrix has 2147483647 rows, more than a file of {size} bytes can hold"


def test_the_list_of_a_cache_of_any_length(tmp_path):
    """It ends with zeros, none of which are on the disk: the cache is written again."""
    split = make_split(5)
    open_blocks(tmp_path, blocks_of(split), state=1)
    (meta,) = tmp_path.glob("*/meta.json")
    os.truncate(meta, 1 << 36)
    with more_memory(MEMORY):
        found = open_blocks(tmp_path, blocks_of(split), state=1)
    assert rows(found.train) == rows(split)


# Bombs, and files of another kind than they are said to be: what is said of the file and its line.


def opened(kind, folder):
    places = {"name": "x", "root": folder, "cache": folder / "cache"}
    if kind == "documents":
        return documents(**places, train_file="rows", test_file=None, min_rows=1)
    if kind == "table":
        return table(path=folder / "rows", min_rows=1, labels="label")
    if kind == "text":
        return text(**places, file="rows", min_count=1, subsample=0)
    return xmc(**places, format=kind, train_file="rows", test_file=None)


ZEROS = gzip.compress(bytes(40 << 20), 1, mtime=0) * 10  # Names of tests are always the same.
HEAD, CSV = b"1 5 4\n", b"text,price,label\na car,3,x\n"
DEEP, DIGITS = b"[" * 100_000, b"9" * 5000
LINE, CELLS = b'{"text": "a car", "labels": [%s]}\n', b'{"text": "a", "price": %s, "label": %s}\n'
BOMBS = [
    ("xmc", HEAD + b"1 1:1\0\n", r":2: malformed feature '1:1\\x00'"),
    ("xmc", HEAD + b"1 %s:1\n" % DIGITS, r":2: feature 9{40}\.\.\. is not in"),
    ("xmc", HEAD + b"1 1:%s\n" % DIGITS, r":2: value 9+\.\.\. of feature 1 is not a finite"),
    ("xmc", HEAD.replace(b"\n", b"\r"), r":1: header '1 5 4' is|:1: header has 1 row"),
    *(("xmc", row, "svmlight, which has no header: dataset.format=svmlight reads it$")
      for row in (b" 1:1\n", b"0,2 1:0.5 # x\n", b"# made by hand\n")),
    ("svmlight", HEAD + b"1 1:1\n", ":1: malformed .*'5'.*; it looks like the header of .*=xmc$"),
    ("svmlight", ZEROS, " is compressed by gzip"),
    ("svmlight", bz2.compress(HEAD), " is compressed by bzip2"),
    ("table", lzma.compress(CSV), " is compressed by xz"),
    ("text", b"one two\0three", ": byte 7 does not belong to text in UTF-8"),
    *(("documents", LINE % b'"x"' + LINE % each, ":2: " + said)
      for each, said in ((DEEP, "lists or objects are nested too deeply"), (DIGITS, ".*4300 dig"),
                         (b"NaN", "labels must be a list"), (b'"\xff"', ".*can't decode"),
                         (b'"\0"', "Invalid control char"))),
    ("table", CSV + b"a car,3,x\0\n", ":3: byte 0x0 is no utf-8: dataset.encoding names"),
    *(("table", CSV + b"a car,%s,x\n" % each, ":3: the column price must hold numbers, not '")
      for each in (b"inf", DIGITS)),
    *(("table", CELLS % (b"3", b'"x"') + CELLS % each, ":2: " + said)
      for each, said in (((b"1e999", b'"x"'), "the column price must hold numbers, not inf"),
                         ((b"9" * 400, b'"x"'), "the column price must hold numbers, not 9{60} ."),
                         ((b"3", b"-1e999"), "-inf is no name of a label"),
                         ((b"3", b"[" * 99 + b"]" * 99), r"\[{57}\S* is no name of a label"),
                         ((b"3", DEEP), "lists or objects are nested too deeply"))),
    ("table", DEEP, ": lists or objects are nested too deeply"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "data", "said"), BOMBS)
def test_bombs_are_named(tmp_path, kind, data, said):
    (tmp_path / "rows").write_bytes(data)
    with more_memory(MEMORY), pytest.raises(DataError) as error:
        opened(kind, tmp_path)
    path, told = str(tmp_path / "rows"), str(error.value)
    assert told.startswith(path)
    assert re.search(said if said[:1] not in " :" else f"^{re.escape(path)}{said}", told)
    assert not list(tmp_path.glob("cache/*/meta.json")), "nothing wrong may be kept"


@pytest.mark.parametrize(
    "read",
    [
        *(read_text_blocks, read_documents, read_table, lambda path: read_words(path, 0, 9, False)),
        *(lambda path: read_npz_blocks(path, None), lambda path: read_idx_blocks(path, path)),
        lambda path: unpack(path, {}, "x") or [],
    ],
)
def test_a_disk_that_fails_is_no_damaged_file(read):
    path = Path("/proc/self/mem")  # At its beginning the system has no memory to read.
    with pytest.raises(OSError, match="Input/output error: '/proc/self/mem'"):
        list(read(path))


def test_images_that_expand(tmp_path):
    """A thousandfold: reading ends behind the rows that the header tells. Two streams are one."""
    made = idx_files.write(tmp_path, packed=False)
    path = tmp_path / "train-images-idx3-ubyte"
    whole = path.read_bytes()
    path.write_bytes(gzip.compress(whole[:900]) + gzip.compress(whole[900:]))
    data = mnist(name="x", root=tmp_path, cache=tmp_path / "cache")
    assert len(data.train) == len(made["train"][0])
    path.write_bytes(gzip.compress(whole) + ZEROS)
    with (
        more_memory(MEMORY),
        pytest.raises(DataError, match=f"{path}: it is longer than its 7 rows"),
    ):
        mnist(name="x", root=tmp_path, cache=tmp_path / "other")
