"""A control group of Linux that has the time of some cores, as a container has."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_PERIOD = 100_000  # Microseconds.


@contextmanager
def group_of_cores(cores: float) -> Iterator[Path]:
    """Make a group, and remove it. A process joins it by writing 0 into the file that is yielded.

    All processes in it must have ended at the end.

    Args:
        cores: processor seconds in a second.

    Raises:
        OSError: if this user may not make groups, or the system has none.
    """
    name = f"slide-{os.getpid()}"
    first = (_ROOT / "cpu/cpu.cfs_quota_us").exists()  # The first version of control groups.
    group = _ROOT / "cpu" / name if first else _ROOT / name
    if not first and "cpu" not in (_ROOT / "cgroup.subtree_control").read_text().split():
        raise OSError(f"groups below {_ROOT} have no limit of cores")
    group.mkdir()
    try:
        quota = str(round(cores * _PERIOD))
        if first:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
            (group / "cpu.cfs_quota_us").write_text(quota)
        else:
            (group / "cpu.max").write_text(f"{quota} {_PERIOD}")
        yield group / "cgroup.procs"
    finally:
        group.rmdir()
