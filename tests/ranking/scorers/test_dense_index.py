"""Saved dense rows: parts of an index of FAISS, and its bytes in models of earlier versions."""

from typing import Any

import faiss
import numpy as np
import pytest
import torch
from helpers.damage import BINARY, damage, rng_of
from helpers.limits import more_memory

from slide.ranking.scorers.neighbours import DenseSearch
from slide.sparse import as_csr
from slide.utils.array_checks import Stored

WIDTH = 6
SIZES = {"flat": 300, "lists": 3000}
# What reading may take beside some copies of the bytes.
MEMORY = 16 << 20


@pytest.fixture(autouse=True)
def _deterministic():
    faiss.omp_set_num_threads(1)


def rows_of(count):
    return as_csr(torch.from_numpy(np.random.default_rng(0).standard_normal((count, WIDTH))))


def saved(case):
    """A search, and its arrays."""
    search = DenseSearch(rows_of(SIZES[case]), WIDTH, weighted=True)
    arrays = {f"search.{name}": each for name, each in search.state().items()}
    return search, arrays | {"feature_weights": search.weights}


def opened(case, arrays):
    stored = Stored({}, {f"neighbours.{name}": each for name, each in arrays.items()})
    return DenseSearch.restored(stored.part("neighbours", {}), WIDTH, SIZES[case])


def as_bytes(arrays, index: Any):
    """The arrays of an earlier version."""
    kept = {name: arrays[name] for name in ("search.means", "feature_weights")}
    return kept | {"search.index": faiss.serialize_index(index)}


@pytest.mark.parametrize("case", SIZES)
def test_opened_parts_and_bytes_are_the_same_index(case):
    search, arrays = saved(case)
    assert hasattr(search.index, "nprobe") == (case == "lists")
    expected = faiss.serialize_index(search.index).tobytes()
    for own in (arrays, as_bytes(arrays, search.index)):
        found = opened(case, own)
        assert faiss.serialize_index(found.index).tobytes() == expected
        for one, other in zip(
            *(each.nearest(rows_of(9), 5) for each in (found, search)), strict=True
        ):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("case", "name", "value", "must"),
    [
        ("flat", "rows", 0.9, "rows must have a length of 1.01 at most"),
        ("lists", "centres", np.nan, "centres must hold finite numbers only"),
        ("lists", "lists", 10**6, r"lists must lie in \[0, 75\]"),
        ("lists", "lists", None, r"lists must be \(3000\) int32"),
    ],
)
def test_parts_that_are_edited(case, name, value, must):
    arrays = {key: np.array(each) for key, each in saved(case)[1].items()}
    arrays[f"search.{name}"][:2] = 0 if value is None else value
    if value is None:
        arrays[f"search.{name}"] = arrays[f"search.{name}"][:-1]
    with pytest.raises(ValueError, match=f"search.{must}"):
        opened(case, arrays)


def test_bytes_of_another_index():
    _, arrays = saved("flat")
    flat, rows = faiss.IndexFlatIP(WIDTH), np.zeros((300, WIDTH), np.float32)
    graph, named = faiss.IndexHNSWFlat(WIDTH, 16), faiss.IndexIDMap(flat)
    graph.add(rows)
    named.add_with_ids(rows, np.arange(300))
    for index in (graph, named, saved("lists")[0].index):
        with pytest.raises(
            ValueError, match=r"search\.index must be an index that slide made of 300"
        ):
            opened("flat", as_bytes(arrays, index))


@pytest.mark.parametrize("case", SIZES)
def test_edited_bytes_are_refused_or_harmless(case):
    """What is read has each row once, finite numbers, and the size of the bytes."""
    search, arrays = saved(case)
    arrays, refused = as_bytes(arrays, search.index), 0
    data = arrays["search.index"].tobytes()
    for number in range(50):
        edited = np.frombuffer(damage(rng_of(case, number), data, BINARY), np.uint8).copy()
        try:
            with more_memory(MEMORY + 12 * len(data)):
                found = opened(case, arrays | {"search.index": edited})
        except ValueError:
            refused += 1
            continue
        scores, ids = found.nearest(rows_of(9), 5)
        assert ids.max() < SIZES[case]
        assert np.isfinite(scores).all()
    assert refused > 10
