"""Small changes of the code, one at a time: do the tests of the changed module notice each?

    python tests/benchmarks/mutants.py                                   # all: hours
    python tests/benchmarks/mutants.py --only kernels/adam --sample 20 --minutes 10
    python tests/benchmarks/mutants.py --survivors   # those of before, after a new test

Mutation testing (DeMillo, Lipton, Sayward 1978, "Hints on test data selection"). Kernels run as
plain Python. A process that has imported PyTorch forks one for each mutant, which imports the
changed module and runs its tests. A module whose code and tests did not change since is left as it
is (rows.py). mutants_judged.json says of survivors why no test notices them.

Writes results/mutants.{json,md}.
"""

import argparse
import ast
import contextlib
import copy
import hashlib
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
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# A mutant that runs for so many times as long as the original is noticed, too: it hangs.
PATIENCE, LEAST_SECONDS = 5.0, 20.0
# Modules of the library, and the tests that must notice a change of them.
MODULES = {
    "hashing/dwta": ("hashing",),
    "hashing/simhash": ("hashing",),
    "hashing/inner_product": ("hashing",),
    "hashing/learned": ("hashing",),
    "hashing/probing": ("hashing", "kernels/test_probes.py"),
    "hashing/tables": ("hashing",),
    "kernels/buckets": ("hashing", "kernels/test_buckets.py"),
    "kernels/hash_codes": ("hashing", "kernels/test_hash_codes.py"),
    "kernels/random": ("hashing", "kernels/test_random.py"),
    "kernels/votes": ("kernels/test_votes.py",),
    "kernels/shared_votes": ("kernels/test_votes.py",),
    "kernels/adam": ("kernels/test_adam.py", "optim"),
    "kernels/assemble_sets": ("kernels/test_assemble_sets.py", "sampling/test_sampling.py"),
    "kernels/dual_descent": ("kernels/test_dual_descent.py", "ranking/test_linear_classifiers.py"),
    "kernels/best_of_lists": ("kernels/test_best_of_lists.py",),
    "kernels/label_counts": ("kernels/test_label_counts.py",),
    "kernels/linear_scores": ("kernels/test_linear_scores.py",),
    "kernels/probes": ("kernels/test_probes.py",),
    "kernels/relu_dropout": ("kernels/test_relu_dropout.py",),
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


# The line of a change, what it is, and the changed source.
Mutant = tuple[int, str, str]


def mutants(source: str) -> Iterator[Mutant]:
    """All small changes of a source."""
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
        for each in [each for each in sys.modules if each.partition(".")[0] == "slide"]:
            del sys.modules[each]  # rows.py has imported it.
        path = ROOT / "slide" / f"{name}.py"
        sys.meta_path.insert(0, _Changed("slide." + name.replace("/", "."), path, source))
        status = 1
        with contextlib.suppress(BaseException):
            import pytest

            words = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not compiled_only"]
            status = int(pytest.main([*words, *(str(ROOT / "tests" / each) for each in tests)]))
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # Processes that its tests have started.
    if status == -signal.SIGALRM:
        return "hangs"
    return "survived" if status == 0 else "killed"


def try_module(name: str, chosen: list[Mutant]) -> list[dict[str, str]]:
    """Those of the chosen mutants of a module that survive."""
    source = (ROOT / "slide" / f"{name}.py").read_text()
    begin = time.perf_counter()
    same = ast.unparse(ast.parse(source))  # Without comments, as in the mutants.
    assert run_tests(name, same, MODULES[name], 600) == "survived", f"tests of {name} fail"
    limit = max(PATIENCE * (time.perf_counter() - begin), LEAST_SECONDS)
    survivors = []
    for line, what, text in sorted(chosen):
        outcome = run_tests(name, text, MODULES[name], limit)
        if outcome == "survived":
            survivors.append({"code": source.splitlines()[line - 1].strip(), "change": what})
        print(f"{name}:{line}  {outcome}  {what}".replace("\n", " ")[:150], flush=True)
    return survivors


def measure(name: str, sample: int, seed: int) -> dict[str, Any]:
    """Try mutants of a module; ``sample`` 0: all of them."""
    source = (ROOT / "slide" / f"{name}.py").read_text()
    every = list(mutants(source))
    # Another choice for each module, whichever are tried before it.
    draw = random.Random(f"{seed} {name}")
    chosen = draw.sample(every, min(sample, len(every))) if sample else every
    found = {"mutants": len(every), "tried": len(chosen), "seed": seed, "source": hashed(source)}
    return found | {"survivors": try_module(name, chosen)}


def again(row: dict[str, Any]) -> dict[str, Any]:
    """The figures of a module after its survivors were tried again; the others count as noticed."""
    source = (ROOT / "slide" / f"{row['module']}.py").read_text()
    lines, before = source.splitlines(), row["survivors"]
    chosen = [
        each
        for each in mutants(source)
        if {"code": lines[each[0] - 1].strip(), "change": each[1]} in before
    ]
    return row | {"survivors": try_module(row["module"], chosen)}


def hashed(text: str) -> str:
    """A short digest."""
    return hashlib.sha1(text.encode()).hexdigest()[:10]


def digest(name: str) -> str:
    """What the figures of a module depend on: its code and its tests."""
    files = [ROOT / "slide" / f"{name}.py"]
    for each in MODULES[name]:
        path = ROOT / "tests" / each
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return hashed("".join(file.read_text() for file in files))


def main() -> None:
    os.environ["NUMBA_DISABLE_JIT"] = "1"  # Before numba is imported.
    import faiss  # noqa: F401  Imported before all forks.
    import torch
    from mutants_page import page
    from rows import Store, add_store_options

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="modules whose name begins with this")
    parser.add_argument("--sample", type=int, default=0, help="mutants of a module; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--survivors", action="store_true", help="of unchanged modules only those of before"
    )
    add_store_options(parser)
    given = parser.parse_args()
    store = Store("mutants", ("module",), page, given)
    if given.render:
        store.render()
        return
    torch.set_num_threads(1)
    known = {row["module"]: row for row in store.rows}
    for name in MODULES:
        if not name.startswith(given.only):
            continue
        source = hashed((ROOT / "slide" / f"{name}.py").read_text())
        same = name in known and known[name]["source"] == source
        code = digest(name)
        for case in store.missing([{"module": name}], code):
            if given.survivors and same:
                store.add([again(known[name])], code)
            else:
                found = measure(name, given.sample, given.seed)
                store.add([case | {"seed": given.seed} | found], code)
    store.report()


if __name__ == "__main__":
    main()
