"""Ask the processor for memory that will be needed soon.

Rows picked at random lie where no hardware prefetcher expects them. A loop that names the row it
will come to some turns later does not wait for it then.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic

from slide.kernels.compile import serial

# Rows ahead: enough to hide a read from memory, few enough to stay in the first-level cache.
AHEAD = 3
_LINE = 64


def _prefetch(typing, array, place):
    """Ask for the cache line of entry ``place`` of a contiguous array, all dimensions in one."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        call = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # To be read, kept close, data and not instructions.
        builder.call(call, [address, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, place), generate


def _nothing(array, place):
    """Plain Python has nothing to ask for."""


plain = config.DISABLE_JIT  # pyright: ignore[reportAttributeAccessIssue]
# numba takes the first argument, its own, away.
ask_for: Any = _nothing if plain else intrinsic(_prefetch)


@serial
def prefetch_row(rows, r):
    """Ask for row ``r`` of a contiguous ``(N, D)`` array; ``r`` must be a row."""
    width = rows.shape[1]
    for d in range(0, width, max(1, _LINE // rows.itemsize)):
        ask_for(rows, r * width + d)
