"""``python -m slide.check``: what this machine has, and whether slide's kernels are right on it."""

from slide.check.machine import describe_machine
from slide.check.self_test import SELF_TESTS, run_self_tests

__all__ = ["SELF_TESTS", "describe_machine", "run_self_tests"]
