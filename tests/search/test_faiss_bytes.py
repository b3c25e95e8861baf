"""Bytes of FAISS, also such that somebody edited: an index as before, or a sentence."""

from typing import Any

import faiss
import numpy as np
import pytest
import torch
from helpers.damage import BINARY, damage, rng_of
from helpers.limits import more_memory

from slide.ranking.scorers.neighbours import DenseSearch
from slide.search.faiss_bytes import faiss_index
from slide.sparse import as_csr
from slide.utils.array_checks import Stored

ROWS, WIDTH, MANY = 300, 6, 3_000
CASES = {"flat": ROWS, "no rows": 0, "lists": MANY, "few lists": MANY}
# What reading may take beside some copies of the bytes.
MEMORY = 16 << 20
# Numbers of an index: 4 or 8 bytes.
NUMBERS = [-1, 0, 1, 2, 31, 1 << 20, 2**31 - 1, -(2**31), 2**40, 2**62, -(2**63)]


@pytest.fixture(autouse=True)
def _deterministic():
    faiss.omp_set_num_threads(1)


def rows_of(count):
    return np.random.default_rng(0).standard_normal((count, WIDTH), np.float32)


def make(case):
    """An index as slide makes them, of FAISS alone."""
    rows, index = rows_of(CASES[case]), faiss.IndexFlatIP(WIDTH)
    if "lists" in case:
        index = faiss.IndexIVFFlat(index, WIDTH, 40, faiss.METRIC_INNER_PRODUCT)
        index.train(rows)
        rows = np.repeat(rows[:5], 20, 0) if case == "few lists" else rows
    index.add(rows)
    return faiss.serialize_index(index)


@pytest.mark.parametrize("case", CASES)
def test_the_same_index(case):
    found = faiss_index(data := make(case), WIDTH, MANY)
    assert faiss.serialize_index(found).tobytes() == data.tobytes()


def places_of_ids(data):
    """Where the ids of an index are in its bytes, and ids in their order."""
    index: Any = faiss.deserialize_index(data)
    places, ids = [], []
    if isinstance(index, faiss.IndexFlat):
        return places, range(index.ntotal)
    at = len(data) - index.ntotal * (index.code_size + 8)
    for number in range(index.nlist):
        size = index.invlists.list_size(number)
        at += size * index.code_size
        places += range(at, at + 8 * size, 8)
        at += 8 * size
        ids += faiss.rev_swig_ptr(index.invlists.get_ids(number), size).tolist() if size else []
    return places, ids


def edit(rng, data, ids):
    """Other bytes: a number of the structure, of an id, or anything."""
    edited, kind = bytearray(data), rng.randrange(3)
    if kind == 0:
        return damage(rng, data, BINARY)
    # Structure stands at the beginning or between rows.
    at = rng.randrange(min(len(edited) - 8, rng.choice([150, len(edited)])))
    size, now = rng.choice([4, 8]), rng.choice(NUMBERS)
    if kind == 1 and ids:
        at, size, now = rng.choice(ids), 8, rng.choice([*NUMBERS, rng.randrange(MANY)])
    edited[at : at + size] = (now % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(edited)


@pytest.mark.parametrize("case", CASES)
def test_edited_bytes_are_refused_or_harmless(case):
    """What is read has each row once, finite numbers, and the size of the bytes."""
    data, refused, queries = make(case), 0, rows_of(4)
    places, _ = places_of_ids(data)
    for number in range(200):
        edited = edit(rng_of(case, number), data.tobytes(), places)
        try:
            with more_memory(MEMORY + 12 * len(data)):
                found = faiss_index(np.frombuffer(edited, np.uint8), WIDTH, MANY, 10)
        except ValueError:
            refused += 1
            continue
        _, held = places_of_ids(faiss.serialize_index(found))
        assert len(held) == len({*held} & {*range(MANY)}) == found.ntotal
        scores, ids = found.search(queries, 5)
        assert ids.max() < MANY
        assert np.isfinite(scores[ids >= 0]).all()
    assert refused > 40


def test_a_row_that_is_named_twice():
    data = make("lists")
    (first, second, *_), _ = places_of_ids(data)
    data[first : first + 8] = data[second : second + 8]
    with pytest.raises(ValueError, match="it names a row twice"):
        faiss_index(data, WIDTH, MANY)


@pytest.mark.parametrize("row", [[np.nan] * WIDTH, [1e30] * WIDTH, [0.9, 0.9, 0, 0, 0, 0]], ids=str)
@pytest.mark.parametrize("case", ["flat", "lists"])
def test_vectors_that_are_too_long(case, row):
    """Of rows of length 1, or of the centres of their lists."""
    data: Any = faiss.deserialize_index(make(case))
    vectors: Any = faiss.downcast_index(data.quantizer) if case == "lists" else data
    faiss.rev_swig_ptr(vectors.get_xb(), WIDTH)[:] = row
    with pytest.raises(ValueError, match="vectors that are not finite, or longer than 1"):
        faiss_index(faiss.serialize_index(data), WIDTH, MANY, 1)


def test_bytes_of_another_index():
    flat, rows = faiss.IndexFlatIP(WIDTH), rows_of(ROWS)
    graph, named = faiss.IndexHNSWFlat(WIDTH, 16), faiss.IndexIDMap(flat)
    graph.add(rows)
    named.add_with_ids(rows, np.arange(ROWS))
    for data in (faiss.serialize_index(graph), faiss.serialize_index(named), make("lists")):
        with pytest.raises(ValueError, match="it is another index than slide makes"):
            faiss_index(data, WIDTH, ROWS)


def test_models_with_bytes_of_another_index():
    search = DenseSearch(as_csr(torch.from_numpy(rows_of(ROWS))), WIDTH, weighted=False)
    arrays = {f"search.{name}": each for name, each in search.state().items()}
    arrays["feature_weights"] = search.weights
    assert DenseSearch.restored(Stored({}, arrays), WIDTH, ROWS).index.ntotal == ROWS
    for count in (ROWS - 1, ROWS + 1):
        with pytest.raises(ValueError, match=rf"search.index must (be an index of|hold) {count}"):
            DenseSearch.restored(Stored({}, arrays), WIDTH, count)
