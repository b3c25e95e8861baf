"""What commands have in common: how they are called, and how errors end them."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from slide.runtime import VERSION
from slide.utils.checks import error_message
from slide.utils.progress_bar import fail, log, open_streams, until_reader_goes
from slide.utils.signals import exit_status, raised_terminations

# What --version of all commands prints.
VERSION_LINE = f"slide {VERSION}"


def command_parser(name: str, about: str) -> argparse.ArgumentParser:
    """Begin ``slide-<name>``, which is ``python -m slide.<name>``, too, with its parser."""
    open_streams()
    module = sys.argv[0].endswith(("__main__.py", f"{name}.py"))
    parser = argparse.ArgumentParser(
        prog=f"python -m slide.{name}" if module else f"slide-{name}",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=VERSION_LINE)
    return parser


def add_model(parser: argparse.ArgumentParser) -> None:
    """The arguments of commands that open a model."""
    parser.add_argument("model", metavar="MODEL", help="folder of a model")
    about = "cores to use; 0: all that the process may use"
    parser.add_argument("--threads", type=int, default=0, help=about)
    about = "open the model without comparing the SHA-256 of its files first: a faster start"
    parser.add_argument("--no-verify", dest="verify", action="store_false", help=about)


@contextmanager
def ending_errors() -> Iterator[None]:
    """Inside of it, a user's errors end the process with a sentence, signals with their status."""
    try:
        with until_reader_goes(), raised_terminations():
            yield
    except KeyboardInterrupt as error:
        log("interrupted")
        sys.exit(exit_status(error))
    except (ValueError, TypeError, OSError, ImportError) as error:
        fail(error_message(error))
