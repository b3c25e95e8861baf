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

import pytest
import torch.distributed as dist

from helpers.programs import PATH


def several(test):
    """Marks of a test that starts ranks."""
    able = hasattr(os, "fork") and dist.is_available()
    skip = pytest.mark.skipif(not able, reason="needs os.fork and torch.distributed")
    return pytest.mark.compiled_only(skip(test))


SERVER = """
import datetime, json, os, pathlib, signal, sys, time, traceback
from functools import partial
import numpy as np, torch, torch._dynamo, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from helpers.matrices import make_csr, make_pattern
import slide
from slide import ActiveLoss, ActiveSampler, CSR, FullSampler, LSHProposer, Pattern, RowSparseAdam
from slide.distributed import *
from slide.row_gradients import dense_gradient, take_row_gradients

def child(work, folder, rank, size):
    done = 1
    try:
        os.dup2(os.open(f"{folder}/{size}-{rank}.txt", os.O_WRONLY | os.O_CREAT), 2)
        os.dup2(2, 1)
        signal.alarm(100)
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store{size}", rank=rank, world_size=size,
            timeout=datetime.timedelta(seconds=60),
        )
        finish(work(Group()), folder, rank, size)
        dist.destroy_process_group()
        done = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(done)

def finish(found, folder, rank, size):
    with open(f"{folder}/{size}-{rank}.json", "w") as file:
        json.dump(found, file)

def answer(code, folder, sizes):
    names = {**globals(), "__name__": "ranks"}
    exec(compile(code, "ranks", "exec"), names)
    # Here, so that the ranks need not read the kernels from disk again.
    finish(names["work"](Group.alone()), folder, 0, 1)
    for size in sizes:
        ranks = []
        for rank in range(size):
            ranks.append(os.fork())
            if not ranks[-1]:
                child(names["work"], folder, rank, size)
        codes = [os.waitpid(rank, 0)[1] for rank in ranks]
        if any(codes):
            return f"{size} ranks ended with {codes}"

if os.fork():  # The parent only waits: in its child, kernels are serial already.
    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
for line in sys.stdin:
    try:
        said = answer(*json.loads(line))
    except Exception:
        said = traceback.format_exc()
    print(json.dumps(said), flush=True)
"""


@cache
def _server():
    changed = {"PYTHONPATH": PATH, "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    server = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SERVER],
        env=os.environ | changed,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)  # It ends with its input.
    return server


def run_ranks(code, folder, *sizes):
    """What the ranks of groups return: ``{size: [value of each rank]}``; also of one process.

    Args:
        code: Python code that defines ``work(group)``, which returns something for JSON. It knows
            what `SERVER` imports. A rank that takes longer than 100 seconds is ended.
        folder: an empty folder.
        sizes: numbers of processes, at least 2, one group after the other.
    """
    server = _server()
    server.stdin.write(json.dumps([code, str(folder), sizes]) + "\n")
    server.stdin.flush()
    failed = json.loads(server.stdout.readline())
    said = "\n".join(path.read_text() for path in sorted(folder.glob("*.txt")))
    assert failed is None, f"{failed}\n{said}"
    names = {size: [f"{size}-{rank}.json" for rank in range(size)] for size in (1, *sizes)}
    return {n: [json.loads((folder / name).read_text()) for name in names[n]] for n in names}
