"""A system without `/dev/shm`, where nobody can make a semaphore, computes the same."""

import json

import pytest
from helpers import job
from helpers.programs import run_program

CODE = """
import _multiprocessing, errno, sys

class SemLock:
    SEM_VALUE_MAX = 2**31 - 1
    def __new__(cls, *arguments, **keywords):
        raise OSError(errno.ENOSYS, "Function not implemented")

_multiprocessing.SemLock = SemLock
import multiprocessing
try:
    multiprocessing.Lock()
    sys.exit("there is a semaphore")
except OSError:
    pass
from helpers import job, limits
limits.grow_few_trees()
job.main(*sys.argv[1:])
"""


@pytest.mark.compiled_only
def test_a_run(tmp_path):
    job.main(*job.tiny(tmp_path))
    words = job.tiny(tmp_path, f"run_dir={tmp_path}/without")
    done = run_program("-c", CODE, *words)
    assert not done.returncode, done.stderr
    assert "Traceback" not in done.stderr
    runs = [tmp_path / name / "summary.json" for name in ("run", "without")]
    usual, without = (json.loads(path.read_text()) for path in runs)
    scores = {name: value for name, value in usual.items() if "_at_" in name}
    assert scores
    assert scores.items() <= without.items()
