"""Numba kernels: loops over arrays, compiled on first use and kept on disk.

A kernel knows no class, no configuration and no global state: its inputs, outputs, scratch arrays
and random keys are arguments. Every public kernel has a looped twin in ``tests/helpers``, and
``tests/ops/kernels/test_twins.py`` names the test that compares the two.
"""
