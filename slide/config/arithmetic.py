"""What the last bits of a process's results depend on: packages, processor and threads."""

import torch

from slide.backend import has_bfloat16
from slide.runtime import library_threads, versions

# Other versions of these compute or draw otherwise; those of the rest hardly do.
_COMPUTING = ("slide", "torch", "numpy", "numba")


def package_versions() -> dict[str, str]:
    """Versions of the packages that all processes of a run must have alike.

    Example:
        >>> from slide.config.arithmetic import package_versions
        >>> list(package_versions())[:2]
        ['the version of slide', 'the version of torch']
    """
    found = versions()
    return {f"the version of {name}": found[name] for name in _COMPUTING}


def arithmetic(device: torch.device) -> dict[str, str]:
    """What else a process may round otherwise by.

    Args:
        device: where it computes.

    Example:
        >>> import torch
        >>> from slide.config.arithmetic import arithmetic
        >>> list(arithmetic(torch.device("cpu")))[-2:]
        ['the instruction set', 'the number of threads']
    """
    others = {name: each for name, each in versions().items() if name not in _COMPUTING}
    found = {f"the version of {name}": each for name, each in others.items()}
    if device.type == "cuda":
        found["the GPU"] = torch.cuda.get_device_name(device)
    known = getattr(torch.backends.cpu, "get_cpu_capability", lambda: "unknown")()
    known += " with bfloat16" if has_bfloat16() else ""
    threads = str(library_threads())
    return {**found, "the instruction set": known, "the number of threads": threads}
