"""Generated data: its counts, its distribution, and that there is something to learn from it."""

import numpy as np
import pytest
import scipy.sparse as sp

from slide.data import synthetic

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


def arrays(split):
    return [*split.features, *split.labels]


def matrices(split):
    """Features and labels as scipy matrices; copies, for scipy sorts rows in place."""
    indptr, indices, values = (array.copy() for array in split.features)
    ones = np.ones(len(split.labels.indices), np.float32)
    return (
        sp.csr_matrix((values, indices, indptr), (len(split), split.num_features)),
        sp.csr_matrix(
            (ones, split.labels.indices.copy(), split.labels.indptr), (len(split), split.num_labels)
        ),
    )


def duplicates(pattern_indptr, indices):
    rows = np.repeat(np.arange(len(pattern_indptr) - 1), np.diff(pattern_indptr))
    return len(indices) - len(np.unique(np.stack([rows, indices]), axis=1).T)


def test_counts_and_types(small):
    assert (len(small.train), len(small.test)) == (6000, 500)
    assert (small.num_features, small.num_labels) == (1000, 2000)
    for split in (small.train, small.test):
        assert [a.dtype for a in arrays(split)] == ["i8", "i4", "f4", "i8", "i4"]
        for indptr, indices, bound in (
            (split.features.indptr, split.features.indices, 1000),
            (split.labels.indptr, split.labels.indices, 2000),
        ):
            assert indptr[0] == 0
            assert indptr[-1] == len(indices)
            assert np.diff(indptr).min() >= 1
            assert indices.min() >= 0
            assert indices.max() < bound
            assert duplicates(indptr, indices) == 0
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
    for a, b in zip(arrays(small.train), arrays(again.train), strict=True):
        np.testing.assert_array_equal(a, b)
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


def test_labels_of_a_row_are_related(small):
    # Two labels that share a row share others: far more often than two labels drawn at random.
    _, y = matrices(small.train)
    together = (y.T @ y).tocsr()
    together.setdiag(0)
    together.eliminate_zeros()
    assert together.nnz / 2000**2 < 0.05


@pytest.mark.parametrize("size", [1, 7])
def test_tiny_sizes(tmp_path, size):
    data = synthetic(
        cache=tmp_path, num_features=size, num_labels=size, train_samples=50, test_samples=5,
        nonzeros=size, labels_per_row=1,
    )  # fmt: skip
    assert duplicates(data.train.features.indptr, data.train.features.indices) == 0
    assert duplicates(*data.train.labels) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_features", 0),
        ("num_labels", 0),
        ("train_samples", -1),
        ("seed", -1),
        ("nonzeros", 0.5),
        ("nonzeros", 1001),
        ("labels_per_row", 0),
        ("popularity", -1),
        ("feature_popularity", 9),
        ("noise", 1),
    ],
)
def test_parameters_out_of_range_are_named(tmp_path, name, value):
    with pytest.raises(ValueError, match=rf"^{name} must be .* not {value}"):
        synthetic(cache=tmp_path, **{**SMALL, name: value})
