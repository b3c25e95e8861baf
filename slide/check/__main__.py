"""``python -m slide.check``: the report; the exit status is 1 if a kernel is wrong here."""

import sys

from slide.check.machine import describe_machine
from slide.check.self_test import run_self_tests
from slide.utils.progress_bar import until_reader_goes


def main() -> None:
    """Print what the machine has, then the outcome of each test."""
    for name, found in describe_machine().items():
        print(f"{name}: {found}")
    print("\nkernels against their references:")
    wrong = 0
    for name, trials, error in run_self_tests():
        wrong += error is not None
        outcome = f"WRONG  {name}: {error}" if error else f"right  {name} ({trials} trials)"
        print(f"  {outcome}", flush=True)
    if wrong:
        sys.exit(f"error: {wrong} kernels are wrong on this machine; results cannot be trusted")


if __name__ == "__main__":
    with until_reader_goes():
        main()
