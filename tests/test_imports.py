"""What may import what, read from the source."""

import ast
import re
from pathlib import Path

import pytest
from helpers.programs import output_of

import slide

ROOT = Path(__file__).parent.parent
# Modules at the root of the package that count as a room of several; others count as themselves.
UTILS = ("backend", "runtime", "sparse", "utils")
STRUCTURES = ("active_set", "row_gradients")
# A room, and the rooms that it may import from, beside itself.
ROOMS = {
    "utils": "",
    "ops": "utils",
    "structures": "utils ops",
    "hashing": "utils ops",
    "functional": "utils ops structures",
    "optim": "utils ops structures",
    "data": "utils ops",
    "search": "utils ops structures functional",
    "sampling": "utils ops structures hashing search",
    "testing": "utils structures hashing sampling",
    "nn": "utils structures functional optim sampling search",
    "distributed": "utils ops structures functional sampling nn",
    "check": "utils ops structures functional hashing optim sampling search",
    "ranking": "utils ops data search nn",
    "training": "utils structures data optim search nn distributed ranking",
    "model": "utils hashing functional optim data sampling nn ranking training",
    "predict": "utils data model training",
    "report": "utils",
    "compare": "utils report",
    "serve": "utils model predict",
    "config": "utils functional data optim sampling nn distributed ranking model training report",
    "estimator": "utils data sampling nn model training config",
}
# Who alone may import these packages; (): nobody in the library.
ONLY = {
    "numba": ("slide.ops.compile", "slide.ops.vectors", "slide.runtime", "slide.utils.profiling"),
    "tqdm": ("slide.utils.progress_bar",),
    "faiss": ("slide.ranking.scorers.neighbours", "slide.search.faiss_bytes"),
    "tensorboard": (),
    "torch.utils.tensorboard": ("slide.training.monitor",),
    "hydra": ("slide.config",),
    "omegaconf": ("slide.config",),
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
    "safetensors": ("slide.utils.tensor_folder",),
    **dict.fromkeys(("fastapi", "starlette", "pydantic", "uvicorn"), ("slide.serve",)),
    "prometheus_client": ("slide.serve.routes",),
    "submitit": ("slide.config.processes",),
    "onnx": (),
    "onnxruntime": (),
}
# Commands, which stand above all rooms.
ENTRIES = {f"slide.{room}.__main__" for room in ("check", "data", "predict", "serve")}


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


def room_of(module):
    part = module.split(".")[1]
    return "utils" if part in UTILS else "structures" if part in STRUCTURES else part


def within(module, owners):
    return any(module == owner or module.startswith(owner + ".") for owner in owners)


def test_each_module_is_in_a_room():
    assert {room_of(module) for module in MODULES if module != "slide"} == set(ROOMS)


def test_rooms_have_an_order():
    """No room imports, by way of others, from itself."""
    known = []
    for room, allowed in ROOMS.items():
        assert set(allowed.split()) <= set(known), f"{room} may import from a room above it"
        known.append(room)


def test_imports_keep_to_the_directions():
    for module in MODULES.keys() - {"slide", *ENTRIES}:
        room = room_of(module)
        for other in INNER[module]:
            assert other != "slide", f"{module} imports the whole package"
            found = room_of(other)
            assert found == room or found in ROOMS[room].split(), f"{module}: no import of {found}"


def test_all_directions_are_used():
    used = {(room_of(m), room_of(other)) for m in MODULES if m != "slide" for other in INNER[m]}
    for room, allowed in ROOMS.items():
        for other in allowed.split():
            assert (room, other) in used, f"{room} does not import {other}: forbid it"


def picture():
    """The allowed directions as a table, with a mark where the row may import the column."""
    rooms = list(ROOMS)
    lines = ["| imports from | " + " | ".join(rooms[:-1]) + " |", "|---" * len(rooms) + "|"]
    for room, allowed in list(ROOMS.items())[1:]:
        marks = ["x" if other in allowed.split() else "" for other in rooms[:-1]]
        lines.append(f"| **{room}** | " + " | ".join(marks) + " |")
    return "\n".join(lines)


def test_the_readme_shows_the_directions():
    text = (ROOT / "slide/README.md").read_text()
    block = re.search(r"<!-- rooms: [^\n]*-->\n(.*?)\n<!-- /rooms -->", text, re.DOTALL)
    assert block, "slide/README.md has no block of rooms"
    assert block[1].strip() == picture()


def test_packages_have_one_importer():
    for package, owners in ONLY.items():
        importers = {m for m, found in IMPORTS.items() if any(within(i, [package]) for i in found)}
        assert {m for m in importers if not within(m, owners)} == set(), package
        assert importers or not owners, f"nobody imports {package}: the test looks elsewhere"


@pytest.mark.parametrize("word", ["njit", "fastmath"])
def test_compiler_flags_are_set_in_one_place(word):
    using = {m for m, path in MODULES.items() if word in path.read_text()}
    assert using == {"slide.ops.compile"}


def test_importing_slide_and_using_an_optimizer_are_light():
    code = (
        "import sys, slide; "
        "optimizer = slide.RowSparseAdam(slide.SampledLinear(4, 9).parameters()); "
        "optimizer.zero_grad(); optimizer.load_state_dict(optimizer.state_dict()); "
        "heavy = {'slide.training', 'slide.config', 'hydra', 'omegaconf', 'tensorboard', "
        "'torch.utils.tensorboard', 'matplotlib', 'faiss', 'sklearn', 'scipy.sparse', "
        "'slide.data', 'slide.model', 'safetensors', 'requests', 'gdown', 'filelock', "
        "'fastapi', 'uvicorn', 'prometheus_client', 'torch._dynamo'}; "
        "print(sorted(heavy & set(sys.modules))); "
        # The guides name `slide.training.CoreShare` and others in full.
        "print([getattr(slide, name).__name__[6:] for name in slide._ROOMS])"
    )
    assert output_of("-c", code) == f"[]\n{list(slide._ROOMS)}\n"
    assert set(slide._ROOMS) <= set(dir(slide))
    # Completion offers no module that public names are only imported from.
    assert not {"typing", "utils", "ops", "backend", "sparse", "row_gradients"} & set(dir(slide))
    with pytest.raises(AttributeError, match="no attribute 'trainings'"):
        _ = slide.trainings
