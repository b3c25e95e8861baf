"""Seconds and memory of a piece of work in this process."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def measured(work: Callable[[], T], look: Callable[[T], list[float]]) -> dict:
    """Seconds and bytes that some work takes, beyond what was resident before.

    ``look`` reads the result afterwards, which counts for nothing.
    """
    Path("/proc/self/clear_refs").write_text("5")  # the most so far is what there is now
    before = memory("VmRSS")
    begin = time.perf_counter()
    result = work()
    found = {
        "seconds": time.perf_counter() - begin,
        "peak": memory("VmHWM") - before,
        "growth": memory("VmRSS") - before,
    }
    return found | {"result": look(result)}


def memory(field: str) -> int:
    """Bytes from /proc: what is resident (VmRSS), or was at most (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise ValueError(f"/proc/self/status has no {field}")


def forget(path: Path) -> None:
    """Asks the system to drop a file from its page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
