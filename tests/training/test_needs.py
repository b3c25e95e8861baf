"""The memory that a run needs, by its sizes, against arrays as they are made."""

import tracemalloc
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from helpers import job
from helpers.samplers import faiss_sampler, lsh_sampler

from slide import FullSampler, RowSparseAdam, SimHash, SlideNetwork
from slide.data import Batches, Split, validation_split
from slide.nn import ActiveLoss
from slide.ranking import EnsembleRanker
from slide.ranking.dense_search import DenseSearch
from slide.search import RowIndex
from slide.sparse import CSR, Pattern
from slide.training import needs
from slide.training.needs import (
    RankerSizes,
    RunSizes,
    TableSizes,
    memory_needs,
    peak_memory,
)

pytestmark = pytest.mark.usefixtures("one_thread")
SIZES = RunSizes(
    rows=300,
    features=70,
    labels=90,
    entries=3000,
    targets=900,
    hidden=(16, 12),
    batch=32,
    active=40,
)
WEIGHTS = 4 * (70 * 16 + 16 * 12 + 12 * 90 + 16 + 12 + 90)


@pytest.fixture
def data(tmp_path):
    sizes = {"num_features": 70, "num_labels": 90, "train_samples": 300}
    return job.make_data(tmp_path, **sizes)


def bytes_of(tensors):
    return sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor) and t.dim())


@pytest.mark.parametrize("beta1", [0.0, 0.9])
@pytest.mark.parametrize(("rowwise", "last"), [(False, False), (True, False), (False, True)])
def test_weights_and_moments(data, rowwise, last, beta1):
    network = SlideNetwork(70, [16, 12], 90, FullSampler)
    options = {"betas": (beta1, 0.9), "rowwise": rowwise, "correct_skipped": last}
    optimizer = RowSparseAdam(network.parameters(), **options)
    batch = Batches(data.train, 300, 0).batch(0, 0)
    network.output.loss(network.encode(batch.features), batch.labels, ActiveLoss("bce"))[
        0
    ].backward()
    optimizer.step()
    needs = memory_needs(SIZES._replace(first_moment=beta1 > 0, rowwise=rowwise, last_steps=last))
    assert needs["weights"] == bytes_of(network.parameters()) == WEIGHTS
    kept = sum(bytes_of(state.values()) for state in optimizer.state.values())
    assert needs["moments"] == kept


def test_rows_that_are_divided(data):
    parts = validation_split(data.train, 0)
    kept = sum(a.nbytes for part in parts for each in (part.features, part.labels) for a in each)
    sizes = SIZES._replace(
        entries=len(data.train.features.indices), targets=len(data.train.labels.indices)
    )
    needs = memory_needs(sizes)["rows"] - 8 * sizes.rows  # Without the order of an epoch.
    assert needs == pytest.approx(kept, rel=0.01)
    assert memory_needs(sizes._replace(copied=False))["rows"] == 8 * sizes.rows


@pytest.mark.kernels_only  # Plain torch has other tables.
def test_tables():
    weight = torch.randn(5000, 12)
    family = partial(SimHash, hashes_per_table=6, num_tables=10)
    sampler = lsh_sampler(12, 5000, family=family, active=64)
    sampler.update(weight, None, torch.randn(4, 12))
    proposer = sampler.proposer
    kept = proposer.codes.nbytes + sum(array.nbytes for array in proposer.tables.buckets)
    sizes = SIZES._replace(labels=5000, tables=TableSizes(10, 64, 128), batch=1)
    needs = memory_needs(sizes)["index of the sampler"]
    # At a rebuild there are the codes of the rebuild before, too.
    assert needs == pytest.approx(kept + proposer.codes.nbytes, rel=0.1)


def test_rows_in_an_index_of_faiss():
    sampler = faiss_sampler(12, 3000, kind="flat", active=64)
    sampler.update(torch.randn(3000, 12), None, torch.randn(4, 12))
    kept = 3000 * 13 * 4
    needs = memory_needs(SIZES._replace(labels=3000, vectors=True))["index of the sampler"]
    assert 2 * kept <= needs <= 4 * kept


def test_index_for_prediction():
    index = RowIndex(torch.randn(20_000, 32), torch.zeros(20_000))
    sizes = SIZES._replace(labels=20_000, hidden=(32,), row_index=True, batch=1, active=2)
    # A step needs less here, so the end decides.
    assert memory_needs(sizes)["index for prediction"] == pytest.approx(index.nbytes, rel=0.5)


def test_near_rows_among_dense_rows():
    values = np.random.default_rng(0).random(5000 * 70, dtype=np.float32)
    columns = np.tile(np.arange(70, dtype=np.int32), 5000)
    search = DenseSearch(CSR(np.arange(5001) * 70, columns, values), 70, False)
    kept, beside = needs._near_rows(SIZES._replace(rows=5000, entries=len(values)))
    assert kept == pytest.approx(search.state()["index"].nbytes, rel=0.1)
    assert beside > 2 * kept
    fifth = SIZES._replace(rows=10_000, entries=140_000)
    assert needs._near_rows(fifth)[0] == 4 * 70 * 10_000, "lists would be cut off"
    assert needs._near_rows(fifth._replace(rows=5000, entries=70_000))[0] == 12 * 70_000


def test_copies_for_checkpoints():
    without, needs = memory_needs(SIZES), memory_needs(SIZES._replace(checkpoints=True))
    assert needs["copy for checkpoints"] == needs["weights"] + needs["moments"]
    assert "copy for checkpoints" not in without


def test_of_phases_the_larger_one_counts():
    sizes = SIZES._replace(ranker=RankerSizes(180, 50, SIZES.features, SIZES.labels))
    assert "re-ranker" in memory_needs(sizes)
    large = sizes._replace(hidden=(100_000,), checkpoints=True)
    assert "re-ranker" not in memory_needs(large)
    assert peak_memory(large) == peak_memory(large._replace(ranker=None))


@pytest.mark.parametrize("number", ["rows", "features", "labels", "batch", "active"])
def test_more_of_anything_never_needs_less(number):
    for more in (
        {},
        {"shared": False},
        {"ranker": RankerSizes(180, 50, SIZES.features, SIZES.labels)},
        {"row_index": True},
    ):
        sizes = SIZES._replace(**more)
        larger = sizes._replace(**{number: 10 * getattr(sizes, number)})
        assert peak_memory(larger) >= peak_memory(sizes)


def peak_and_needs(every, candidates):
    """Bytes that training a re-ranker takes, and what is foretold. NumPy tells Python of arrays."""
    train, held = validation_split(every, 0)
    network = SlideNetwork(every.num_features, [4], every.num_labels, FullSampler)
    # Compiles, which takes memory; some rows are enough for that.
    EnsembleRanker().fit(network, train.slice(0, len(train) // 10), held.slice(0, len(held) // 10))
    ranker = EnsembleRanker()
    tracemalloc.start()
    ranker.fit(network, train, held, every=every)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    own = RankerSizes(candidates, 50, every.num_features, every.num_labels, every.kind)
    sizes = SIZES._replace(
        rows=len(every),
        features=every.num_features,
        labels=every.num_labels,
        entries=len(every.features.indices),
        targets=len(every.labels.indices),
        ranker=own,
        hidden=(4,),
    )
    other = sizes._replace(ranker=own._replace(kind="other"))
    return peak, *(memory_needs(each)["re-ranker"] for each in (sizes, other))


@pytest.mark.compiled_only
@pytest.mark.parametrize(
    ("rows", "labels", "nonzeros"), [(4000, 2000, 40), (30_000, 2000, 10), (30_000, 9000, 20)]
)
def test_the_re_ranker(tmp_path, rows, labels, nonzeros):
    data = job.make_data(
        tmp_path,
        train_samples=rows,
        num_features=3000,
        num_labels=labels,
        nonzeros=nonzeros,
        labels_per_row=4,
    )
    peak, needs, _ = peak_and_needs(replace(data.train, kind="other"), 180)
    assert needs == pytest.approx(peak, rel=0.25)


@pytest.mark.compiled_only
def test_the_re_ranker_of_a_graph():
    """Answers of a question are some of twenty that go with its relation."""
    rng, rows, labels = np.random.default_rng(0), 40_000, 3000
    asked = rng.permutation(3000 * 40)[:rows]
    features = np.stack([asked // 40, 3000 + asked % 40], axis=1).astype(np.int32)
    answers = 20 * (asked % 40)[:, None] + np.argsort(rng.random((rows, 20)), axis=1)[:, :4]
    bounds = np.arange(rows + 1)
    x = CSR(2 * bounds, features.ravel(), np.ones(2 * rows, np.float32))
    y = Pattern(4 * bounds, answers.astype(np.int32).ravel())
    peak, needs, others = peak_and_needs(Split(x, y, 3040, labels, kind="graph"), 110)
    assert needs == pytest.approx(peak, rel=0.25)
    assert others < needs


@pytest.mark.compiled_only
def test_the_re_ranker_of_items():
    """Regressions are in the place of classifiers."""
    rng, rows, items = np.random.default_rng(0), 20_000, 3000
    # The twenty items of a row, one of each shelf; half of them are seen before the others.
    own = (150 * np.arange(20) + rng.integers(0, 150, (rows, 20))).astype(np.int32)
    own = np.take_along_axis(own, np.argsort(rng.random((rows, 20)), axis=1), axis=1)
    own = np.sort(own.reshape(rows, 2, 10), axis=2).reshape(rows, 20)
    bounds = 10 * np.arange(rows + 1)
    x = CSR(bounds, own[:, :10].ravel(), np.ones(10 * rows, np.float32))
    y = Pattern(bounds, own[:, 10:].ravel())
    peak, needs, _ = peak_and_needs(Split(x, y, items, items, kind="items"), 110)
    assert needs == pytest.approx(peak, rel=0.25)
