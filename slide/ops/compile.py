"""Decorators that compile kernels, with numba's flags, and requests for memory ahead of its use."""

import functools
import os
import warnings
from types import FunctionType
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba import prange as prange
from numba.core import cgutils, config
from numba.extending import intrinsic

from slide.runtime import start_threads, this_thread

# All of fast-math except "no NaN" and "no infinity", which divergence checks and -inf masks need.
FASTMATH = {"nsz", "arcp", "contract", "afn", "reassoc"}

_flags = {"cache": True, "nogil": True, "fastmath": FASTMATH, "error_model": "numpy"}


def _made(function, **more):
    """A kernel that is kept on disk, unless no folder can be written."""
    try:
        return _forgiving(njit(**_flags, **more)(function))
    except (RuntimeError, OSError):
        _flags["cache"] = False
        warnings.warn(
            "kernels are compiled again in each process, which takes a minute: neither slide's "
            "folder nor the home folder can be written. Set NUMBA_CACHE_DIR to a folder that "
            "nobody else can write to",
            RuntimeWarning,
            stacklevel=4,
        )
        return njit(**_flags, **more)(function)


def serial(function):
    """Compile a kernel that runs on one thread; Python and other kernels may call it."""
    return _made(function)


def helper(function):
    """Compile a part of kernels, without a wrapper for Python: a call from there would crash."""
    return _made(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def parallel(function):
    """Compile a kernel whose ``prange`` loops run on all threads; only Python may call it.

    A process made by ``fork`` has no OpenMP threads: numba would end it, and other libraries would
    hang. There the same source runs as a serial kernel.
    """
    threaded = _made(function, parallel=True)

    @functools.cache
    def alone():
        twin = FunctionType(function.__code__, function.__globals__, function.__name__)
        # The cache on disk is keyed by this name and ignores the flags.
        twin.__qualname__ = f"{function.__qualname__}_alone"
        twin.__module__ = function.__module__
        return serial(twin)

    @functools.wraps(function)
    def call(*arguments):
        # The first comparison saves two calls for each kernel.
        if this_thread.process == os.getpid() or start_threads():
            return threaded(*arguments)
        return alone()(*arguments)

    return call


def _forgiving(kernel):
    """Let a kernel that cannot be read from disk count as not compiled yet."""
    file = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    load_index, load_data = (getattr(file, n, None) for n in ("_load_index", "_load_data"))
    if file is not None and load_index is not None and load_data is not None:

        def index():
            try:
                return load_index()
            except Exception:
                return {}

        def data(name):
            try:
                return load_data(name)
            except Exception as error:
                raise OSError(f"{name} cannot be read") from error  # Which numba expects.

        file._load_index, file._load_data = index, data
    return kernel


# Rows ahead: enough to hide the latency of memory, few enough to fit into the first-level cache.
AHEAD = 3
# The same for single numbers, of which each brings one cache line.
AHEAD_ENTRIES = 8
_LINE = 64


def _prefetch(typing, array, position):
    """Request the cache line of entry ``position`` of a flat, contiguous array."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # For reading, into all cache levels, as data.
        builder.call(call, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, position), generate


def _nothing(array, position):
    """With kernels that are not compiled there is nothing to request."""


_compiled = not config.DISABLE_JIT  # pyright: ignore[reportAttributeAccessIssue]
# numba provides the first argument, so callers pass the others.
ask_for: Any = intrinsic(_prefetch) if _compiled else _nothing


@serial
def prefetch_entries(array, begin, end):
    """Request the entries from ``begin`` to before ``end`` of a contiguous array."""
    if end > begin:
        for p in range(begin, end, max(1, _LINE // array.itemsize)):
            ask_for(array, p)
        ask_for(array, end - 1)  # The first one need not lie at the begin of a line.


@serial
def prefetch_row(rows, r):
    """Request row ``r`` of a contiguous ``(N, D)`` array; ``r`` must lie in ``[0, N)``."""
    prefetch_entries(rows, r * rows.shape[1], (r + 1) * rows.shape[1])
