"""Which tests of `slide.check` and `kernel_formulas` notice that a kernel is broken.

    NUMBA_DISABLE_JIT=1 PYTHONPATH=tests python -m helpers.broken_kernels

breaks one kernel after the other and prints, as JSON, the first test that notices it, or null. A
broken kernel writes nothing into its arguments, and returns other numbers. That needs kernels in
plain Python.
"""

import ast
import json
import signal
import sys
import time
import types
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from helpers.kernel_formulas import FORMULAS
from helpers.limits import more_memory
from slide.check import SELF_TESTS

ROOT = Path(__file__).parents[2]
TESTS = {**SELF_TESTS, **FORMULAS}
TRIALS, SECONDS, MEMORY = 3, 60, 1 << 30
# They ask for memory ahead of time, and have no result that could be wrong.
WITHOUT_RESULT = {"prefetch_entries", "prefetch_row"}


def find_kernels():
    """Where public functions are that are compiled, and all others of that folder, by name."""
    found = {}
    for path in sorted((ROOT / "slide").rglob("*.py")):
        inside = path.parent.name == "kernels" and path.name != "compile.py"
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            decorators = {d.id for d in node.decorator_list if isinstance(d, ast.Name)}
            if inside or decorators & {"serial", "parallel"}:
                found.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    return found


def function_of(name, path):
    """The function of a kernel, without what its decorator put around it."""
    module = import_module(".".join(Path(path).with_suffix("").parts))
    found = getattr(module, name)
    return getattr(found, "__wrapped__", found)


def replace(function, other):
    """Let all who hold a function call another one; returns what puts it back."""
    whole, name = function.__code__, f"_instead_of_{function.__name__}"
    function.__globals__[name] = other
    # Not the name in a module, because other modules have imported the function itself.
    function.__code__ = eval(f"lambda *words: {name}(*words)").__code__

    def put_back():
        function.__code__ = whole

    return put_back


def arrays_in(words):
    """All arrays among arguments and in tuples of them."""
    for word in words:
        if isinstance(word, np.ndarray):
            yield word
        elif isinstance(word, tuple):
            yield from arrays_in(word)


def changed(value):
    """Another result of the same type."""
    if isinstance(value, tuple):
        parts = [changed(each) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if value is None:
        return None
    if isinstance(value, bool | np.bool_):
        return not value
    return value + value.dtype.type(1) if hasattr(value, "dtype") else value + 1


def broken(function):
    """A function that leaves its arguments as they were, and returns other numbers."""
    whole = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__
    )

    def call(*words):
        before = [(array, array.copy()) for array in arrays_in(words)]
        found = whole(*words)
        for array, old in before:
            if array.flags.writeable:
                array[...] = old
        return changed(found)

    return call


def noticed(test):
    """Whether a test fails on random inputs, or does not end."""
    rng = np.random.default_rng(0)
    torch.manual_seed(0)
    signal.alarm(SECONDS)
    try:
        with more_memory(MEMORY):  # A wrong count may ask for all there is.
            for _ in range(TRIALS):
                test(rng)
    except Exception:
        return True
    finally:
        signal.alarm(0)
    return False


def _late(number, frame):
    raise TimeoutError


def called_in(test, functions):
    """Names of the functions that a test calls."""
    found, codes = set(), {function.__code__: name for name, function in functions.items()}

    def note(frame, event, argument):
        if event == "call" and frame.f_code in codes:
            found.add(codes[frame.f_code])

    sys.setprofile(note)
    try:
        test(np.random.default_rng(0))
    finally:
        sys.setprofile(None)
    return found


def main():
    """Print the name of a test that notices each kernel."""
    paths = {name: paths[0] for name, paths in find_kernels().items() if name not in WITHOUT_RESULT}
    functions = {name: function_of(name, path) for name, path in paths.items()}
    signal.signal(signal.SIGALRM, _late)
    torch.manual_seed(0)
    called, seconds = {}, {}
    for name, test in TESTS.items():
        begin = time.perf_counter()
        called[name] = called_in(test, functions)
        seconds[name] = time.perf_counter() - begin
    found = {}
    for kernel, function in functions.items():
        put_back = replace(function, broken(function))
        # The fastest first: one that notices is enough.
        tests = sorted((name for name in TESTS if kernel in called[name]), key=seconds.get)
        found[kernel] = next((name for name in tests if noticed(TESTS[name])), None)
        put_back()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
