"""Versions, threads, instruction sets and memory of this machine, as lines of text."""

import os
import platform
import sys
from pathlib import Path

import torch

from slide.runtime import has_bfloat16, num_threads, peak_memory_mb, versions

# Limits of a container: of the second and of the first version of control groups.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def describe_machine() -> dict[str, str]:
    """What slide finds here; what the system does not tell is left out.

    Example:
        >>> from slide.check import describe_machine
        >>> sorted(describe_machine())[-2:]
        ['threads', 'versions']
    """
    found = {
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": _processor(),
        "instruction sets": _instruction_sets(),
        "bfloat16 products": "faster than float32" if has_bfloat16() else "not faster than float32",
        "threads": f"{num_threads()} of {os.cpu_count()} cores",
        "memory": _memory(),
    }
    return {name: said for name, said in found.items() if said}


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _instruction_sets() -> str:
    known = getattr(torch.cpu, "get_capabilities", dict)()  # Not in every version of torch.
    names = [name for name, there in known.items() if there is True]
    used = getattr(torch.backends.cpu, "get_cpu_capability", lambda: "unknown")()
    return f"{', '.join(names) or 'unknown'}; torch uses {used}"


def _memory() -> str:
    parts = []
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        page = os.sysconf("SC_PAGE_SIZE")
        parts.append(f"{page * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB")
        if sys.platform == "linux":
            parts.append(f"{page * os.sysconf('SC_AVPHYS_PAGES') / 2**30:.1f} GiB unused")
    for path in map(Path, _LIMITS):
        text = path.read_text().strip() if path.is_file() else "max"
        if text.isdigit() and int(text) < 1 << 50:
            parts.append(f"limited to {int(text) / 2**30:.1f} GiB")
    peak = peak_memory_mb()
    return ", ".join([*parts, f"{peak} MiB used by this process"] if peak else parts)
