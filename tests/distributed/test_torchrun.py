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

train()
assert not dist.is_initialized(), "the processes have not parted"
"""


def test_the_processes_part_at_the_end(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    start = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--rdzv-backend=c10d"]
    start += ["--rdzv-endpoint=localhost:0", "program.py", *SMALL]
    words = [*start, f"dataset.cache={tmp_path}/cache", f"run_dir={tmp_path}/run"]
    done = run_program(*words, cwd=tmp_path, timeout=150, GLOO_SOCKET_IFNAME="lo")
    assert not done.returncode, done.stderr
    assert done.stdout.count("P@1") == 1
