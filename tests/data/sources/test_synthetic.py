"""Generated data: its counts, its distribution, and that there is something to learn from it."""

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import datafiles
from helpers.splits import assert_same_rows, assert_types

from slide.data import synthetic
from slide.sparse import check_labels
from slide.utils import resources

SMALL = {
    "num_features": 1000,
    "num_labels": 2000,
    "train_samples": 6000,
    "test_samples": 500,
    "nonzeros": 30,
    "labels_per_row": 4.5,
    "seed": 3,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return synthetic(cache=tmp_path_factory.mktemp("cache"), **SMALL)


def matrices(split):
    """Copies, for scipy sorts rows in place."""
    return [matrix.copy() for matrix in datafiles.matrices(split)]


def test_counts_and_types(small):
    assert (len(small.train), len(small.test)) == (6000, 500)
    assert (small.num_features, small.num_labels) == (1000, 2000)
    for split in (small.train, small.test):
        assert_types(split)
        for columns, bound in ((split.features, 1000), (split.labels, 2000)):
            check_labels("columns", columns, len(split), bound)  # None is twice in a row.
            assert np.diff(columns.indptr).min() >= 1
    assert len(small.train.features.indices) / 6000 == pytest.approx(30, rel=0.01)
    assert len(small.train.labels.indices) / 6000 == pytest.approx(4.5, rel=0.01)


def test_rows_are_positive_normalised_and_distinct(small):
    values = small.train.features.values
    assert values.min() > 0
    x, _ = matrices(small.train)
    np.testing.assert_allclose(x.power(2).sum(axis=1), 1, rtol=1e-5)
    rows = {x[i].indices.tobytes() + x[i].data.tobytes() for i in range(len(small.train))}
    assert len(rows) == len(small.train)


def test_popularity_has_the_exponent_asked_for(tmp_path):
    # With one label a row, counts follow the law itself.
    data = synthetic(
        cache=tmp_path, num_features=200, num_labels=1000, train_samples=20_000, test_samples=0,
        nonzeros=2, labels_per_row=1, popularity=0.8,
    )  # fmt: skip
    assert len(data.test) == 0
    counts = np.sort(np.bincount(data.train.labels.indices, minlength=1000))[::-1]
    rank = np.arange(1, 1001)
    slope = np.polyfit(np.log(rank[3:300]), np.log(counts[3:300]), 1)[0]
    assert slope == pytest.approx(-0.8, abs=0.08)


def test_seed_determines_the_rows(small, tmp_path):
    again = synthetic(cache=tmp_path, **SMALL)
    assert_same_rows(small, again)
    other = synthetic(cache=tmp_path, **{**SMALL, "seed": 4})
    assert other.train.labels.indices[:100].tolist() != again.train.labels.indices[:100].tolist()


def test_train_and_test_rows_differ_but_their_distribution_does_not(small):
    train, test = (
        np.bincount(split.labels.indices, minlength=2000) / len(split)
        for split in (small.train, small.test)
    )
    top = np.argsort(train)[-50:]
    assert test[top].sum() == pytest.approx(train[top].sum(), rel=0.15)
    assert small.train.labels.indices[:50].tolist() != small.test.labels.indices[:50].tolist()


def test_there_is_something_to_learn(small):
    x, y = matrices(small.train)
    x_test, y_test = matrices(small.test)
    popular = np.asarray(y.sum(axis=0)).argmax()
    majority = y_test[:, [popular]].mean()
    centroids = (y.T @ x).tocsr()
    norms = np.sqrt(np.asarray(centroids.power(2).sum(axis=1)).ravel())
    centroids = sp.diags(1 / np.maximum(norms, 1e-9)) @ centroids
    best = (x_test @ centroids.T).toarray().argmax(axis=1)
    precision = np.asarray(y_test[np.arange(len(best)), best]).mean()
    assert majority < 0.1
    assert 0.5 < precision < 0.98


@pytest.mark.parametrize("size", [1, 7])
def test_tiny_sizes(tmp_path, size):
    data = synthetic(
        cache=tmp_path, num_features=size, num_labels=size, train_samples=50, test_samples=5,
        nonzeros=size, labels_per_row=1,
    )  # fmt: skip
    for columns in (data.train.features, data.train.labels):
        check_labels("columns", columns, 50, size)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_features", 0),
        ("train_samples", -1),
        ("nonzeros", 0.5),
        ("nonzeros", 1001),
        ("labels_per_row", 0),
        ("feature_popularity", 9),
        ("noise", 1),
    ],
)
def test_parameters_out_of_range_are_named(tmp_path, name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .* not {value}"):
        synthetic(cache=tmp_path, **{**SMALL, name: value})


def test_labels_beyond_memory_are_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(resources, "free_memory", lambda: 1 << 30)
    with pytest.raises(ValueError, match=r"num_labels=20,000,000 take 1\.4 GiB at least, and 1\.0"):
        synthetic(cache=tmp_path, **{**SMALL, "num_labels": 20_000_000})
