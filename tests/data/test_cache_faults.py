"""The cache after errors, and with several processes or threads."""

import errno
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.caches import blocks_of, forbid, leftovers, open_blocks
from helpers.splits import make_split, rows

from slide.data.dataset import Block

ROOT = Path(__file__).parents[2]


def failing(error):
    def blocks():
        yield Block(*blocks_of(make_split(5))()[0])
        raise error

    return blocks


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("broken")])
def test_interrupted_writing_leaves_the_old_cache(tmp_path, error):
    split = make_split()
    open_blocks(tmp_path, blocks_of(split), state=1)
    with pytest.raises(type(error)):
        open_blocks(tmp_path, failing(error), state=2)
    assert leftovers(tmp_path) == []
    assert rows(open_blocks(tmp_path, forbid, state=1).train) == rows(split)


def test_full_disk_is_told_and_leaves_the_old_cache(tmp_path):
    split = make_split()
    open_blocks(tmp_path, blocks_of(split), state=1)
    with pytest.raises(OSError, match="no space left for the cache of made") as caught:
        open_blocks(tmp_path, failing(OSError(errno.ENOSPC, "full")), state=2)
    assert caught.value.errno == errno.ENOSPC
    assert rows(open_blocks(tmp_path, forbid, state=1).train) == rows(split)


def test_folders_of_killed_processes_are_removed(tmp_path):
    open_blocks(tmp_path, blocks_of(make_split()), state=1)
    (meta,) = tmp_path.glob("*/meta.json")
    left = tmp_path / f"{meta.parent.name}.{'0' * 32}.tmp"
    (left / "train").mkdir(parents=True)
    open_blocks(tmp_path, blocks_of(make_split()), state=2)
    assert not left.exists()


def test_threads_write_once(tmp_path):
    calls = []
    barrier = threading.Barrier(4)
    split = make_split()

    def slow():
        calls.append(1)
        time.sleep(0.1)
        return blocks_of(split)()

    def work(_):
        barrier.wait()
        return rows(open_blocks(tmp_path, slow, state=1).train)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [rows(split)] * 4
    assert len(calls) == 1


def test_without_locks_all_still_get_a_whole_cache(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    barrier = threading.Barrier(3)
    split = make_split()

    def together():
        barrier.wait()
        return blocks_of(split)()

    with ThreadPoolExecutor(3) as pool:
        found = pool.map(lambda _: open_blocks(tmp_path, together, state=1), range(3))
        assert [rows(dataset.train) for dataset in found] == [rows(split)] * 3
    assert leftovers(tmp_path) == []


def test_two_processes_at_once(open_set, root, tmp_path):
    text = "20000 5 4\n" + "1,3 0:0.5 4:2\n" * 20000
    (root / "train.txt").write_text(text)
    code = (
        "import sys; from slide.data import xmc;"
        "data = xmc(name='tiny', root=sys.argv[1], cache=sys.argv[2]);"
        "sys.stdout.write(str(data.train.features.values.sum()))"
    )
    command = [sys.executable, "-c", code, str(root), str(tmp_path / "cache")]
    processes = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) for _ in range(2)]
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    assert outputs == [b"50000.0"] * 2
    assert leftovers(tmp_path / "cache") == []
    assert len(open_set().train) == 20000
