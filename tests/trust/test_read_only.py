"""A run, and a saved model, where neither the package nor the home folder can be written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import job
from numba.core.caching import UserProvidedCacheLocator

from slide.model import load

pytestmark = pytest.mark.compiled_only  # Compiled kernels are what is written there.

RUN = """
import sys
import numpy as np
from slide import SlideClassifier
from slide.config import command
place = sys.argv.pop(1)
command.train()
model = SlideClassifier(hidden=8, epochs=1, ranker=None, random_state=0)
model.fit(np.eye(6)[[0, 1, 2] * 4], ["a", "b", "c"] * 4).save(place)
"""
# Of the folders that are the first two arguments, only the second one can be written.
MOUNTED = """
only() { mount --bind "$2" "$2" && mount -o "remount,$1,bind" "$2" || exit 77; }
mount --make-rprivate / || exit 77
only ro "$0"
only rw "$1"
if touch "$0/x" 2> /dev/null; then exit 77; fi
shift
exec "$@"
"""


def copy_kernels(folder):
    """Put most kernels that are compiled already to where they are looked for."""
    for path in (job.ROOT / "slide").rglob("*.py"):
        place = folder / UserProvidedCacheLocator.get_suitable_cache_subpath(str(path))
        place.mkdir(parents=True, exist_ok=True)
        if path.name != "trees.py":  # Which the re-ranker compiles soon.
            for each in (path.parent / "__pycache__").glob(f"{path.stem}.*.nb?"):
                shutil.copy(each, place)


def test_a_run_and_a_model_that_is_saved(tmp_path):
    kernels = os.environ.get("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    if "NUMBA_CACHE_DIR" not in os.environ:
        copy_kernels(tmp_path / "kernels")
    python = [sys.executable, "-c", RUN, str(tmp_path / "saved"), *job.tiny(tmp_path)]
    env = {"HOME": str(job.ROOT), "PYTHONPATH": str(job.ROOT), "NUMBA_CACHE_DIR": kernels}
    words = ["unshare", "--mount", "sh", "-c", MOUNTED, str(job.ROOT), kernels, *python]
    if shutil.which("unshare") is None:
        pytest.skip("folders can be mounted by root only, on Linux")
    found = subprocess.run(
        words, env={**os.environ, **env}, cwd=tmp_path, text=True, capture_output=True
    )
    if found.returncode == 77 or "unshare failed" in found.stderr:
        pytest.skip("folders can be mounted by root only, on Linux")
    assert found.returncode == 0, found.stderr
    assert "Set NUMBA_CACHE_DIR" not in found.stderr
    assert any(Path(kernels).rglob("trees.*.nbi"))
    assert load(tmp_path / "run").num_labels == 80
    assert load(tmp_path / "saved").num_labels == 3


def test_a_run_that_could_write_nothing_ends_before_the_data_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    said = job.failure(*job.tiny(tmp_path))
    told = f"error: the run would write into {tmp_path}/run, and {tmp_path} cannot be written"
    assert said == told
    assert not list(tmp_path.iterdir())
