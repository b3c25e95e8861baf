"""The commands of `datasets/` as modules, and programs in place of those of apt."""

import importlib.util
from functools import cache
from pathlib import Path

DATASETS = Path(__file__).parents[2] / "datasets"


@cache
def command(name):
    """The module ``datasets/<name>/prepare.py``."""
    path = DATASETS / name / "prepare.py"
    spec = importlib.util.spec_from_file_location(f"prepare_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_program(folder, name, script):
    """Put a program into a folder; returns its path."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)
