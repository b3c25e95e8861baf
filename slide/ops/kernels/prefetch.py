"""Ask the processor to load memory that will be needed soon.

The hardware prefetcher cannot predict the addresses of random rows. A loop that requests a row some
iterations ahead does not wait for it later.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

from slide.ops.kernels.compile import serial

# Rows ahead: enough to hide the latency of memory, few enough to fit into the first-level cache.
AHEAD = 3
# The same for single numbers, of which each brings one cache line.
AHEAD_ENTRIES = 8
_LINE = 64


def _prefetch(typing, array, place):
    """Request the cache line of entry ``place`` of a contiguous array, seen as one-dimensional."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # For reading, into all cache levels, as data.
        builder.call(call, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, place), generate


def _nothing(array, place):
    """With kernels as plain Python there is nothing to request."""


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
