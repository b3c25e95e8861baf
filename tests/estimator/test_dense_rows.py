"""Rows of a few measurements: long enough training, and known rows get their own labels."""

import numpy as np
import pytest
from sklearn.datasets import load_iris, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

from slide import SlideClassifier


# Raw columns of wine differ in size by a factor of a thousand.
@pytest.mark.parametrize(
    ("load", "scale"), [(load_iris, np.asarray), (load_wine, np.asarray), (load_wine, scale)]
)
def test_small_dense_data(load, scale):
    X, y = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y, half = scale(X[order]).astype(np.float32), y[order], len(X) // 2
    found = SlideClassifier(random_state=0).fit(X[:half], y[:half])
    linear = LogisticRegression(max_iter=5000).fit(X[:half], y[:half])
    assert found.score(X[half:], y[half:]) > linear.score(X[half:], y[half:]) - 0.1
    assert found.score(X[:half], y[:half]) > 0.85
    assert found.summary_["steps"] >= 512
