"""Numba kernels: loops over arrays, compiled on first use and kept on disk.

A kernel knows no class, no configuration and no global state: its inputs, outputs, scratch arrays
and random keys are arguments. A test breaks each public kernel, and `slide.check` has to notice.
"""
