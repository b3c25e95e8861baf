"""What memory is free: of the machine, and of the control groups of this process."""

import pytest

from slide.utils import resources
from slide.utils.resources import core_limit, free_memory, memory_limit


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A machine with 900 KiB left, and this process in group ``/a/b`` of either version."""

    def lay(version, **files):
        folder = {1: tmp_path / "memory/a/b", 2: tmp_path / "a/b"}[version]
        folder.mkdir(parents=True)
        line = {1: "3:cpu,cpuacct:/x\n4:memory:/a/b\n", 2: "0::/a/b\n"}[version]
        (tmp_path / "cgroup").write_text(line)
        for name, text in files.items():
            (folder / name.replace("__", ".")).write_text(text)
        return folder

    monkeypatch.setattr(resources, "_ROOT", tmp_path)
    monkeypatch.setattr(resources, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(resources, "_available", lambda: MACHINE)
    return lay


LIMITED = {"memory__max": "500000\n", "memory__current": "400000\n"}
FIRST = {"memory__limit_in_bytes": "500000", "memory__usage_in_bytes": "100000"}
MACHINE = 900 << 10


@pytest.mark.parametrize(
    ("version", "files", "above", "free", "limit"),
    [
        (None, {}, {}, MACHINE, None),
        (2, LIMITED, {}, 100_000, 500_000),
        # Pages of files can be taken back.
        (2, LIMITED | {"memory__stat": "anon 1\ninactive_file 50000\n"}, {}, 150_000, 500_000),
        (2, LIMITED | {"memory__current": "600000"}, {}, 0, 500_000),
        (
            2,
            LIMITED | {"memory__max": "max"},
            {"memory.max": "450000", "memory.current": "440000"},
            10_000,
            450_000,
        ),
        (1, FIRST | {"memory__stat": "cache 3\ntotal_inactive_file 7\n"}, {}, 400_007, 500_000),
        (1, FIRST | {"memory__limit_in_bytes": str((1 << 63) - 4096)}, {}, MACHINE, None),
    ],
    ids=["machine", "group", "pages", "over its limit", "group above", "version 1", "no limit"],
)
def test_what_memory_is_free(groups, version, files, above, free, limit):
    folder = groups(version, **files) if version else None
    for name, text in above.items():
        (folder.parent / name).write_text(text)
    assert (free_memory(), memory_limit()) == (free, limit)


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000", None),
        ("150000 100000", 2),
        ("5000 100000", 1),
        ("", None),
    ],
)
def test_cores(groups, text, cores):
    groups(2, cpu__max=text + "\n")
    assert core_limit() == cores


def test_cores_of_the_group_above(groups):
    folder = groups(2, cpu__max="400000 100000")
    (folder.parent / "cpu.max").write_text("300000 100000")
    assert core_limit() == 3


@pytest.mark.parametrize(("quota", "cores"), [("-1", None), ("200000", 2)])
def test_cores_of_the_first_version(groups, tmp_path, quota, cores):
    groups(1)
    (tmp_path / "cpu/x").mkdir(parents=True)
    (tmp_path / "cpu/x/cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu/x/cpu.cfs_period_us").write_text("100000")
    assert core_limit() == cores
