"""Numba kernels over arrays.

No kernel knows a class, a configuration or a global: inputs, outputs, scratch space and random
state are arguments. Every kernel has a looped twin in ``tests/naive.py``.
"""
