"""Rows that the tests of the estimator learn from."""

import numpy as np
import pytest
import scipy.sparse
from helpers import job
from threadpoolctl import threadpool_limits

from slide import SlideClassifier, runtime

FEW = {"epochs": 2, "hidden": 16, "random_state": 0}


@pytest.fixture(scope="module", autouse=True)
def one_thread_of_libraries():
    """Threads of BLAS and OpenMP that wait for each other take time for nothing."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """300 rows of 60 features, and their labels, a matrix of 80 columns."""
    data = job.make_data(tmp_path_factory.mktemp("data"), train_samples=300)
    x, y = data.train.features, data.train.labels
    X = scipy.sparse.csr_array((x.values, x.indices, x.indptr), (300, 60))
    ones = np.ones(len(y.indices), int)
    return X, scipy.sparse.csr_array((ones, y.indices, y.indptr), (300, 80))


@pytest.fixture(scope="module")
def fitted(rows):
    """A classifier of these rows."""
    runtime.set_threads(1)
    return SlideClassifier(**FEW).fit(*rows)
