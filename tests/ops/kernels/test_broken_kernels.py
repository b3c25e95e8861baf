"""Each kernel has a reference or a formula that notices when it is broken."""

import json
import os
import subprocess
import sys

from helpers.broken_kernels import ROOT, WITHOUT_RESULT, find_kernels


def test_each_broken_kernel_is_noticed():
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests")))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "helpers.broken_kernels"],
        env=os.environ | {"PYTHONPATH": paths, "NUMBA_DISABLE_JIT": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert set(found) | WITHOUT_RESULT == set(find_kernels())
    assert [kernel for kernel, test in found.items() if test is None] == []
