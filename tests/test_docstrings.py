"""Examples in docstrings run, and every public class and function has one."""

import ast
import doctest
import inspect
import pkgutil
from importlib import import_module
from pathlib import Path

import pytest

import slide

ROOT = Path(slide.__file__).parent
MODULES = sorted(
    info.name
    for info in pkgutil.walk_packages([str(ROOT)], "slide.")
    if not info.name.endswith("__main__")
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def documented(module):
    """``(name, docstring)`` of a module, and of its functions, classes and their methods.

    `doctest.DocTestFinder` does not see functions inside of decorators of other modules.
    """
    yield module.__name__, module.__doc__
    for name, value in list(vars(module).items()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(value):
            yield name, value.__doc__
            for part, member in vars(value).items():
                member = getattr(member, "__func__", getattr(member, "fget", member))
                if inspect.isfunction(member):
                    yield f"{name}.{part}", member.__doc__
        elif inspect.isroutine(value):
            yield name, value.__doc__


def run_examples(module):
    """The report of the examples that failed, and how many were run."""
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=FLAGS)
    report = []
    for name, text in documented(module):
        test = parser.get_doctest(text or "", {}, name, module.__file__, 0)
        if test.examples:
            runner.run(test, out=report.append)
    return "".join(report), runner.tries


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("room", sorted({name.split(".")[1] for name in MODULES}))
def test_examples(room):
    """Of the modules of a room."""
    found = {n: run_examples(import_module(n)) for n in MODULES if n.split(".")[1] == room}
    assert not (report := "".join(report for report, _ in found.values())), report
    for name in ("slide.optim.clipping", "slide.functional.sparse_linear"):
        assert name not in found or found[name][1] >= 3, "there are examples that were not found"


def exported(path):
    """The names that an ``__init__.py`` exports."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            yield from (alias.asname for alias in node.names if alias.asname == alias.name)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            yield from ast.literal_eval(node.value)


def public():
    """``package.name`` of all that slide and its rooms export; `slide.ops` serves rooms alone."""
    for path in sorted({*ROOT.rglob("__init__.py")} - {ROOT / "ops/__init__.py"}):
        package = ".".join(("slide", *path.parent.relative_to(ROOT).parts))
        yield from (f"{package}.{name}" for name in exported(path))


def test_every_public_name_has_an_example():
    without = []
    for name in public():
        package, _, attribute = name.rpartition(".")
        value = getattr(import_module(package), attribute)
        fails = inspect.isclass(value) and issubclass(value, Exception)
        if (inspect.isclass(value) or inspect.isroutine(value)) and not fails:
            text = value.__doc__ or ""
            # An example that cannot run here is a block of code between fences.
            without += [] if ">>>" in text or "```" in text else [name]
    assert not without, "they need a short example in their docstrings"
