"""Numbers of tables as bins."""

import math

import numpy as np
import pytest
from helpers.matrices import to_dense

from slide.data import table
from slide.data.bins import bin_edges
from slide.data.columns import Columns


def binned(numbers, **more):
    """The features of a column of numbers, dense, and the column."""
    column = Columns("label", numbers=("x",), edges=bin_edges(numbers[:, None]), **more)
    return column.number_features(numbers[:, None]).toarray(), column


def test_bins_hold_equal_shares_and_coarse_ones_eight_of_them():
    numbers = np.random.default_rng(0).lognormal(0, 3, 6400)
    found, column = binned(numbers)
    fine, coarse = found[:, :128], found[:, 128:]
    np.testing.assert_array_equal((fine > 0).sum(0), 50)
    assert coarse.shape[1] == 16
    np.testing.assert_array_equal(coarse, fine.reshape(-1, 16, 8).sum(2))
    order = np.argsort(numbers)
    assert (np.diff(fine.argmax(1)[order]) >= 0).all()
    low, high = column.edges[0][0], column.edges[0][-1]
    names = column.number_names()
    assert names[0] == f"column:x up to {low!r}"
    assert names[127] == f"column:x above {high!r}"
    assert len(names) == len(set(names)) == found.shape[1]


def test_few_different_numbers_have_a_bin_each_and_gaps_none():
    numbers = np.array([3, 0, 0, math.nan, 1, 3, 0])
    found, column = binned(numbers)
    assert column.edges == ((0.0, 1.0),)
    expected = np.array(
        [[0, 0, 1], [1, 0, 0], [1, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    )
    np.testing.assert_array_equal(found > 0, expected)
    beyond = column.number_features(np.array([[-5.0], [0.5], [99.0]])).toarray()
    np.testing.assert_array_equal(beyond.argmax(1), [0, 1, 2])
    assert binned(np.array([7.0, 7.0]))[1].number_names() == ["column:x any"]
    assert binned(np.array([math.nan]))[1].edges == ((),)
    close = 1.7e9 + np.arange(100) / 64
    names = binned(close)[1].number_names()
    assert len(set(names)) == len(names) == 100 + 13


@pytest.mark.parametrize("different", range(1, 131))
def test_names_of_bins_are_distinct(different):
    """With 9, 17, ... 121 different numbers the last fine bin is a coarse one, too."""
    numbers = np.arange(260.0) % different
    found, column = binned(numbers)
    names = column.number_names()
    assert len(set(names)) == len(names) == found.shape[1]
    if different == 9:
        assert names[-3:] == ["column:x above 7", "column:x up to 7", "column:x above 7 (2)"]


def test_a_table_whose_bins_read_the_same_is_trained_on(tmp_path):
    """The run ended without a model, after all training."""
    rows = [
        {"x": n % 9, "x above 7": n % 17 + 7, "label": "odd" if n % 2 else "even"}
        for n in range(400)
    ]
    data = table(path=rows, cache=None)
    names = list(data.feature_names or ())
    assert len(set(names)) == len(names) == data.num_features


def test_of_many_columns_each_number_is_scaled():
    numbers = np.random.default_rng(0).normal(1e3, 5, (50, 33))
    numbers[:, 1], numbers[3, 2], numbers[:, 3] = 7, math.nan, math.nan
    names = tuple(f"x{n}" for n in range(33))
    column = Columns("label", numbers=names).fitted(numbers)
    column = Columns.restored(column.settings())
    found = column.number_features(numbers).toarray()
    expected = (numbers[:, 4:] - numbers[:, 4:].mean(0)) / numbers[:, 4:].std(0)
    np.testing.assert_allclose(found[:, 4:], expected, rtol=1e-4, atol=1e-5)
    assert (found[:, [1, 3]] == 0).all()
    assert found[3, 2] == 0
    assert column.number_names() == [f"column:{name}" for name in names]
    few = Columns("label", numbers=names[:32]).fitted(numbers[:, :32])
    assert (len(few.edges), few.means) == (32, ())


@pytest.mark.parametrize(
    "edges", [[[1.0, 0.0]], [[0.0, 0.0]], [[1.0], [2.0]], [], [1.0], [["a"]], [[1e999]], None]
)
def test_damaged_edges(edges):
    _, column = binned(np.arange(5.0))
    assert Columns.restored(column.settings()) == column
    with pytest.raises(ValueError, match=r"the list of columns is damaged: .*(edges|columns)"):
        Columns.restored(column.settings() | {"edges": edges})


def test_quantiles_are_of_all_training_rows(monkeypatch):
    monkeypatch.setattr("slide.data.sources.table.SAMPLED", 200)
    rows = [{"x": float(n), "label": "odd" if n % 2 else "even"} for n in range(2000)]
    data = table(path=rows, test_share=0.5)
    assert data.columns is not None
    (edges,) = data.columns.edges
    assert np.abs(np.array(edges) - np.linspace(0, 2000, len(edges) + 2)[1:-1]).max() < 250
    dense = to_dense(data.test.features, data.num_features)
    assert (dense > 0).sum(1).tolist() == [2] * len(data.test)
