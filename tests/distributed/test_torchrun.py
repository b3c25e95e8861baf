"""``train.py`` as ``torchrun`` itself starts it, to the very end of its processes."""

import pytest
from helpers.programs import run_program
from helpers.torchrun import SMALL
from torch import distributed

pytestmark = [
    pytest.mark.compiled_only,
    pytest.mark.skipif(not distributed.is_available(), reason="needs torch.distributed"),
]
# The end of a process, with threads of gloo, aborts it at random; so this looks for them, too.
PROGRAM = """
import torch.distributed as dist
from slide.config.command import train

try:
    train()
finally:
    assert not dist.is_initialized(), "the processes have not parted"
"""


def torchrun(folder, *words):
    (folder / "program.py").write_text(PROGRAM)
    start = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    start += ["--rdzv-endpoint=localhost:0", "program.py", *SMALL]
    words = [*start, f"dataset.cache={folder}/cache", *words]
    return run_program(*words, cwd=folder, timeout=150, GLOO_SOCKET_IFNAME="lo")


def test_the_processes_part_at_the_end(tmp_path):
    done = torchrun(tmp_path, f"run_dir={tmp_path}/run")
    assert not done.returncode, done.stderr
    assert done.stdout.count("P@1") == 1


def test_the_processes_part_after_an_error_of_all(tmp_path):
    done = torchrun(tmp_path, f"run_dir={tmp_path}/run", "optimizer.lr=1e37")
    assert done.returncode
    assert done.stderr.count("error: the loss is nan at step") == 1, done.stderr
    assert "parted" not in done.stderr
    assert "SIGABRT" not in done.stderr
