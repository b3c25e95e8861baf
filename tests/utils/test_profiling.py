"""The clock stands still while kernels compile."""

import time

import numpy as np
import pytest
from numba import config, njit

from slide.utils import profiling


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="nothing is compiled")
def test_compilation_is_no_time(request):
    told = []
    watch = profiling._WATCH
    request.addfinalizer(lambda before=watch.told: setattr(watch, "told", before))
    watch.told = False
    profiling.tell_first(lambda: told.append(True))
    request.addfinalizer(lambda: profiling.tell_first(None))

    @njit
    def total(array):
        found = 0.0
        for value in array:
            found += value
        return found

    before, real, begin = (profiling.compile_seconds(), time.perf_counter(), profiling.clock())
    total(np.ones(3))
    real, seen = time.perf_counter() - real, profiling.clock() - begin
    compiled = profiling.compile_seconds() - before
    assert 0 < compiled < real
    assert seen == pytest.approx(real - compiled, abs=0.01)
    total(np.ones(4))
    assert profiling.compile_seconds() - before == compiled, "it compiled twice"
    total(np.ones(3, np.int64))
    assert profiling.compile_seconds() - before > compiled
    assert told == [True], "the sentence comes once"


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="nothing is compiled")
def test_long_compilations_are_noted_once_in_any_program(monkeypatch, capsys):
    monkeypatch.setattr(profiling, "_LONG", 0.0)
    watch = profiling._WATCH
    for name, value in (("told", False), ("_own", 0.0)):
        monkeypatch.setattr(watch, name, value)

    def one(x):
        return x

    for module, said in (("mine", ""), ("slide.ops.mine", ""), ("slide", "compiles its kernels")):
        kernel = njit(one)
        one.__module__ = module
        kernel(1)
        assert said in (found := capsys.readouterr().err)
        assert bool(found) == bool(said)
    njit(one)(1.0)
    assert capsys.readouterr().err == "", "it comes once"
