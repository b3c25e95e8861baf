"""Checks by name: `nox -l` lists them, `nox -s kernels -- tests/hashing` runs one on some tests.

They run in `.venv`, which CONTRIBUTING.md says how to make. What has to hold before a merge is a
stage of `.ci/run`; the other checks take longer, or draw other cases each time.
"""

from pathlib import Path

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "tests"]
PYTHON = ".venv/bin/python"


def stage(session, name):
    session.run(".ci/run", name, *session.posargs, external=True)


def pytest(session, *defaults, words=(), **environment):
    """Run the tests that the command line names, or the default ones."""
    named = session.posargs or defaults
    session.run(PYTHON, "-m", "pytest", *words, *named, env=environment, external=True)


@nox.session
def lint(session):
    """Style and format."""
    stage(session, "lint")


@nox.session
def types(session):
    """Types."""
    stage(session, "types")


@nox.session
def docs(session):
    """The site, into site/; warnings are errors."""
    stage(session, "docs")


@nox.session
def tests(session):
    """All tests, on all cores."""
    stage(session, "tests")


@nox.session
def reference(session):
    """Tests with plain torch in place of kernels."""
    stage(session, "reference")


@nox.session
def kernels(session):
    """Tests of kernels, which run as plain Python: it checks each index."""
    stage(session, "kernels")


@nox.session
def bounds(session):
    """Tests of kernels, which are compiled with checks of each index."""
    folder = ".numba-cache/checked"  # Kernels without these checks must not be found here.
    words = "-m", "kernels"
    pytest(session, words=words, NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=folder)


@nox.session
def fuzz(session):
    """Twenty times as many damaged files, others each time; the end says how to draw them again."""
    pytest(session, "tests/data", "tests/predict", SLIDE_FUZZ="20")


@nox.session
def kills(session):
    """A hundred runs that are killed and resumed, and fifty of two processes."""
    files = "tests/trust", "tests/distributed/test_runs.py"
    pytest(session, *files, SLIDE_KILLS="100", SLIDE_RANK_KILLS="50")


@nox.session
def ranks(session):
    """Longer runs of several processes."""
    pytest(session, "tests/distributed", SLIDE_RANK_STEPS="100")


@nox.session
def coverage(session):
    """Lines and branches that the tests reach, kernels as Python; an hour of one core."""
    run = PYTHON, "-m", "coverage", "run", "-m", "pytest"
    session.run(*run, external=True)
    session.run(*run, "-m", "kernels", env={"NUMBA_DISABLE_JIT": "1"}, external=True)
    for step in ("combine", "report"):
        session.run(PYTHON, "-m", "coverage", step, external=True)


@nox.session
def requirements(session):
    """requirements.txt, the versions of constraints.txt with hashes; needs uv."""
    path = Path("requirements.txt")
    about = [line for line in path.read_text().splitlines(True) if line.startswith("#")]
    words = "--extra serve --universal --python-version 3.12 --generate-hashes --no-annotate"
    words += " --no-header --no-emit-index-url --no-emit-find-links --constraints constraints.txt"
    session.run(
        *("uv", "pip", "compile", "pyproject.toml", *words.split(), "--output-file", path),
        external=True,
    )
    path.write_text("".join(about) + path.read_text())
