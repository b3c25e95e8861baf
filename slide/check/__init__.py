"""``python -m slide.check``: what this machine has, and whether slide's kernels are right on it."""
