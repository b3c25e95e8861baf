"""Kernels in a process that `fork` made."""

import numpy as np

from slide.kernels import compile as compiling
from slide.kernels.compile import parallel, prange


@parallel
def _squares(values, out):
    """Each square."""
    for i in prange(len(values)):
        out[i] = values[i] * values[i]


def test_a_forked_process_runs_the_same_source(monkeypatch):
    monkeypatch.setattr(compiling, "forked", lambda: True)
    values, out = np.arange(5), np.zeros(5, np.int64)
    _squares(values, out)
    np.testing.assert_array_equal(out, values**2)
    assert _squares.__doc__ == "Each square."
