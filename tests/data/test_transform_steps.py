"""The steps of a transform, on arrays in memory."""

import math

import numpy as np
from helpers.matrices import make_csr

from slide.data import row_transform
from slide.sparse import CSR


def test_the_formula_of_tf_idf():
    """4 rows; features in 4, 1 and 0 of them: as smoothed by common toolkits."""
    features = CSR(
        np.array([0, 2, 3, 4, 6]),
        np.array([0, 1, 0, 0, 0, 2], np.int32),
        np.array([1, 3, 2, 1, 4, 0], np.float32),
    )
    counts = row_transform.row_counts(features, 3)
    assert counts.tolist() == [4, 1, 0], "a feature of value 0 is not there"
    weights = row_transform.tf_idf_weights(counts, 4)
    np.testing.assert_allclose(weights, [1, 1 + math.log(2.5), 1 + math.log(5)])
    values = row_transform.tf_idf_values(features, weights).values
    np.testing.assert_allclose(values, [1, 3 * weights[1], 2, 1, 4, 0], rtol=1e-6)
    assert values.dtype == np.float32


def test_rows_of_length_one():
    features = CSR(
        np.array([0, 2, 2, 4, 5]),
        np.array([3, 1, 0, 2, 5], np.int32),
        np.array([3, -4, 0, 0, 1e-30], np.float32),
    )
    made = row_transform.normalize_rows(features)
    np.testing.assert_allclose(made.values, [0.6, -0.8, 0, 0, 1], rtol=1e-6)
    assert made.indices is features.indices
    huge = row_transform.normalize_rows(features._replace(values=np.full(5, 3e38, np.float32)))
    np.testing.assert_allclose(huge.values, [0.5**0.5] * 4 + [1], rtol=1e-6)


def test_hashing_keeps_inner_products_on_average():
    """E <hash(x), hash(y)> = <x, y> (Weinberger et al. 2009, lemma 2)."""
    rng = np.random.default_rng(1)
    rows = make_csr(rng, [30, 30], 50)
    dense = np.zeros((2, 50))
    for i in range(2):
        at = slice(*rows.indptr[i : i + 2])
        dense[i, rows.indices[at]] = rows.values[at]
    products = []
    for seed in range(3000):
        made = row_transform.hash_features(rows, *row_transform.hash_columns(50, 8, seed), 8)
        folded = np.zeros((2, 8))
        for i in range(2):
            at = slice(*made.indptr[i : i + 2])
            folded[i, made.indices[at]] = made.values[at]
        products.append(folded[0] @ folded[1])
    error = np.std(products) / math.sqrt(len(products))
    assert abs(np.mean(products) - dense[0] @ dense[1]) < 4 * error
    assert error < 0.2


def test_hashed_columns_and_signs_are_uniform_and_independent():
    columns, signs = row_transform.hash_columns(200_000, 10)
    assert (columns.dtype, signs.dtype) == (np.int32, np.float32)
    cells = np.bincount(2 * columns + (signs > 0), minlength=20)
    statistic = ((cells - 10_000) ** 2 / 10_000).sum()
    assert statistic < 43.8, "the 0.999 quantile of chi2 with 19 degrees of freedom"
    again = row_transform.hash_columns(200_000, 10, seed=1)[0]
    assert 0.09 < (columns == again).mean() < 0.11
    prefix = row_transform.hash_columns(10, 10)[0]
    np.testing.assert_array_equal(prefix, columns[:10])


def test_features_that_cancel_are_left_out():
    columns = np.array([4, 4, 0], np.int32)
    signs = np.array([1, -1, 1], np.float32)
    features = CSR(
        np.array([0, 2, 5]),
        np.array([0, 1, 2, 1, 0], np.int32),
        np.array([2, 2, 5, 1, 3], np.float32),
    )
    made = row_transform.hash_features(features, columns, signs, 6)
    assert made.indptr.tolist() == [0, 0, 2]
    assert made.indices.tolist() == [0, 4]
    assert made.values.tolist() == [5, 2]
    assert [array.dtype for array in made] == ["i8", "i4", "f4"]
