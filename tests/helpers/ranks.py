"""Processes of a group, started by a test."""

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
# One process imports everything, and the ranks are its children: an import takes seconds.
START = """
import datetime, json, os, signal, sys, traceback
import numpy as np, torch, torch.distributed as dist
import slide
from slide.distributed import Group
folder, sizes = sys.argv[1], [int(size) for size in sys.argv[2:]]

def join(rank, size):
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store{size}", rank=rank, world_size=size,
        timeout=datetime.timedelta(seconds=60),
    )
    return Group()

def child(rank, size):
    signal.alarm(100)
    code = 1
    try:
        found = work(join(rank, size))
        with open(f"{folder}/{size}-{rank}.json", "w") as file:
            json.dump(found, file)
        dist.destroy_process_group()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
"""
END = """
for size in sizes:
    ranks = []
    for rank in range(size):
        ranks.append(os.fork())
        if not ranks[-1]:
            child(rank, size)
    codes = [os.waitpid(rank, 0)[1] for rank in ranks]
    if any(codes):
        sys.exit(f"{size} ranks ended with {codes}")
"""


def run_ranks(code, folder, *sizes, seconds=150):
    """What the ranks of groups return: ``{size: [value of each rank]}``.

    Args:
        code: Python code that defines ``work(group)``, which returns something for JSON. It runs
            once, before the ranks are forked, so they share what it makes outside of ``work``.
        folder: an empty folder.
        sizes: numbers of processes, one group after the other.
        seconds: time after which the test fails.
    """
    path = os.pathsep.join((str(TESTS.parent), str(TESTS)))
    command = [sys.executable, "-W", "ignore", "-c", START + code + END, str(folder)]
    done = subprocess.run(
        [*command, *map(str, sizes)],
        env=os.environ | {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert not done.returncode, done.stderr
    return {
        size: [json.loads((folder / f"{size}-{rank}.json").read_text()) for rank in range(size)]
        for size in sizes
    }
