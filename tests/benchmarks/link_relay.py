"""A switch in a program of its own: packets pass between machines with a rate and a delay.

    python tests/benchmarks/link_relay.py MACHINES BITS DELAY

Kernels shape links by themselves (``tc``, netem), but not every kernel has that part. This program
asks for TUN devices alone: each machine (a network namespace) has one, whose packets come here. It
prints a line when the devices ``slide-t0``, ``slide-t1``, ... are there, and runs until it ends.
"""

import contextlib
import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

# linux/if_tun.h
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
DEVICE = "slide-t"
# One packet carries that much: each costs a read and a write here, however long it is.
LONGEST = 60_000


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
