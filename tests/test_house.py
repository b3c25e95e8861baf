"""Sizes of files, functions and constructors, and names that are used once."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("slide", "tests", "examples", "conf", "docs", "datasets")
FILES = sorted(
    [*ROOT.glob("*.py"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))]
)
LIBRARY = [path for path in FILES if path.is_relative_to(ROOT / "slide")]
MAX_LINES, MAX_FUNCTION, MAX_ARGUMENTS = 300, 60, 10
PLACE = {"device", "dtype"}  # Each layer of PyTorch has these two; they do not count.
# Entry points, what every module may have, and what each file of a loss defines.
SHARED_NAMES = {"main", "__all__", "LOSS"}


def named(paths):
    return pytest.mark.parametrize("path", paths, ids=lambda p: p.relative_to(ROOT).as_posix())


def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@named(FILES)
def test_files_are_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_LINES


@named([*LIBRARY, ROOT / "train.py"])
def test_functions_are_short(path):
    """Lines of code: where an API has many options, the docstring explains each."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = node.end_lineno - node.lineno + 1
            if ast.get_docstring(node) is not None:
                lines -= node.body[0].end_lineno - node.body[0].lineno + 1
            assert lines <= MAX_FUNCTION, f"{node.name}: {lines} lines"


@named(LIBRARY)
def test_constructors_take_few_arguments(path):
    """Dataclasses and named tuples have no written constructor: they are what settings are in."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            given = node.args
            names = {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
            count = len(names - PLACE) - 1
            assert count <= MAX_ARGUMENTS, f"line {node.lineno}: {count} arguments"


def defined(path):
    """Public names that a module defines at its top level."""
    for node in parsed(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "TypeVar":
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for part in (part for target in targets for part in ast.walk(target)):
                if isinstance(part, ast.Name):
                    yield part.id


def test_no_two_things_have_one_name():
    places = defaultdict(set)
    for path in LIBRARY:
        for name in defined(path):
            if not name.startswith("_") and name not in SHARED_NAMES:
                # Operations in plain torch have the names of their kernels.
                place = path.relative_to(ROOT).as_posix().replace("slide/plain", "slide/kernels")
                places[name].add(place)
    assert {name: sorted(found) for name, found in places.items() if len(found) > 1} == {}
