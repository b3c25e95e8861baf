"""Limits of what this process may use, and what it need not wait for."""

import os
import resource
from contextlib import contextmanager
from pathlib import Path


def wait_for_no_disk():
    """Let `os.fsync` return at once: no test cuts the power, and a tiny run waits 50 times."""
    os.fsync = lambda file: None


@contextmanager
def limited(size):
    """No file may grow beyond ``size`` bytes: the nearest thing to a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def more_memory(size):
    """This process may take ``size`` more bytes of addresses than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
