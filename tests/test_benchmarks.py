"""Benchmarks start: they import, and the settings that they run with exist."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "benchmarks"
# One process: benchmarks change the path of modules, and one of them is called like a package.
CODE = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
import ablation, look_up, workload
from slide.config import read_config
cases = [*ablation.WITHOUT.values()]
cases += [[*workload.JOB, *case] for case in workload.CASES.values()]
cases += [*look_up.SAMPLERS.values()]
for case in cases:
    read_config(case)
print(len(cases))
"""


def test_they_import_and_their_settings_exist():
    names = sorted(path.stem for path in FOLDER.glob("*.py"))
    assert len(names) > 20
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE, *names],
        cwd=FOLDER,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20
