"""Bytes of FAISS, also such that somebody edited: an index as before, or a sentence."""

import faiss
import numpy as np
import pytest
import torch
from helpers.damage import BINARY, damage, rng_of

from slide import FaissProposer
from slide.ranking.scorers.neighbours import DenseSearch
from slide.search import faiss_index
from slide.sparse import as_csr
from slide.utils.array_checks import Stored

ROWS, WIDTH, MANY = 300, 6, 3_000
KINDS = {
    "flat": ("flat", ROWS),
    "lists": ("ivf", MANY),
    "few lists": ("ivf", MANY),
    "ids of flat": ("ids of flat", ROWS),
    "ids of hnsw": ("ids of hnsw", ROWS),
    "no rows": ("ids of flat", 0),
}
# Numbers of an index: 4 or 8 bytes.
NUMBERS = [-1, 0, 1, 2, 31, 1 << 20, 2**31 - 1, -(2**31), 2**40, 2**62, -(2**63)]


@pytest.fixture(autouse=True)
def _deterministic():
    faiss.omp_set_num_threads(1)


def rows_of(count):
    return np.random.default_rng(0).standard_normal((count, WIDTH), np.float32)


def make(case):
    """An index as slide makes them, of FAISS alone."""
    kind, count = KINDS[case]
    rows, inner = rows_of(count), faiss.METRIC_INNER_PRODUCT
    index = faiss.IndexFlatIP(WIDTH)
    if kind == "ivf":
        index = faiss.IndexIVFFlat(index, WIDTH, 40, inner)
        index.train(rows)
        rows = np.repeat(rows[:5], 20, 0) if case == "few lists" else rows
    if "hnsw" in kind:
        index = faiss.IndexHNSWFlat(WIDTH, 16, inner)
        index.hnsw.efConstruction = 40
    if "ids" in kind:
        index = faiss.IndexIDMap(index)
        index.add_with_ids(rows, np.arange(count)[::-1])
    else:
        index.add(rows)
    return faiss.serialize_index(index)


@pytest.mark.parametrize("case", KINDS)
def test_the_same_index(case):
    found = faiss_index(data := make(case), (KINDS[case][0],), WIDTH, MANY)
    assert faiss.serialize_index(found).tobytes() == data.tobytes()


@pytest.mark.parametrize("case", KINDS)
def test_edited_bytes_are_refused_or_harmless(case):
    """What is read has ids of rows, finite numbers, and the size of the bytes."""
    kind, most = KINDS[case][0], MANY
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
            found = faiss_index(np.frombuffer(bytes(edited), np.uint8), (kind,), WIDTH, most, 10)
        except ValueError:
            refused += 1
            continue
        scores, ids = found.search(queries, 5)
        assert ids.max() < most
        assert np.isfinite(scores[ids >= 0]).all()
    assert refused > 30


def test_states_and_models_with_bytes_of_another_index():
    data = make("lists")
    with pytest.raises(ValueError, match="FaissProposer is damaged: in its index, it is another"):
        FaissProposer(WIDTH, MANY).load_state_dict({"rebuilds": 1, "index": data})
    with pytest.raises(ValueError, match=r"it names rows that are not in \[0, 7\)|another index"):
        FaissProposer(WIDTH - 1, 7).load_state_dict({"rebuilds": 1, "index": data})
    search = DenseSearch(as_csr(torch.from_numpy(rows_of(ROWS))), WIDTH, weighted=False)
    arrays = {f"search.{name}": each for name, each in search.state().items()}
    arrays["feature_weights"] = search.weights
    assert DenseSearch.restored(Stored({}, arrays), WIDTH, ROWS, False).index.ntotal == ROWS
    for count in (ROWS - 1, ROWS + 1):
        with pytest.raises(ValueError, match=rf"search.index must (be an index of|hold) {count}"):
            DenseSearch.restored(Stored({}, arrays), WIDTH, count, False)
