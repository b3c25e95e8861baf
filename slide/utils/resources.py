"""Memory and cores that this process may use, also in a container."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

try:
    import resource
except ImportError:  # Not on Windows.
    resource = None

# The groups of processes that this process is in, and where their files are.
_GROUPS, _ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
# Limit and use of a group, and what the system can take back of the use: of the second and of the
# first version of control groups.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
_UNLIMITED = 1 << 50
GIB = 1 << 30
# Arrays of 128 MiB or more are compared with the memory that is free, which takes some time.
_LARGE = 1 << 27


def free_memory() -> int | None:
    """Bytes that this process, or its control group, has left without swapping; None: unknown."""
    left = [limit - used for limit, used in _group_limits() if used is not None]
    found = [available, *left] if (available := _available()) is not None else []
    return max(min(found), 0) if found else None


def check_room(size: int, what: str) -> None:
    """Raise ValueError if ``size`` bytes are not free: a shape may say anything and hold little."""
    free = free_memory() if size > _LARGE else None
    if free is not None and size > free:
        raise ValueError(f"{what} take {in_gib(size)} at least, and {in_gib(free)} are free")


def memory_limit() -> int | None:
    """The lowest limit of the control groups of this process, in bytes; None: there is none."""
    return min((limit for limit, _ in _group_limits()), default=None)


def core_limit() -> int | None:
    """Cores that the control groups of this process give it, rounded up; None: all."""
    limits = []
    for folder in _folders():
        quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
        if not period:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = (_read(folder / name).strip() for name in names)
        if quota.isdigit() and period.isdigit() and int(period):
            limits.append(max(-(-int(quota) // int(period)), 1))
    return min(limits, default=None)


def in_gib(size: float) -> str:
    """Bytes as text."""
    return f"{size / GIB:,.1f} GiB" if size >= GIB else f"{size / 2**20:,.0f} MiB"


def _available() -> int | None:
    kibibytes = _fields(Path("/proc/meminfo")).get("MemAvailable")
    if kibibytes is not None:
        return 1024 * kibibytes
    if "SC_AVPHYS_PAGES" in getattr(os, "sysconf_names", {}):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    return None


def _group_limits() -> Iterator[tuple[int, int | None]]:
    """The limits of groups, and what they use and the system cannot take back; None: unknown."""
    for folder in _folders():
        for limit, used, idle in _FILES:
            most, now = _number(folder / limit), _number(folder / used)
            if most is not None and most < _UNLIMITED:
                free = _fields(folder / "memory.stat").get(idle, 0)
                yield most, None if now is None else now - free


def _folders() -> list[Path]:
    """The folders of the groups that this process is in, and of the groups above."""
    found = {_ROOT, _ROOT / "memory", _ROOT / "cpu"}
    for line in _read(_GROUPS).splitlines():
        kinds, path = line.split(":", 2)[1:]
        group = Path(path.lstrip("/"))
        for kind in kinds.split(","):
            if kind in ("", "memory", "cpu"):
                found |= {_ROOT / kind / each for each in (group, *group.parents)}
    return sorted(found)


def _fields(path: Path) -> dict[str, int]:
    found = {}
    for line in _read(path).splitlines():
        words = line.replace(":", " ").split()
        if len(words) > 1 and words[1].isdigit():
            found[words[0]] = int(words[1])
    return found


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def reset_peak_memory() -> None:
    """Let `peak_memory_mb` count from now on; systems other than Linux go on with the old peak."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mb() -> int:
    """The most memory that this process has held, in MiB; 0 if the system does not report it."""
    if resource is None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak / 2**20 if sys.platform == "darwin" else peak / 2**10)
