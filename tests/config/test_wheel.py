"""A wheel, installed where there is no checkout, holds all that the main job needs."""

import ast
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from helpers import job

SOURCES = ("slide", "conf", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
# So few steps take less time than compiling their kernels for another folder.
PLAIN = {"NUMBA_DISABLE_JIT": "1", "PYTHONWARNINGS": "ignore"}


def run(*words, cwd, **environment):
    """What a command prints; it must succeed."""
    path = f"{cwd / 'venv' / 'bin'}:/usr/bin:/bin"
    done = subprocess.run(
        list(map(str, words)),
        **{"cwd": cwd, "capture_output": True, "text": True, "timeout": 300},
        env={"PATH": path, "HOME": str(cwd), **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The path of a wheel. It is built from a copy, since building writes beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "sources").mkdir()
    for name in SOURCES:
        source, copy = job.ROOT / name, folder / "sources" / name
        if source.is_dir():
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy)
    run(
        *(sys.executable, "-m", "pip", "wheel", folder / "sources", "--no-deps", "--no-index"),
        *("--no-build-isolation", "-q", "-w", folder),
        cwd=folder,
    )
    (path,) = folder.glob("slide_xmc-*.whl")
    return path


@pytest.fixture(scope="module")
def home(wheel, tmp_path_factory):
    """An empty folder but for an environment with the wheel; other packages are those here."""
    folder = tmp_path_factory.mktemp("home")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    pip = [sys.executable, "-m", "pip", "--python", folder / "venv/bin/python", "install", "-q"]
    run(*pip, "--no-deps", "--no-index", wheel, cwd=folder)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    here = sysconfig.get_paths()["purelib"]
    (packages / "others.pth").write_text(f"{here}\n")
    return folder


def test_a_copy_that_is_named_as_the_package_can_be_imported_beside_it(tmp_path):
    """An editable install wins against the folder, which is a namespace package to Python."""
    copy, packages = tmp_path / "slide", tmp_path / "packages"
    (copy / "slide").mkdir(parents=True)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "slide/runtime.py"):
        shutil.copy(job.ROOT / name, copy / name)
    (copy / "slide/__init__.py").write_text("here = True\n")
    build = "from setuptools import build_meta; build_meta.build_editable('..')"
    run(sys.executable, "-c", build, cwd=copy)
    (path,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(path).extractall(packages)
    found = f"import site; site.addsitedir({str(packages)!r}); import slide; print(slide.here)"
    assert run(sys.executable, "-S", "-c", found, cwd=tmp_path) == "True\n"


def test_a_wheel_holds_code_and_configurations_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {f"slide/{path.relative_to(job.ROOT)}" for path in job.CONF.rglob("*.yaml")}
    expected |= {str(path.relative_to(job.ROOT)) for path in (job.ROOT / "slide").rglob("*.py")}
    assert expected - names == set()
    rest = {name for name in names if ".dist-info/" not in name and not name.endswith("/")}
    assert rest - expected == {"slide/py.typed"}


def test_slide_train_from_a_wheel(home):
    words = [word for word in job.tiny(home) if not word.startswith(("run_dir", "dataset.cache"))]
    said = run("slide-train", *words, "ranker=none", "trainer.max_steps=2", cwd=home, **PLAIN)
    (folder,) = (home / "results/synthetic").iterdir()
    assert said.endswith(f"  results/synthetic/{folder.name}\n")
    assert json.loads((folder / "summary.json").read_text())["steps"] == 2
    assert {path.name for path in home.iterdir()} == {"venv", "results", "datasets"}


# All commands in one process: importing their libraries takes seconds.
HELP = """
import sys
from importlib.metadata import entry_points
import slide

print(slide.__file__)
for point in entry_points(group="console_scripts"):
    if point.name.startswith("slide-"):
        sys.argv = [point.name, "--help"]
        try:
            point.load()()
        except SystemExit as ended:
            assert not ended.code
"""


def test_help_from_a_wheel(home):
    where, said = run("venv/bin/python", "-c", HELP, cwd=home).split("\n", 1)
    assert Path(where).is_relative_to(home), "slide comes from elsewhere"
    assert "  slide-train [group=choice ...]" in said
    assert "  slide-data describe" in said
    for name in ("slide-predict", "slide-serve", "slide-compare"):
        assert f"usage: {name} [-h]" in said


# What brings packages that are no requirement by themselves.
BROUGHT_BY = {
    "llvmlite": "numba",
    "omegaconf": "hydra-core",
    "starlette": "fastapi",
    "submitit": "hydra-submitit-launcher",
}


def test_what_it_imports_is_required():
    """An environment without the tools of developers has all that the package imports."""
    text = (job.ROOT / "pyproject.toml").read_text()
    required = set(
        re.findall(r'"([\w-]+)>=', re.sub(r"\n(dev|docs|bench) = \[.*?\]\n", "", text, flags=re.S))
    )
    here, missing = metadata.packages_distributions(), set()
    for path in (job.ROOT / "slide").rglob("*.py"):
        for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
            if name != "slide" and name not in sys.stdlib_module_names:
                brought, *_ = here.get(name, [name])  # Some extras may not be installed.
                brought = BROUGHT_BY.get(name, brought).lower().replace("_", "-")
                missing |= {brought} - required
    assert missing == set()
    assert len(required) > 15


def imported(tree):
    """The top-level names of all modules that a program imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
