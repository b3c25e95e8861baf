"""What may import what, read from the source."""

import ast
import json
import re
from pathlib import Path

import pytest
from helpers.programs import output_of

ROOT = Path(__file__).parent.parent
# Modules at the root of the package that count as a package of several; others count as themselves.
UTILS = ("backend", "runtime", "sparse", "utils")
STRUCTURES = ("active_set", "row_gradients")
# Who alone may import these packages; (): nobody in the library.
ONLY = {
    "numba": ("slide.ops.compile", "slide.ops.vectors", "slide.runtime", "slide.utils.profiling"),
    "tqdm": ("slide.utils.progress_bar",),
    "faiss": (
        "slide.ranking.scorers.neighbours",
        "slide.sampling.faiss",
    ),
    "tensorboard": ("slide.training.monitor",),
    "torch.utils.tensorboard": ("slide.training.monitor",),
    **dict.fromkeys(("wandb", "mlflow"), ("slide.training.loggers",)),
    "hydra": ("slide.config",),
    "omegaconf": ("slide.config", "slide.distributed.processes"),
    "requests": ("slide.data.fetching",),
    "filelock": ("slide.data.fetching", "slide.utils.run_folders"),
    "matplotlib": ("slide.report.page",),
    "yaml": (
        "slide.config.compose",
        "slide.report.run_files",
        "slide.utils.run_folders",
        "slide.utils.sizes",
    ),
    "sklearn": (
        *("slide.ranking.final_ranker", "slide.estimator"),
        *("slide.data.text_vectorizer", "slide.data.transforms"),
    ),
    "huggingface_hub": ("slide.model.hub",),
    "safetensors": ("slide.utils.tensor_folder",),
    **dict.fromkeys(("fastapi", "starlette", "pydantic", "uvicorn"), ("slide.serve",)),
    "prometheus_client": ("slide.serve.routes",),
    "submitit": ("slide.distributed.processes",),
    "onnx": (),
    "onnxruntime": (),
}
# The library works without these packages; all others are its core.
WINGS = (
    *("check", "ranking", "distributed", "predict", "serve", "report", "compare", "estimator"),
)
# Where the core imports a wing, when something asks for it: a run of several processes, the report
# at the end of a run, a public name. Besides, names of a fixed list of
# packages are looked up in `slide.config.compose` when a run is resumed.
LAZY = {
    ("slide", "slide.estimator"),
    ("slide.config.command", "slide.distributed.processes"),
    ("slide.config.command", "slide.report"),
}
# What a small run without a re-ranker and a report must not import.
UNUSED = ("sklearn", "matplotlib", *(f"slide.{wing}" for wing in WINGS))
# Commands, which stand above all packages.
ENTRIES = {f"slide.{package}.__main__" for package in ("data", "predict", "serve")}


def find_modules():
    """``{dotted name: path}`` of the library."""
    found = {}
    for path in sorted((ROOT / "slide").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = find_modules()


def imports_of(module):
    """The dotted names that a module imports, wherever in it; of the library's, modules."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                known = full in MODULES or full == "torch.utils.tensorboard"
                found.add(full if known else node.module)
    return found


IMPORTS = {module: imports_of(module) for module in MODULES}
INNER = {module: {i for i in IMPORTS[module] if i in MODULES} for module in MODULES}


def package_of(module):
    part = module.partition(".")[2].partition(".")[0]
    return "utils" if part in UTILS else "structures" if part in STRUCTURES else part


def within(module, owners):
    return any(module == owner or module.startswith(owner + ".") for owner in owners)


def read_packages():
    """The packages of the table in slide/README.md, and those from which each may import."""
    text = (ROOT / "slide/README.md").read_text()
    head, _, *lines = (
        text.partition("<!-- packages:")[2].partition("<!-- /packages -->")[0].split("\n|")[1:]
    )
    names = [name.strip() for name in head.split("|")[1:-1]]
    packages: dict = {names[0]: set()}
    for line in lines:
        package, *marks = (cell.strip(" *") for cell in line.split("|")[:-1])
        packages[package] = {name for name, mark in zip(names, marks, strict=True) if mark}
    return packages


def test_imports_are_those_of_the_table():
    packages = read_packages()
    used = {package: set() for package in packages}
    for module in MODULES.keys() - {"slide", *ENTRIES}:
        assert "slide" not in INNER[module], f"{module} imports the whole package"
        found = {other for other in INNER[module] if (module, other) not in LAZY}
        used[package_of(module)] |= {package_of(other) for other in found}
    for package, found in used.items():
        assert found - {package} == packages[package], (
            f"{package} imports other packages than the table says"
        )


def test_packages_have_an_order():
    """No package imports, by way of others, from itself."""
    known = set()
    for package, allowed in read_packages().items():
        assert allowed <= known, f"{package} may import from a package above it"
        known.add(package)


def test_the_core_stands_alone():
    """It imports a wing nowhere, not even in a function, but in the lines that are listed."""
    packages = list(read_packages())
    assert sorted(packages[-len(WINGS) :]) == sorted(WINGS)  # They stand behind the core.
    core = [module for module in MODULES if package_of(module) not in WINGS]
    found = {(m, other) for m in core for other in INNER[m] if package_of(other) in WINGS}
    assert found == LAZY


RUN = """
import json, sys
import slide, slide.config, slide.model, slide.testing, slide.training
from slide.config.command import train
train()
print(json.dumps(list(sys.modules)))
"""


@pytest.mark.compiled_only
def test_a_run_imports_no_wing(tmp_path):
    # Dense rows would ask for the neighbours of scikit-learn.
    sizes = ("train_samples=300", "test_samples=40", "num_features=1000", "num_labels=80")
    words = [*(f"dataset.{size}" for size in sizes), f"dataset.cache={tmp_path}/cache"]
    words += ["ranker=none", "report=false", "trainer.max_steps=2", f"run_dir={tmp_path}/run"]
    imported = json.loads(output_of("-c", RUN, *words).splitlines()[-1])
    assert "slide.training.trainer" in imported
    assert [name for name in imported if within(name, UNUSED)] == []


def test_packages_have_one_importer():
    for package, owners in ONLY.items():
        importers = {m for m, found in IMPORTS.items() if any(within(i, [package]) for i in found)}
        assert {m for m in importers if not within(m, owners)} == set(), package
        assert importers or not owners, f"nobody imports {package}: the test looks elsewhere"


def test_no_private_module_of_a_package_is_imported():
    """It may change with any version."""
    found = {(m, other) for m in MODULES for other in IMPORTS[m] if re.search(r"\b_(?!_)", other)}
    assert found == set()


@pytest.mark.parametrize("word", ["njit", "fastmath"])
def test_compiler_flags_are_set_in_one_place(word):
    using = {m for m, path in MODULES.items() if word in path.read_text()}
    assert using == {"slide.ops.compile"}
