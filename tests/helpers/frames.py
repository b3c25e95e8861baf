"""A stand-in for the frames and columns of pandas, as far as slide reads them."""

import numpy as np


class Column:
    """Values that know their shape and become an array."""

    def __init__(self, values):
        self.values = values
        self.shape, self.ndim = values.shape, values.ndim

    def __len__(self):
        return len(self.values)

    def __getitem__(self, rows):
        return self.values[rows]

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)

    def to_numpy(self):
        return self.values


class Frame(Column):
    """A table ``(R, N)`` with a name for each column."""

    def __init__(self, values, columns):
        super().__init__(np.asarray(values))
        self.columns = list(columns)

    def __iter__(self):
        return iter(self.columns)


class Series(Column):
    """A column ``(R,)`` of a table."""

    def __init__(self, values):
        array = np.empty(len(values), object)
        array[:] = values
        super().__init__(array)

    def __iter__(self):
        return iter(self.values)
