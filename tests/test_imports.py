"""What may import what, read from the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# A module imports from its own group or from those before it.
GROUPS = [
    {
        "checks",
        "files",
        "kernels",
        "metrics",
        "mips",
        "monitor",
        "rules",
        "runtime",
        "schedules",
        "sparse",
    },
    {
        *(
            "active",
            "clip",
            "convolution",
            "csr_product",
            "data",
            "dropout",
            "functional",
            "hashing",
        ),
        *("inner_product", "linear", "losses", "nonzeros", "optim", "row_subset", "tables"),
    },
    {"indexed_sampling", "sampling"},
    {"testing"},
    {"conv_layers", "layers"},
    {"network"},
    {"evaluation", "reranking", "trainer"},
]
# Who alone may import these packages; None: nobody in the library.
ONLY = {
    "numba": ("slide.kernels", "slide.runtime"),
    "faiss": ("slide.search.mips",),
    "tensorboard": ("slide.training.monitor",),
    "torch.utils.tensorboard": ("slide.training.monitor",),
    "hydra": ("slide.config.data_command",),
    "omegaconf": ("slide.config.data_command",),
    "scipy": (
        "slide.functional.csr_product",
        "slide.data.formats.npz_reader",
        "slide.ranking.linear_ranker",
    ),
    "matplotlib": (),
}
MAX_LINES = 400


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


def group_of(module):
    part = module.split(".")[1]
    (place,) = [place for place, group in enumerate(GROUPS) if part in group]
    return place


def within(module, owners):
    return any(module == owner or module.startswith(owner + ".") for owner in owners)


def test_each_module_has_its_place():
    parts = {module.split(".")[1] for module in MODULES if module != "slide"}
    assert parts == set().union(*GROUPS)


@pytest.mark.parametrize("module", [m for m in MODULES if m != "slide"])
def test_imports_go_downward(module):
    for other in INNER[module]:
        assert other != "slide", f"{module} imports the whole package"
        assert group_of(other) <= group_of(module), f"{module} imports {other} upward"


def test_kernels_import_kernels_alone():
    for module in MODULES:
        if within(module, ["slide.kernels"]):
            assert all(within(other, ["slide.kernels"]) for other in INNER[module])


def test_there_are_no_cycles():
    done, path = set(), []

    def visit(module):
        assert module not in path, " -> ".join([*path, module])
        if module in done:
            return
        path.append(module)
        # A package's names come from its modules, which may import one another, not the package.
        for other in INNER[module]:
            visit(other)
        path.pop()
        done.add(module)

    for module in MODULES:
        visit(module)
    assert done == set(MODULES)


@pytest.mark.parametrize("package", ONLY)
def test_packages_have_one_importer(package):
    importers = {m for m, found in IMPORTS.items() if any(within(i, [package]) for i in found)}
    strangers = {m for m in importers if not within(m, ONLY[package])}
    assert not strangers
    if ONLY[package] and package != "tensorboard":
        assert importers, f"nobody imports {package}: this test looks at the wrong thing"


@pytest.mark.parametrize("word", ["njit", "fastmath"])
def test_compiler_flags_are_set_in_one_place(word):
    using = {m for m, path in MODULES.items() if word in path.read_text()}
    assert using == {"slide.kernels.compile"}


def test_kernels_know_no_classes_and_no_globals():
    """Functions, named tuples and constants, that is."""
    for module, path in MODULES.items():
        if not within(module, ["slide.kernels"]):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            assert not isinstance(node, ast.Global | ast.Nonlocal)
            if isinstance(node, ast.ClassDef):
                assert [base.id for base in node.bases] == ["NamedTuple"], node.name


def test_importing_slide_is_light():
    code = (
        "import sys, slide; "
        "heavy = {'slide.training.trainer', 'slide.training.monitor', 'slide.training.evaluation', 'hydra', 'omegaconf', "
        "'tensorboard', 'torch.utils.tensorboard', 'matplotlib'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_all_public_names_exist():
    import slide

    tree = ast.parse(MODULES["slide"].read_text())
    names = [
        alias.asname
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert len(names) > 10
    for name in names:
        assert name, "public names are imported as themselves"
        assert hasattr(slide, name)


def test_files_stay_readable():
    folders = [p for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith(".")]
    files = [*ROOT.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))]
    assert len(files) > 40
    long = {
        str(path.relative_to(ROOT)): count
        for path in files
        if (count := len(path.read_text().splitlines())) > MAX_LINES
    }
    assert not long
