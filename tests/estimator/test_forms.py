"""Rows, targets and parameters in the forms that numpy, SciPy and frames give them."""

import numpy as np
import pytest
import scipy.sparse

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("form", ["coo", "csr"])
@pytest.mark.parametrize("kind", ["bool", "uint8", "int16"])
def test_repeated_counts_of_short_types_do_not_wrap_around(rows, fitted, form, kind):
    X, _ = rows
    counts = np.full(299, 1 if kind in ("bool", "uint8") else 200, kind)
    column = np.zeros(299, int)
    if form == "coo":
        many = scipy.sparse.coo_array((counts, (column, column + 7)), X.shape)
    else:
        bounds = np.append(0, np.full(300, 299))
        many = scipy.sparse.csr_array((counts, column + 7, bounds), X.shape)
    assert many.nnz == 299
    found = fitted._read_rows(many, reset=False)
    assert found.values.tolist() == [299.0 * float(counts[0])]
    assert many.dtype == kind
