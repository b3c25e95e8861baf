"""Bytes of FAISS, also such that somebody edited: an index as before, or a sentence."""

import faiss
import numpy as np
import pytest
import torch
from helpers.damage import BINARY, damage, rng_of

from slide.ranking.scorers.neighbours import DenseSearch
from slide.search.faiss_bytes import faiss_index
from slide.sparse import as_csr
from slide.utils.array_checks import Stored

ROWS, WIDTH, MANY = 300, 6, 3_000
CASES = {"flat": ROWS, "no rows": 0, "lists": MANY, "few lists": MANY}
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


@pytest.mark.parametrize("case", CASES)
def test_edited_bytes_are_refused_or_harmless(case):
    """What is read has ids of rows, finite numbers, and the size of the bytes."""
    data, refused, queries = make(case), 0, rows_of(4)
    for number in range(150):
        rng = rng_of(case, number)
        edited = bytearray(data.tobytes())
        if number % 2:  # A number of the structure, which stands at the beginning or between rows.
            at = rng.randrange(min(len(edited) - 8, rng.choice([150, len(edited)])))
            size = rng.choice([4, 8])
            now = rng.choice(NUMBERS) % (1 << 8 * size)
            edited[at : at + size] = now.to_bytes(size, "little")
        else:
            edited = damage(rng, bytes(edited), BINARY)
        try:
            found = faiss_index(np.frombuffer(bytes(edited), np.uint8), WIDTH, MANY, 10)
        except ValueError:
            refused += 1
            continue
        scores, ids = found.search(queries, 5)
        assert ids.max() < MANY
        assert np.isfinite(scores[ids >= 0]).all()
    assert refused > 30


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
