"""Small changes of the code, one at a time: do the tests of the changed module notice each?

    python tests/benchmarks/mutants.py                                   # all: hours
    python tests/benchmarks/mutants.py --only kernels/adam --sample 20 --no-page

Mutation testing (DeMillo, Lipton, Sayward 1978, "Hints on test data selection"). Kernels run as
plain Python. A process that has imported PyTorch forks one for each mutant, which imports the
changed module and runs its tests. Writes results/mutants.{json,md}.
"""

import argparse
import ast
import contextlib
import copy
import importlib.abc
import importlib.machinery
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
# A mutant that runs for so many times as long as the original is noticed, too: it hangs.
PATIENCE, LEAST_SECONDS = 5.0, 20.0
# Modules of the library, and the tests that must notice a change of them.
MODULES = {
    "hashing/dwta": ("hashing",),
    "hashing/simhash": ("hashing",),
    "hashing/inner_product": ("hashing",),
    "hashing/tables": ("hashing",),
    "kernels/buckets": ("hashing", "kernels/test_buckets.py"),
    "kernels/hash_codes": ("hashing", "kernels/test_hash_codes.py"),
    "kernels/random": ("hashing", "kernels/test_random.py"),
    "kernels/votes": ("kernels/test_votes.py",),
    "kernels/shared_votes": ("kernels/test_votes.py",),
    "kernels/adam": ("kernels/test_adam.py", "optim"),
    "kernels/assemble_sets": ("kernels/test_assemble_sets.py", "sampling/test_sampling.py"),
    "kernels/dual_descent": ("kernels/test_dual_descent.py", "ranking/test_linear_classifiers.py"),
    "kernels/largest": ("kernels/test_largest.py", "search"),
    "kernels/loss_rows": (
        *("kernels/test_loss_rows.py", "functional/test_losses_naive.py"),
        "functional/test_losses.py",
    ),
    "kernels/pattern_products": ("kernels/test_pattern_products.py", "functional/test_linear.py"),
    "kernels/ragged": ("kernels/test_ragged.py",),
    "kernels/nonzeros": ("kernels/test_nonzeros.py", "functional/test_nonzero_entries.py"),
    "kernels/trees": ("kernels/test_trees.py",),
    "kernels/evidence": ("kernels/test_evidence.py",),
    "kernels/parse_rows": ("data/formats",),
    "kernels/read_numbers": ("kernels/test_read_numbers.py", "data/formats"),
    "functional/losses/bce": ("functional/test_losses.py", "functional/test_losses_naive.py"),
    "functional/losses/softmax": ("functional/test_losses.py", "functional/test_losses_naive.py"),
    "functional/losses/decoupled_softmax": (
        *("functional/test_losses.py", "functional/test_losses_naive.py"),
    ),
    "functional/losses/squared_hinge": (
        *("functional/test_losses.py", "functional/test_losses_naive.py"),
    ),
    "optim/row_sparse_adam": ("optim",),
    "optim/clipping": ("optim",),
}
_SWAPS: dict[type, type] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult},
    **{ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult},
    **{ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr},
    **{ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr},
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
    **{ast.And: ast.Or, ast.Or: ast.And},
}


def mutants(source: str) -> Iterator[tuple[int, str, str]]:
    """The line of each change, what it is, and the changed source."""
    tree = ast.parse(source)
    for number, node in enumerate(ast.walk(tree)):
        for change in _changes(node):
            changed = copy.deepcopy(tree)
            (twin,) = [each for i, each in enumerate(ast.walk(changed)) if i == number]
            before = ast.unparse(twin)
            change(twin)
            text = ast.unparse(ast.fix_missing_locations(changed))
            yield node.lineno, f"{before} -> {ast.unparse(twin)}", text


def _changes(node: ast.AST) -> Iterator:
    if isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp) and type(node.op) in _SWAPS:
        if not _is_text(node):
            yield lambda twin: setattr(twin, "op", _SWAPS[type(twin.op)]())
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPS:
        yield lambda twin: twin.ops.__setitem__(0, _SWAPS[type(twin.ops[0])]())
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield lambda twin: setattr(twin, "value", twin.value + 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield lambda twin: setattr(twin, "value", not twin.value)
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        yield lambda twin: setattr(twin, "test", ast.UnaryOp(ast.Not(), twin.test))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield lambda twin: setattr(twin, "op", ast.UAdd())
    elif isinstance(node, ast.Break | ast.Continue):
        yield lambda twin: setattr(twin, "__class__", ast.Pass)


def _is_text(node: ast.AST) -> bool:
    """Whether it adds texts, or is the union of two types."""
    kinds = (ast.JoinedStr, ast.Name)
    return any(
        isinstance(each, ast.Constant) and isinstance(each.value, str | type(None))
        for each in ast.walk(node)
    ) or (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.BitOr)
        and all(isinstance(side, kinds) for side in (node.left, node.right))
    )


class _Changed(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from another source."""

    def __init__(self, name: str, path: Path, source: str):
        self.name, self.path, self.source = name, path, source

    def find_spec(self, name: str, path: object = None, target: object = None):
        if name != self.name:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=str(self.path))

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(self.path)
        exec(compile(self.source, str(self.path), "exec"), module.__dict__)


def run_tests(name: str, source: str, tests: tuple[str, ...], limit: float) -> str:
    """What came of the tests of a changed module: ``killed``, ``hangs`` or ``survived``."""
    child = os.fork()
    if not child:
        os.setsid()
        signal.alarm(max(int(limit), 1))
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, 1)
        os.dup2(sink, 2)
        os.chdir(ROOT)
        path = ROOT / "slide" / f"{name}.py"
        sys.meta_path.insert(0, _Changed("slide." + name.replace("/", "."), path, source))
        status = 1
        with contextlib.suppress(BaseException):
            import pytest

            words = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not compiled_only"]
            status = int(pytest.main([*words, *(str(ROOT / "tests" / each) for each in tests)]))
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == -signal.SIGALRM:
        return "hangs"
    return "survived" if status == 0 else "killed"


def try_module(name: str, sample: int, draw: random.Random) -> dict:
    """Try mutants of a module; ``sample`` 0: all of them."""
    source = (ROOT / "slide" / f"{name}.py").read_text()
    begin = time.perf_counter()
    assert run_tests(name, source, MODULES[name], 600) == "survived", f"tests of {name} fail"
    limit = max(PATIENCE * (time.perf_counter() - begin), LEAST_SECONDS)
    every = list(mutants(source))
    chosen = draw.sample(every, min(sample, len(every))) if sample else every
    found = {"mutants": len(every), "tried": len(chosen), "survivors": []}
    for line, what, text in sorted(chosen):
        outcome = run_tests(name, text, MODULES[name], limit)
        if outcome == "survived":
            found["survivors"].append({"line": line, "change": what})
        print(f"{name}:{line}  {outcome}  {what}".replace("\n", " ")[:150], flush=True)
    return found


def page(found: dict) -> str:
    """The generated page."""
    from report import table

    rows, survivors = [], []
    for name, each in found["modules"].items():
        left = each["survivors"]
        share = f"{100 * (1 - len(left) / max(each['tried'], 1)):.0f} %"
        rows.append(
            {"module": name, "mutants": each["mutants"], "tried": each["tried"], "noticed": share}
        )
        survivors += [f"* `{name}`, line {x['line']}: `{x['change']}`" for x in left]
    tried = sum(each["tried"] for each in found["modules"].values())
    share = 100 * (1 - len(survivors) / max(tried, 1))
    return (
        f"# Mutants\n\nOf {tried} small changes of the code, {share:.0f} % are noticed by the "
        "tests of the changed module; the seed of the choice is "
        f"{found['seed']}. Kernels ran as plain Python.\n\n{table(rows)}\nNot noticed:\n\n"
        + "\n".join(survivors)
        + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="modules whose name begins with this")
    parser.add_argument("--sample", type=int, default=0, help="mutants of a module; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-page", action="store_true")
    given = parser.parse_args()
    os.environ["NUMBA_DISABLE_JIT"] = "1"  # Before numba is imported.
    import faiss  # noqa: F401  Imported before all forks.
    import numba  # noqa: F401
    import torch

    torch.set_num_threads(1)
    draw, modules = random.Random(given.seed), {}
    for name in MODULES:
        if name.startswith(given.only):
            modules[name] = try_module(name, given.sample, draw)
    found = {"seed": given.seed, "modules": modules}
    if given.no_page:
        print(page(found))
    else:
        from report import RESULTS, publish

        publish("mutants", found, page, RESULTS.parent)


if __name__ == "__main__":
    main()
