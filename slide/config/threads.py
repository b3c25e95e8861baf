"""The cores of a machine, for the processes of a run that are there."""

import os
import platform

from slide import runtime
from slide.config.ranks import Ranks
from slide.utils.resources import core_limit


def share_threads(ranks: Ranks, asked: int) -> None:
    """Give this process its share of the cores of the machine.

    ``torchrun`` tells each process to use one thread, which slide does not follow. Slurm and others
    may bind each process to cores of its own, which it need not share.

    Args:
        ranks: the processes of the run; all of them call this.
        asked: threads of a process; 0: the cores of the machine by its processes.
    """
    runtime.set_threads(asked)
    if ranks.group.size == 1:
        return
    found = ranks.group.gather([platform.node(), _cores()])  # What others ask for is not known.
    there = ranks.place.local_size
    if asked or there == 1:
        return
    share = runtime.num_threads() // _sharers(found, ranks)
    limit = core_limit()  # A limit of time holds for all of them together.
    runtime.set_threads(max(min(share, share if limit is None else limit // there), 1))


def _cores() -> list[int]:
    """The cores that this process is bound to; empty: the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _sharers(found: list[list], ranks: Ranks) -> int:
    """How many processes of this machine use cores of this one, itself among them."""
    machine, own = found[ranks.group.rank]
    there = [cores for name, cores in found if name == machine]
    # Machines and containers may have equal names, or each process a name of its own.
    if len(there) != ranks.place.local_size or not own:
        return ranks.place.local_size
    return sum(not cores or not set(own).isdisjoint(cores) for cores in there)
