"""Answers of models: labels and scores."""

import numpy as np


def assert_same(found, expected):
    """They are equal bit by bit."""
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
