"""Python programs in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
# Where the library and the tests' helpers are found.
PATH = os.pathsep.join((str(TESTS.parent), str(TESTS)))


def run_program(*words, cwd=TESTS.parent, timeout=300, variables=os.environ, **changed):
    """What came of ``python words``, such as ``-c code``, with changed environment variables."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, words)],
        env={**variables, "PYTHONPATH": PATH, **changed},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def output_of(*words, **options):
    """What a program prints that must not fail."""
    done = run_program(*words, **options)
    assert not done.returncode, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout
