"""``python -m slide.check``: the report; the exit status is 1 if a kernel is wrong here."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

from slide.backend import has_bfloat16, instruction_sets
from slide.check.self_test import run_self_tests
from slide.runtime import num_threads, versions
from slide.utils.checks import counted
from slide.utils.commands import command_parser
from slide.utils.progress_bar import fail, show, until_reader_goes
from slide.utils.resources import free_memory, in_gib, memory_limit, peak_memory_mb


def describe_machine() -> dict[str, str]:
    """What slide finds here; what the system does not report is left out."""
    found = {
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processor": _processor(),
        "instruction sets": _instruction_sets(),
        "bfloat16 products": "faster than float32" if has_bfloat16() else "not faster than float32",
        "threads": f"{num_threads()} of {counted(os.cpu_count() or 1, 'core')}",
        "memory": _memory(),
    }
    return {name: text for name, text in found.items() if text}


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _instruction_sets() -> str:
    names = sorted(instruction_sets())
    used = getattr(torch.backends.cpu, "get_cpu_capability", lambda: "unknown")()
    return f"{', '.join(names) or 'unknown'}; torch uses {used}"


def _memory() -> str:
    parts, free, limit = [], free_memory(), memory_limit()
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        parts.append(in_gib(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    if free is not None:
        parts.append(f"{in_gib(free)} free")
    if limit is not None:
        parts.append(f"limited to {in_gib(limit)}")
    peak = peak_memory_mb()
    return ", ".join([*parts, f"{peak} MiB used by this process"] if peak else parts)


def main(words: Sequence[str] | None = None) -> None:
    """Print what the machine has, then the outcome of each test."""
    command_parser("check", "Compares the kernels with their references.").parse_args(words)
    for name, found in describe_machine().items():
        show(f"{name}: {found}")
    show("\nkernels against their references:")
    wrong = 0
    for name, trials, error in run_self_tests():
        wrong += error is not None
        outcome = (
            f"WRONG  {name}: {error}" if error else f"right  {name} ({counted(trials, 'trial')})"
        )
        show(f"  {outcome}")
    if wrong:
        fail(f"wrong on this machine: {counted(wrong, 'kernel')}; results cannot be trusted")


if __name__ == "__main__":
    with until_reader_goes():
        main()
