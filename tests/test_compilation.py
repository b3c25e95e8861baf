"""The clock stands still while kernels compile."""

import time

import numpy as np
import pytest
from numba import config, njit

from slide import compilation


@pytest.mark.skipif(bool(config.DISABLE_JIT), reason="nothing is compiled")
def test_compilation_is_no_time(request):
    told = []
    watch = compilation._WATCH
    request.addfinalizer(lambda before=watch.told: setattr(watch, "told", before))
    watch.told = False
    compilation.tell_first(lambda: told.append(True))
    request.addfinalizer(lambda: compilation.tell_first(None))

    @njit
    def total(array):
        found = 0.0
        for value in array:
            found += value
        return found

    before, real, begin = (
        compilation.compile_seconds(),
        time.perf_counter(),
        compilation.clock(),
    )
    total(np.ones(3))
    real, seen = time.perf_counter() - real, compilation.clock() - begin
    compiled = compilation.compile_seconds() - before
    assert 0 < compiled < real
    assert seen == pytest.approx(real - compiled, abs=0.01)
    total(np.ones(4))
    assert compilation.compile_seconds() - before == compiled, "it compiled twice"
    total(np.ones(3, np.int64))
    assert compilation.compile_seconds() - before > compiled
    assert told == [True], "the sentence comes once"
