"""The script of interpreters and lowest versions refuses to check nothing."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")


def run(folder, *words, dependencies=None, **environment):
    """Runs a copy of the script beside a pyproject.toml with these ``dependencies``."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/versions", folder / ".ci")
    text = (ROOT / "pyproject.toml").read_text()
    if dependencies is not None:
        text = f"[project]\ndependencies = [\n{dependencies}]\n"
    (folder / "pyproject.toml").write_text(text)
    command = ["bash", folder / ".ci/versions", *words]
    path = {"PATH": "/usr/bin:/bin"}
    return subprocess.run(command, capture_output=True, text=True, env=path | environment)


@pytest.fixture
def stub(tmp_path):
    """A Python that makes no environment."""
    path = tmp_path / "python"
    path.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 0 || exit 7\n')
    path.chmod(0o755)
    return path


def test_it_needs_an_interpreter(tmp_path):
    done = run(tmp_path)
    assert done.returncode
    assert "name at least one Python" in done.stderr


def test_all_dependencies_have_a_lowest_version(tmp_path, stub):
    done = run(tmp_path, stub, LOWEST="1")
    assert (done.returncode, done.stdout) == (7, "== Python 0, lowest.txt\n"), done.stderr


def test_the_newest_versions(tmp_path, stub):
    done = run(tmp_path, stub, NEWEST="1")
    assert (done.returncode, done.stdout) == (7, "== Python 0, newest.txt\n"), done.stderr


@pytest.mark.parametrize("other", ["numpy", "numpy==1.26"])
def test_a_dependency_that_is_not_understood(tmp_path, stub, other):
    listed = f'    "torch>=2.4",\n    "{other}",\n'
    done = run(tmp_path, stub, dependencies=listed, LOWEST="1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "1 of 2 dependencies" in done.stderr
