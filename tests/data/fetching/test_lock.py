"""The lock of two processes, and file systems and folders that have none."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from slide.data.fetching import locked

ROOT = Path(__file__).parents[3]
HOLD = """
import sys
from pathlib import Path
from slide.data.fetching import locked
with locked(Path(sys.argv[1]), "it") as held:
    print(held, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock, until it is killed or its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "a.lock")],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with process:
        assert process.stdout.readline() == b"True\n"
        yield process
        process.kill()


def enter(path, seen):
    with locked(path, "the set") as held:
        seen.append(held)


@pytest.mark.parametrize("end", ["kill", "close"])
def test_a_second_process_waits_and_says_so(tmp_path, holder, capfd, end):
    seen = []
    second = threading.Thread(target=enter, args=(tmp_path / "a.lock", seen))
    second.start()
    second.join(0.3)
    assert second.is_alive()
    assert seen == []
    # The lock of a process that was killed is free.
    {"kill": holder.kill, "close": holder.stdin.close}[end]()
    second.join(30)
    assert seen == [True]
    assert capfd.readouterr().err == "waiting for another process that prepares the set\n"


def test_nothing_is_said_where_nobody_waits(tmp_path, capfd):
    for _ in range(2):
        with locked(tmp_path / "a.lock", "it") as held:
            assert held
    assert capfd.readouterr().err == ""
    assert [path.name for path in tmp_path.iterdir()] == ["a.lock"]


@pytest.mark.parametrize("error", [ValueError("x"), OSError("x"), KeyboardInterrupt()])
def test_an_error_frees_the_lock_and_passes(tmp_path, error):
    with pytest.raises(type(error)), locked(tmp_path / "a.lock", "it"):
        raise error
    seen = []
    second = threading.Thread(target=enter, args=(tmp_path / "a.lock", seen))
    second.start()
    second.join(30)
    assert seen == [True]


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks(tmp_path, monkeypatch, number):
    def no_locks(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", no_locks)
    with locked(tmp_path / "a.lock", "it") as one, locked(tmp_path / "a.lock", "it") as other:
        assert (one, other) == (False, False)
    with pytest.raises(ValueError, match="x"), locked(tmp_path / "a.lock", "it"):
        raise ValueError("x")


def test_a_lock_file_that_cannot_be_made(tmp_path):
    with pytest.raises(FileNotFoundError), locked(tmp_path / "none" / "a.lock", "it"):
        pass
