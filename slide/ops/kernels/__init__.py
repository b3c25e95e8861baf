"""Numba kernels: loops over arrays, compiled on first use and kept on disk.

A kernel knows no class, no configuration and no global state: its inputs, outputs, scratch arrays
and random keys are arguments. Each kernel is compiled once for each type of its arguments, so
callers pass contiguous arrays of one integer type, and a `Pattern` where values have no part in it.
"""
