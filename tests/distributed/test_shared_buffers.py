"""Memory that the processes of one machine share."""

import errno
import os
import platform
from pathlib import Path

import pytest
import torch
from helpers.ranks import run_ranks, several

from slide.distributed import shared_buffers
from slide.distributed.shared_buffers import SharedBuffers, create, open_created

ABLE = shared_buffers._FOLDER.is_dir() and platform.machine() == "x86_64"
needs_memory = pytest.mark.skipif(not ABLE, reason="needs Linux, x86-64 and /dev/shm")

SUMS = """
def work(group):
    found = []
    # More than fits into a buffer comes last.
    for number, count in enumerate([1, 1000, 0, 7, (1 << 20) + 5]):
        for dtype in (torch.float32, torch.float64, torch.int64):
            generator = torch.Generator().manual_seed(10 * number + group.rank)
            own = torch.randint(-999, 999, (count,), generator=generator).to(dtype)
            own = own / 7 if dtype.is_floating_point else own
            through = Group() if group.size > 1 else group
            through._asks = False
            expected = through.all_reduce(own.clone())
            end = group.begin_all_reduce(given := own.clone())
            same = group.all_reduce(own.clone()) if group.size == 1 else end()
            near = torch.allclose(same, expected, rtol=1e-5, atol=1e-5)
            rows = group.all_gather(own, [count] * group.size)
            found.append([
                torch.equal(same, expected) if group.size == 2 else near,
                same is given or group.size == 1,
                torch.equal(sum(rows).to(dtype), same) if group.size == 2 else True,
                float(same.double().sum()),
            ])
    return {"found": found, "shared": group._buffers is not None}
"""


@several
@needs_memory
def test_sums_are_those_of_gloo(tmp_path):
    every = run_ranks(SUMS, tmp_path, 2, 3)
    for size in (2, 3):
        assert all(rank["shared"] for rank in every[size])
        assert all(each[:3] == [True] * 3 for rank in every[size] for each in rank["found"])
        totals = [[each[3] for each in rank["found"]] for rank in every[size]]
        assert all(total == totals[0] for total in totals)  # Equal in each bit.


LOST = """
from slide.distributed.group import LostProcessError

def work(group):
    if group.size == 1:
        return None
    group.all_reduce(torch.ones(1))
    group.all_reduce(torch.ones(1))
    if group.rank == 1 and CLOSES:
        group._buffers = None  # As when the process ends.
    if group.rank == 1:
        time.sleep(0.5 if CLOSES else 3)
        return None
    group._buffers._timeout = 0.5 if not CLOSES else 60
    begin = time.monotonic()
    try:
        group.all_reduce(torch.ones(1))
    except LostProcessError as error:
        return [str(error), str(error.__cause__), time.monotonic() - begin]
"""


@several
@needs_memory
@pytest.mark.parametrize(("closes", "why"), [(True, "closed"), (False, "timed out")])
def test_a_rank_that_does_not_write(tmp_path, closes, why):
    code = LOST.replace("CLOSES", str(closes))
    said, cause, seconds = run_ranks(code, tmp_path, 2)[2][0]
    assert "has ended, or did not answer in time (runtime.timeout)" in said
    assert cause == f"rank 1 has {why}"
    assert closes or seconds >= 0.5


AWAY = """
import slide.distributed.group as module

def refused(*_):
    raise FileNotFoundError("the path is another machine's")

def work(group):
    if group.size > 1 and group.rank == 1:
        module.SharedBuffers = refused
    total = group.all_reduce(torch.ones(1))
    return {"total": total.tolist(), "shared": group._buffers is not None}
"""


@several
@needs_memory
def test_one_rank_on_another_machine(tmp_path):
    before = set(map(str, Path("/dev/shm").glob("slide-*")))
    for found in run_ranks(AWAY, tmp_path, 2)[2]:
        assert (found["total"], found["shared"]) == ([2.0], False)
    assert set(map(str, Path("/dev/shm").glob("slide-*"))) <= before


@needs_memory
def test_the_last_words_of_a_rank_count():
    """It has written, and ended before another one looks."""
    made = create(2)
    assert made is not None
    own = SharedBuffers(made[0], 0, 2, 60.0)
    own.write(torch.ones(3))
    with pytest.raises(RuntimeError, match="rank 1 has closed"):
        own.read(torch.ones(3))
    own._message(1, torch.ones(3)).copy_(torch.tensor([1.0, 2.0, 3.0]))
    own._written[1] = 1
    assert own.read(torch.ones(3))[1].tolist() == [1.0, 2.0, 3.0]


@needs_memory
def test_a_killed_rank_leaves_no_file_behind():
    """From the beginning the file has no name; by that of before, others know that it is theirs."""
    before = set(shared_buffers._FOLDER.glob("slide-*"))
    made = create(2)
    assert made is not None
    assert set(shared_buffers._FOLDER.glob("slide-*")) <= before
    own = SharedBuffers(made[0], 0, 2, 60.0)
    other = os.fork()
    if not other:
        SharedBuffers(open_created(*made[1:]), 1, 2, 60.0)
        os._exit(0)
    assert os.waitpid(other, 0)[1] == 0
    assert own._has_ended(1)
    with pytest.raises(FileNotFoundError, match="is a file of another machine or container"):
        open_created(made[1], made[2] + "x")


def test_no_memory(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shared_buffers, "_FOLDER", tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    assert create(2) is None
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(shared_buffers, "_FOLDER", tmp_path / "none")
    assert create(2) is None
