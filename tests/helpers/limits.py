"""Limits of what this process may use."""

import resource
from contextlib import contextmanager


@contextmanager
def limited(size):
    """No file may grow beyond ``size`` bytes: the nearest thing to a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
