"""Machines that are network namespaces, with links of a rate and a delay between them.

    python tests/benchmarks/links.py MACHINES BITS DELAY

Kernels shape links by themselves (``tc``, netem), but not every kernel has that part. This program
asks for TUN devices alone: each machine (a network namespace) has one, whose packets come here, and
passes them on with a rate and a delay. It prints a line when the devices ``slide-t0``,
``slide-t1``, ... are there, and runs until it is ended.
"""

import contextlib
import fcntl
import os
import re
import select
import shutil
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

# linux/if_tun.h
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
DEVICE = "slide-t"
# One packet carries that much: each costs a read and a write here, however long it is.
LONGEST = 60_000


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
    """Inside of it there are machines 10.77.0.<i+1>; gives what stands before commands there."""
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
    command = [sys.executable, __file__, f"{number}", f"{link.bits}", f"{link.delay}"]
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


class Wire:
    """One direction of a machine's cable: packets leave it in order, at a rate, after a delay.

    Args:
        bits: a second.
        delay: of each packet, in seconds.
    """

    def __init__(self, bits: float, delay: float) -> None:
        self.bits, self.delay = bits, delay
        self.free = 0.0
        self.waiting: deque[tuple[float, bytes]] = deque()

    def put(self, packet: bytes, now: float) -> None:
        """A packet enters at the time ``now`` (seconds)."""
        self.free = max(self.free, now) + 8 * len(packet) / self.bits
        self.waiting.append((self.free + self.delay, packet))

    def due(self) -> float:
        """When the next packet leaves; infinity: there is none."""
        return self.waiting[0][0] if self.waiting else float("inf")

    def take(self, now: float) -> bytes | None:
        """The next packet, if it leaves by ``now``."""
        return self.waiting.popleft()[1] if self.due() <= now else None


def receiver(packet: bytes) -> int:
    """The machine that an IPv4 packet is for: the last number of its address less 1; else -1."""
    if len(packet) < 20 or packet[0] >> 4 != 4:
        return -1
    return packet[19] - 1


def open_device(name: str) -> int:
    """A new TUN device of the namespace of this process; it lasts as long as its file is open."""
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return file


def relay(files: list[int], bits: float, delay: float) -> None:
    """Pass packets on, forever."""
    wires = [Wire(bits, delay) for _ in files]
    while True:
        due = min(wire.due() for wire in wires)
        wait = None if due == float("inf") else max(due - time.monotonic(), 0.0)
        for file in select.select(files, [], [], wait)[0]:
            with contextlib.suppress(BlockingIOError):
                packet = os.read(file, LONGEST + 100)
                wires[files.index(file)].put(packet, time.monotonic())
        now = time.monotonic()
        for wire in wires:
            while (packet := wire.take(now)) is not None:
                machine = receiver(packet)
                if 0 <= machine < len(files):
                    # A device that is not up yet, or full: the packet is lost, as on a cable.
                    with contextlib.suppress(OSError):
                        os.write(files[machine], packet)


def main() -> None:
    machines, bits, delay = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    files = [open_device(f"{DEVICE}{i}") for i in range(machines)]
    # A cable does not wait for a core.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    print("ready", flush=True)
    relay(files, bits, delay)


if __name__ == "__main__":
    main()
