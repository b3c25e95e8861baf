"""Machines that are network namespaces, with links of a rate and a delay (``ip`` and ``tc``)."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple


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
_PREFIX, _SWITCH = "slide", "slide-sw"


def missing() -> str:
    """Why there can be no such machines here; empty: they can be made."""
    if not hasattr(os, "geteuid") or os.geteuid():
        return "this needs root"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"there is no {program} here"
    try:
        with machines(1, LINKS[0]):
            return ""
    except subprocess.CalledProcessError as error:
        said = error.stderr.strip().rstrip(".")
        return f"{' '.join(error.cmd)} did not work: {said}"


@contextmanager
def machines(number: int, link: Link) -> Iterator[list[list[str]]]:
    """Inside of it there are machines; each item is what stands before a command that runs there.

    Machine i has the address 10.77.0.<i+1>, on ``eth0``.
    """
    clear()
    with ExitStack() as stack:
        _run("ip", "netns", "add", _SWITCH)
        stack.callback(_run, "ip", "netns", "del", _SWITCH)
        _inside(_SWITCH, "ip", "link", "add", "br0", "type", "bridge")
        _inside(_SWITCH, "ip", "link", "set", "br0", "up")
        for i in range(number):
            name, cable = f"{_PREFIX}-{i}", f"{_PREFIX}c{i}"
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "del", name)
            _inside(name, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", cable)
            _inside(name, "ip", "link", "set", cable, "netns", _SWITCH)
            _inside(_SWITCH, "ip", "link", "set", cable, "master", "br0", "up")
            _inside(name, "ip", "address", "add", f"10.77.0.{i + 1}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _inside(name, "ip", "link", "set", device, "up")
            queue = ("tc", "qdisc", "add", "dev", "eth0", "root", "netem")
            shape = ("delay", f"{1e6 * link.delay:.0f}us", "rate", f"{link.bits / 1e6:.0f}mbit")
            _inside(name, *queue, *shape, "limit", "100000")
        yield [["ip", "netns", "exec", f"{_PREFIX}-{i}"] for i in range(number)]


def clear() -> None:
    """Remove the machines of a run that was killed."""
    there = [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line]
    for name in there:
        if name == _SWITCH or re.fullmatch(rf"{_PREFIX}-\d+", name):
            _run("ip", "netns", "del", name)


def _inside(name: str, *command: str) -> None:
    _run("ip", "netns", "exec", name, *command)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
