"""``python -m slide.check``: versions, processor, memory, threads and kernels of this machine."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from slide.backend import described_products, instruction_sets, uses_reference
from slide.ops.random import random_bits
from slide.runtime import num_threads, versions
from slide.utils.checks import counted
from slide.utils.commands import command_parser
from slide.utils.profiling import compile_seconds
from slide.utils.progress_bar import show, until_reader_goes
from slide.utils.resources import free_memory, in_gib, memory_limit


def describe_machine() -> dict[str, str]:
    """What slide finds here, by name; what the system does not report is left out."""
    found = {
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": _processor(),
        "instruction sets": ", ".join(sorted(instruction_sets())),
        "products": described_products(),
        "threads": f"{num_threads()} of {counted(os.cpu_count() or 1, 'core')}",
        "memory": _memory(),
        "GPUs": ", ".join(map(torch.cuda.get_device_name, range(torch.cuda.device_count()))),
        "backend": "torch" if uses_reference() else "kernels",
        "kernels": _kernels(),
    }
    return {name: text for name, text in found.items() if text}


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _memory() -> str:
    parts, free, limit = [], free_memory(), memory_limit()
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        parts.append(in_gib(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    if free is not None:
        parts.append(f"{in_gib(free)} free")
    if limit is not None:
        parts.append(f"limited to {in_gib(limit)}")
    return ", ".join(parts)


def _kernels() -> str:
    """Whether a first kernel is compiled, and whether it was on the disk."""
    if not hasattr(random_bits, "py_func"):
        return "not compiled: NUMBA_DISABLE_JIT is set"
    before = compile_seconds()
    random_bits(np.uint64(0), 0)
    return "compiled now" if compile_seconds() > before else "compiled, read from the disk"


def main(words: Sequence[str] | None = None) -> None:
    """Print what slide finds on this machine."""
    command_parser("check", "Prints what slide finds on this machine.").parse_args(words)
    for name, found in describe_machine().items():
        show(f"{name}: {found}")


if __name__ == "__main__":
    with until_reader_goes():
        main()
