"""A stand-in for the frames and columns of pandas, as far as slide reads them."""

import numpy as np


class Frame:
    """A table ``(R, N)`` with a name for each column."""

    ndim = 2

    def __init__(self, values, columns):
        self.values, self.columns = np.asarray(values), list(columns)
        self.shape = self.values.shape

    def __len__(self):
        return len(self.values)

    def __iter__(self):
        return iter(self.columns)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)

    def to_numpy(self):
        return self.values


class Series:
    """A column ``(R,)`` of a table."""

    ndim = 1

    def __init__(self, values):
        self.values = np.empty(len(values), object)
        self.values[:] = values
        self.shape = self.values.shape

    def __len__(self):
        return len(self.values)

    def __iter__(self):
        return iter(self.values)

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)

    def to_numpy(self):
        return self.values
