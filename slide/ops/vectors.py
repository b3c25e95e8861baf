"""Vectors of 64 numbers in kernels: LLVM makes no bit mask of comparisons by itself."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import config
from numba.extending import intrinsic

# Numbers of a vector, and bits of a mask.
BLOCK = 64


def _rounded_scores(typing, products, factor, scales, priors, begin, least, scores):
    """``products * (factor * scales) + priors`` of a block, and a mask of those of at least this.

    products (n,) int32; scales, priors (n,) float32; the block begins at ``begin``; scores
    (`BLOCK`,) float32, written. All arrays are contiguous.
    """

    def generate(context, builder, signature, arguments):
        kind = ir.VectorType(ir.FloatType(), BLOCK)
        begin = arguments[4]

        def address(i, number):
            data = context.make_array(signature.args[i])(context, builder, arguments[i]).data
            at = data if i == 6 else builder.gep(data, [begin])
            return builder.bitcast(at, ir.VectorType(number, BLOCK).as_pointer())

        def loaded(i, number):
            return builder.load(address(i, number), align=4)

        def repeated(value):
            nothing, index = ir.Constant(kind, ir.Undefined), ir.IntType(32)
            first = builder.insert_element(nothing, value, index(0))
            each = ir.Constant(ir.VectorType(index, BLOCK), None)
            return builder.shuffle_vector(first, nothing, each)

        number = ir.FloatType()
        scales = builder.fmul(loaded(2, number), repeated(arguments[1]))
        found = builder.fmul(builder.sitofp(loaded(0, ir.IntType(32)), kind), scales)
        found = builder.fadd(found, loaded(3, number))
        builder.store(found, address(6, number), align=4)
        above = builder.fcmp_ordered(">=", found, repeated(arguments[5]))
        return builder.bitcast(above, ir.IntType(BLOCK))

    signature = types.uint64(products, factor, scales, priors, begin, least, scores)
    return signature, generate


def _rounded_scores_alone(products, factor, scales, priors, begin, least, scores):
    block = slice(begin, begin + BLOCK)
    with np.errstate(invalid="ignore"):
        scores[:] = products[block].astype(np.float32) * (factor * scales[block]) + priors[block]
    return np.packbits(scores >= least, bitorder="little").view(np.uint64)[0]


def _lowest_bit(typing, mask):
    """The position of the lowest bit of a uint64 that is not 0."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.uint64(types.uint64), generate


def _lowest_bit_alone(mask):
    return (int(mask) & -int(mask)).bit_length() - 1


_compiled = not config.DISABLE_JIT  # pyright: ignore[reportAttributeAccessIssue]
# numba provides the first argument, so callers pass the others.
rounded_scores: Any = intrinsic(_rounded_scores) if _compiled else _rounded_scores_alone
lowest_bit: Any = intrinsic(_lowest_bit) if _compiled else _lowest_bit_alone
