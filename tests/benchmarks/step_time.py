"""How long a step of several processes takes: its work, shared out, and its messages."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from links import Link


class Work(NamedTuple):
    """What a step is, fitted to runs on one machine.

    Attributes:
        shared: milliseconds of work that the processes share out.
        common: milliseconds of work that each of them does in full.
        calls: messages (all-reduces) in a step.
        numbers: bytes of all messages of a step, before they are sent to others.
        handling: milliseconds of one message without a network, for each pair of passes.
        copying: milliseconds for a megabyte that a process sends, without a network.
        hiding: milliseconds of the work, shared out like ``shared`` and a part of it, during which
            one of the messages goes on; 0: each is waited for.
        waiting: milliseconds of a step in which a process waits for slower ones.
    """

    shared: float
    common: float
    calls: float
    numbers: float
    handling: float
    copying: float
    hiding: float = 0.0
    waiting: float = 0.0


def passes(processes: int) -> int:
    """How often numbers are passed on in an all-reduce, if the processes stand in a ring."""
    return 2 * (processes - 1)


def exchange_ms(work: Work, processes: int, link: Link | None = None) -> float:
    """Milliseconds that a step waits for its messages: handling, delays, bytes, slower processes.

    The message that goes on beside work counts as far as it takes longer than this work.

    Args:
        work: of a step.
        processes: number of them, each on a machine of its own.
        link: between the machines; None: they are on one machine.
    """
    if processes == 1:
        return 0.0
    hops, sent = passes(processes), work.numbers * passes(processes) / processes
    found = work.calls * work.handling * hops / passes(2) + work.copying * sent / 1e6
    if link is not None:
        found += work.calls * 1e3 * link.delay * hops + 1e3 * 8 * sent / link.bits
    # All messages of a step have about the same size.
    return work.waiting + found - min(work.hiding / processes, found / max(work.calls, 1))


def step_ms(
    work: Work, processes: int, link: Link | None = None, cores: int | None = None
) -> float:
    """Milliseconds of a step.

    Args:
        work, processes, link: see `exchange_ms`.
        cores: cores that all processes share; None: each has one.
    """
    crowd = 1.0 if cores is None else max(processes / cores, 1.0)
    own = crowd * (work.common + work.shared / processes)
    return own + exchange_ms(work, processes, link)


def fit(single: dict, pair: dict) -> Work:
    """The work of a step, from a run of one process and one of two on the same machine.

    Args:
        single, pair: what `rank_steps.measure` found; of two processes the means.
    """
    shared = max(2 * (single["compute_ms"] - pair["compute_ms"]), 0.0)
    common = max(single["compute_ms"] - shared, 0.0)
    (small, handling), (large, whole) = sorted(
        (int(numbers), ms) for numbers, ms in pair["message_ms"].items()
    )
    copying = max(whole - handling, 0.0) / (4 * (large - small) / 1e6)
    # Figures of before messages went on beside work have no such time.
    hiding = 2 * pair.get("hiding_ms", 0.0)
    work = Work(shared, common, pair["calls"], pair["bytes_sent"], handling, copying, hiding)
    return work._replace(waiting=max(pair["exchange_ms"] - exchange_ms(work, 2), 0.0))


def pays_until(times: Sequence[tuple[int, float]], gain: float = 1.2) -> int:
    """The most processes so that each doubling up to there made steps faster by ``gain``.

    Args:
        times: numbers of processes, each twice the one before, and milliseconds of a step.
        gain: the least ratio of two times that is worth twice the machines.
    """
    best = times[0][0]
    for (_, before), (processes, after) in pairwise(times):
        if before < gain * after:
            break
        best = processes
    return best
