"""How kernels are compiled, and requests for memory ahead of its use."""

import importlib
import sys

import numba
import numpy as np
import pytest
from numba.core.caching import FunctionCache

from slide.ops import compile as compiling
from slide.ops.compile import parallel, prange, prefetch_entries, prefetch_row, serial


@parallel
def _squares(values, out):
    """Each square."""
    for i in prange(len(values)):
        out[i] = values[i] * values[i]


def test_a_forked_process_runs_the_same_source(monkeypatch):
    monkeypatch.setattr(compiling.this_thread, "process", 0)
    monkeypatch.setattr(compiling, "start_threads", lambda: False)
    values, out = np.arange(5), np.zeros(5, np.int64)
    _squares(values, out)
    np.testing.assert_array_equal(out, values**2)
    assert _squares.__doc__ == "Each square."


@pytest.mark.compiled_only
def test_without_a_folder_to_write_to_kernels_are_compiled_in_each_process(monkeypatch):
    monkeypatch.setattr(FunctionCache._impl_class, "_locator_classes", [])
    monkeypatch.setattr(numba.core.config, "CACHE_DIR", "")
    monkeypatch.setitem(compiling._flags, "cache", True)
    with pytest.warns(RuntimeWarning, match="Set NUMBA_CACHE_DIR") as said:
        kernels = [serial(lambda values, out: out.fill(values[1])) for _ in range(2)]
    assert len(said) == 1
    out = np.zeros(5)
    kernels[1](np.arange(5), out)
    assert out.tolist() == [1] * 5


SOURCE = """
from typing import NamedTuple
import numpy as np
from slide.ops.compile import serial

class Pair(NamedTuple):
    first: np.ndarray

@serial
def twice(pair, out):
    for i in range(len(out)):
        out[i] = 2 * pair.first[i]
"""


@pytest.mark.compiled_only
@pytest.mark.parametrize("damage", ["index", "data", "class"])
def test_kernels_that_cannot_be_read_are_compiled_anew(tmp_path, monkeypatch, damage):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "twice_of_it.py"

    def call():
        monkeypatch.delitem(sys.modules, "twice_of_it", raising=False)
        importlib.invalidate_caches()
        module = importlib.import_module("twice_of_it")
        out = np.zeros(2)
        pair = next(each for name, each in vars(module).items() if name in ("Pair", "Couple"))
        module.twice(pair(np.arange(2.0)), out)
        assert out.tolist() == [0, 2]

    path.write_text(SOURCE)
    monkeypatch.setattr(numba.core.config, "CACHE_DIR", str(tmp_path / "cache"))
    call()
    files = {kind: list(tmp_path.rglob(f"*.{kind}")) for kind in ("nbi", "nbc")}
    assert files["nbi"]
    assert files["nbc"]
    if damage == "class":
        path.write_text(SOURCE.replace("Pair", "Couple"))
    else:
        for file in files["nbi" if damage == "index" else "nbc"]:
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    call()


@pytest.mark.parametrize(("width", "dtype"), [(1, np.float32), (300, np.uint8)])
def test_requests_for_memory_change_nothing(width, dtype):
    rows = np.random.default_rng(0).integers(0, 99, (5, width)).astype(dtype)
    before = rows.copy()
    for r in range(5):
        prefetch_row(rows, r)
    for begin, end in ((0, 0), (0, 1), (width // 2, width)):
        prefetch_entries(rows[0], begin, end)
    np.testing.assert_array_equal(rows, before)
