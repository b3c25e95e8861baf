"""Kernels of the largest scores: of products, of lists of rows, and of sketches."""
