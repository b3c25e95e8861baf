"""``python -m slide.check``: what it says of the machine, and that it notices wrong operations."""

import functools

import numpy as np
import pytest
import torch

from slide import ops
from slide.check import self_test
from slide.check.__main__ import describe_machine, main
from slide.check.self_test import SELF_TESTS, run_self_tests

pytestmark = pytest.mark.usefixtures("one_thread")


def test_it_says_what_the_machine_has():
    found = describe_machine()
    assert found["threads"].startswith("1 of ")
    assert f"torch {torch.__version__}" in found["versions"]
    assert "GiB" in found["memory"]


def test_kernels_are_right_here(monkeypatch, capsys):
    monkeypatch.setattr("slide.check.__main__.run_self_tests", lambda: run_self_tests(0.02))
    main([])
    said = capsys.readouterr().out
    assert said.count("  right  ") == len(SELF_TESTS)
    assert "WRONG" not in said


@pytest.mark.kernels_only
@pytest.mark.parametrize("name", ops.OPERATIONS)
def test_wrong_operations_are_noticed(monkeypatch, name):
    operation = ops.OPERATIONS[name]
    whole = operation.kernel

    @functools.wraps(whole)
    def wrong(*args, **kwargs):
        found = whole(*args, **kwargs)
        first = found[1] if isinstance(found, tuple) else found
        if first is None:  # It has written into its first argument.
            first = args[0]
        first += np.asarray(first[:0]).dtype.type(1)
        return found

    monkeypatch.setattr(operation, "kernel", wrong)
    tests = dict(list(SELF_TESTS.items())[:12])
    assert list(tests)[-1] == "hash tables"
    tests["sketches of rows"] = SELF_TESTS["sketches of rows"]
    monkeypatch.setattr(self_test, "SELF_TESTS", tests)
    assert any(said for *_, said in run_self_tests(0))


def test_values_that_are_not_near():
    with pytest.raises(ValueError, match=r"the value is off by 0\.01"):
        self_test.near("the value", torch.ones(2), torch.tensor([1, 1.01]))
    with pytest.raises(ValueError, match=r"the value is \(2,\), not \(3,\)"):
        self_test.near("the value", torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match="is off by nan"):
        self_test.near("the value", torch.tensor([torch.nan]), torch.ones(1))
    with pytest.raises(ValueError, match="the ids is 1, not 2"):
        self_test.equal("the ids", 1, 2)
    with pytest.raises(ValueError, match="there is no gradient"):
        self_test.gradient(torch.ones(1))


def test_wrong_hashes_are_noticed(monkeypatch):
    monkeypatch.setattr(self_test.SimHash, "codes", lambda self, x: torch.randint(99, (5, len(x))))
    monkeypatch.setattr(self_test, "SELF_TESTS", {"hashes": SELF_TESTS["hashes"]})
    ((name, trials, said),) = run_self_tests(0)
    assert (name, trials) == ("hashes", 1)
    assert "codes of SimHash agree" in said


def test_a_wrong_kernel_ends_with_a_status(monkeypatch, capsys):
    monkeypatch.setattr("slide.check.__main__.run_self_tests", lambda: [("Adam", 3, "is off")])
    with pytest.raises(SystemExit, match="error: wrong on this machine: 1 kernel;"):
        main([])
    assert "WRONG  Adam: is off" in capsys.readouterr().out


def test_the_same_seed_tries_the_same(monkeypatch):
    drawn = []
    test = {"draws": lambda rng: drawn.append((rng.random(), torch.rand(1).item()))}
    monkeypatch.setattr(self_test, "SELF_TESTS", test)
    before = torch.get_rng_state()
    for _ in range(2):
        list(run_self_tests(0, seed=7))
    assert drawn[0] == drawn[1]
    assert drawn[0][0] == np.random.default_rng(7).random()
    assert torch.equal(torch.get_rng_state(), before)
