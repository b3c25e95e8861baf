"""Machines that are network namespaces, with links of a rate and a delay (see link_relay.py)."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from link_relay import DEVICE, LONGEST


class Link(NamedTuple):
    """A link of each machine to the switch.

    Attributes:
        name: in words.
        bits: a second, each way.
        delay: of each packet from machine to machine, in seconds.
    """

    name: str
    bits: float
    delay: float


LINKS = (Link("10 Gbit/s, 0.1 ms", 1e10, 1e-4), Link("1 Gbit/s, 0.5 ms", 1e9, 5e-4))
_PREFIX = "slide-"


def missing() -> str:
    """Why there can be no such machines here; empty: they can be made."""
    if not hasattr(os, "geteuid") or os.geteuid():
        return "this needs root"
    if shutil.which("ip") is None:
        return "there is no ip here"
    try:
        with machines(2, LINKS[0]):
            return ""
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().rstrip(".")
        return f"{' '.join(error.cmd)} did not work: {said}"
    except RuntimeError as error:
        return f"{error}"


@contextmanager
def machines(number: int, link: Link) -> Iterator[list[list[str]]]:
    """Inside of it there are machines; each item is what stands before a command that runs there.

    Machine i has the address 10.77.0.<i+1>, on the device `device_of(i)`.

    Raises:
        RuntimeError: if the program that passes packets on ends.
        subprocess.CalledProcessError: if ``ip`` fails.
    """
    clear()
    with ExitStack() as stack:
        stack.enter_context(_relay(number, link))
        for i in range(number):
            name, device = f"{_PREFIX}{i}", device_of(i)
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "del", name)
            _run("ip", "link", "set", device, "netns", name)
            _inside(name, "ip", "address", "add", f"10.77.0.{i + 1}/24", "dev", device)
            _inside(name, "ip", "link", "set", "lo", "up")
            _inside(name, "ip", "link", "set", device, "mtu", f"{LONGEST}", "up")
        yield [["ip", "netns", "exec", f"{_PREFIX}{i}"] for i in range(number)]


def device_of(machine: int) -> str:
    """The name of the machine's network device."""
    return f"{DEVICE}{machine}"


def clear() -> None:
    """Remove the machines of a run that was killed."""
    for name in machines_there():
        _run("ip", "netns", "del", name)


def machines_there() -> list[str]:
    """The machines that there are now."""
    names = [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line]
    return [name for name in names if re.fullmatch(rf"{_PREFIX}\d+", name)]


@contextmanager
def _relay(number: int, link: Link) -> Iterator[None]:
    program = Path(__file__).with_name("link_relay.py")
    command = [sys.executable, str(program), f"{number}", f"{link.bits}", f"{link.delay}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes)
    try:
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"no packets are passed on: {process.stderr.read().strip()}")
        yield
    finally:
        process.kill()
        process.communicate()


def _inside(name: str, *command: str) -> None:
    _run("ip", "netns", "exec", name, *command)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
