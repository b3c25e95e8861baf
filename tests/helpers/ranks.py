"""Processes of a group, started by a test.

One process imports everything, once for all tests, and the ranks are its children: an import takes
seconds.
"""

import atexit
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch.distributed as dist

TESTS = Path(__file__).parents[1]


def several(test):
    """Marks of a test that starts ranks."""
    able = hasattr(os, "fork") and dist.is_available()
    skip = pytest.mark.skipif(not able, reason="needs os.fork and torch.distributed")
    return pytest.mark.compiled_only(skip(test))


SERVER = """
import datetime, json, os, signal, sys, time, traceback
import torch, torch._dynamo, torch.distributed as dist
import slide, slide.training
from slide.distributed import Group

def child(code, folder, rank, size):
    done = 1
    try:
        os.dup2(os.open(f"{folder}/{size}-{rank}.txt", os.O_WRONLY | os.O_CREAT), 2)
        os.dup2(2, 1)
        signal.alarm(100)
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store{size}", rank=rank, world_size=size,
            timeout=datetime.timedelta(seconds=60),
        )
        names = {"__name__": "ranks"}
        exec(compile(code, "ranks", "exec"), names)
        with open(f"{folder}/{size}-{rank}.json", "w") as file:
            json.dump(names["work"](Group()), file)
        dist.destroy_process_group()
        done = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(done)

for line in sys.stdin:
    code, folder, size = json.loads(line)
    ranks = []
    for rank in range(size):
        ranks.append(os.fork())
        if not ranks[-1]:
            child(code, folder, rank, size)
    print(json.dumps([os.waitpid(rank, 0)[1] for rank in ranks]), flush=True)
"""


@cache
def _server():
    path = os.pathsep.join((str(TESTS.parent), str(TESTS)))
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SERVER],
        env=os.environ | {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)  # It ends with its input.
    return server


def run_ranks(code, folder, *sizes):
    """What the ranks of groups return: ``{size: [value of each rank]}``.

    Args:
        code: Python code that defines ``work(group)``, which returns something for JSON. A rank
            that takes longer than 100 seconds is ended.
        folder: an empty folder.
        sizes: numbers of processes, one group after the other.
    """
    server, found = _server(), {}
    for size in sizes:
        server.stdin.write(json.dumps([code, str(folder), size]) + "\n")
        server.stdin.flush()
        codes = json.loads(server.stdout.readline())
        names = [folder / f"{size}-{rank}" for rank in range(size)]
        said = "\n".join(name.with_suffix(".txt").read_text() for name in names)
        assert codes == [0] * size, said
        found[size] = [json.loads(name.with_suffix(".json").read_text()) for name in names]
    return found
