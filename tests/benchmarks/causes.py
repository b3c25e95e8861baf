"""Parts of `sampler=lsh` taken away one at a time, and its look-ups among ever more rows."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from sized import median
from torch import Tensor

from slide import Pattern, runtime
from slide.backend import array_view
from slide.ops.sketches import WIDTH
from slide.sampling import LSHProposer, Proposer, lsh_proposer
from slide.search import exact_top_k

# Other values of constants of the module, and of members of the class, by name.
Change = dict[str, Any]
TOUCHED, LOOK_UP, SIZE = LSHProposer.touched, LSHProposer._look_up, LSHProposer._size


def not_followed(self: LSHProposer, active: Any) -> None:
    TOUCHED(self, active)
    self._noted.clear()


def with_a_quarter(self: LSHProposer) -> None:
    with changed({"FRONT": min(self.out_features, lsh_proposer.FRONT) // 4}):
        SIZE(self)


def by_votes(self: LSHProposer, queries: Tensor, labels: Pattern, most: int) -> Tensor:
    """The rows that are in the most buckets of an input."""
    LOOK_UP(self, queries, labels, 1)  # It notes which buckets these are.
    wanted = np.full(len(queries), most)
    ids, counts = Proposer.propose(self, queries, labels, wanted, np.uint64(0))
    return torch.from_numpy(np.where(np.arange(ids.shape[1]) < counts[:, None], ids, -1))


def in_buckets(self: LSHProposer, queries: Tensor, labels: Pattern) -> Pattern:
    assert self._read is not None
    return self.tables.query(self._read[1])


RANDOM = {"principal_directions": lambda inputs, start, warm: start}
STILL = {"touched": not_followed}
# They are rebuilt once, after a few steps: the first directions are random.
ONCE = {"_OUTPUTS_PER_ROW": math.inf}
ZEROS = property(lambda self: torch.zeros(self.in_features), lambda self, value: None)
ONE_RANGE = {"_GROWTH": 2**40}
NO_HEAD = {**ONE_RANGE, "_HEAD": 0, "HEAD": 1, "_MOST_HEAD": 1, "_TABLED": (-1, math.inf)}
WITHOUT: dict[str, Change] = {
    "random directions": RANDOM,
    "32 random directions": {**RANDOM, "DIRECTIONS": 32},
    "inputs not centred": {"mean_input": ZEROS},
    "changed rows not followed": STILL,
    "no rebuild after the first steps": ONCE,
    "neither of these two": STILL | ONCE,
    "32 directions": {"DIRECTIONS": 32},
    "no exact products": {"_SCORED": 1},
}
# Parts that are taken away, by sampler.
PARTS: dict[str, dict[str, Change]] = {
    "lsh": WITHOUT | {"a quarter of the head": {"_size": with_a_quarter}},
    "lsh, tables": {
        **WITHOUT,
        "one range beside the head": ONE_RANGE,
        "one range, no head": NO_HEAD,
        "one range, no head, by votes": {**NO_HEAD, "_look_up": by_votes, "look_up": in_buckets},
    },
}


@contextmanager
def changed(change: Change) -> Iterator[None]:
    """Other constants and members for a while."""
    with ExitStack() as stack:
        for name, value in change.items():
            where = lsh_proposer if hasattr(lsh_proposer, name) else LSHProposer
            # The mean input is an attribute of objects, and none of the class.
            stack.enter_context(patch.object(where, name, value, create=name == "mean_input"))
        yield


# Generated rows: their length, and the inputs of a look-up and of a measurement of recall.
HIDDEN, BATCH, ASKED, BEST = 256, 512, 128, 10
SIZES = [2**16, 2**18, 2**20, 2**22]
# Lengths of what the first row has learnt, and of the noise in each row.
LEARNT, NOISE = 1.0, 0.58
# Seconds of look-ups, at least.
SECONDS = 1.0
ALL = 2**40
TABLES = {"num_tables": 4}


def of_head(rows: int) -> Change:
    """A head of ``rows`` rows, alone and beside tables."""
    return {"FRONT": rows, "GROWS": ALL, "_HEAD": 0, "HEAD": rows, "_MOST_HEAD": rows}


# What an input looks at.
WHERE: dict[str, tuple[Change, dict[str, int]]] = {
    "sketches of all rows": (of_head(ALL), {}),
    "sketches of a head": (of_head(lsh_proposer.FRONT), {}),
    "sketches of a head twice as large": (of_head(2 * lsh_proposer.FRONT), {}),
    "sketches of a head four times as large": (of_head(4 * lsh_proposer.FRONT), {}),
    "sketches of a head, tables": (of_head(lsh_proposer.FRONT), TABLES),
    "sketches of a small head, tables": ({}, TABLES),
}


def of_share(rows: int) -> Change:
    """A head of one row in ``rows``, alone and beside tables."""

    def size(self: LSHProposer) -> None:
        with changed(of_head(self.out_features // rows)):
            SIZE(self)

    return {"_size": size}


# Heads of few of the rows of a real set, as large ones have, and settings of tables.
HEADS: dict[str, tuple[Change, list[str]]] = {
    **{f"1/{rows} of the rows": (of_share(rows), []) for rows in (64, 32, 16, 8, 4)},
    **{
        f"1/{rows} of the rows, tables": (of_share(rows), ["hash.num_tables=4"])
        for rows in (64, 16)
    },
}


class Generated:
    """Rows and inputs as networks have them that have learnt a third of an epoch of files.

    Inputs vary by 1 / k in the k-th direction, and their mean is a third of their variance. A row
    is noise and what it has learnt, which varies as inputs do; its length falls with the fifth root
    of the rank of the row. So the largest products of an input are among as few rows as there.
    """

    def __init__(self, outputs: int):
        self.rng = torch.Generator().manual_seed(0)
        self.turn = torch.linalg.qr(self._normal(HIDDEN, HIDDEN)).Q
        self.spread = torch.arange(1, HIDDEN + 1) ** -0.5
        mean = torch.nn.functional.normalize(self._normal(1, HIDDEN))
        self.mean = 3**-0.5 * self.spread.norm() * mean
        self.rows = torch.empty(outputs, HIDDEN)
        learnt = LEARNT * (1 + torch.randperm(outputs, generator=self.rng)) ** -0.2
        for rows, lengths in zip(self.rows.split(2**16), learnt.split(2**16), strict=True):
            learnt_rows = torch.nn.functional.normalize(self._varied(len(rows)))
            rows.copy_(learnt_rows * lengths[:, None])
            rows += self._normal(len(rows), HIDDEN) * (NOISE / HIDDEN**0.5)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.rng)

    def _varied(self, count: int) -> Tensor:
        return self._normal(count, HIDDEN) * self.spread @ self.turn

    def inputs(self, count: int) -> Tensor:
        return self._varied(count) + self.mean


def look_ups(outputs: int, where: list[str]) -> dict[str, dict[str, Any]]:
    """What look-ups in several places among the same rows take and find."""
    runtime.set_threads(0)
    made = Generated(outputs)
    recent, inputs = made.inputs(lsh_proposer.RECENT), made.inputs(BATCH)
    best = array_view(exact_top_k(inputs[:ASKED], made.rows, None, BEST)[1])
    found = {}
    for name in where:
        change, options = WHERE[name]
        with changed(change):
            proposer = LSHProposer(HIDDEN, outputs, **options)
            proposer.observe(recent)
            found[name] = look_up(proposer, made.rows, inputs, best)
    return found


def look_up(proposer: LSHProposer, rows: Tensor, inputs: Tensor, best: np.ndarray) -> dict:
    """Milliseconds of a look-up of a batch, what it reads, and what it finds of the best rows."""
    rebuild = median(lambda: proposer.rebuild(rows, None), 0, least=2)
    found = cost(proposer, inputs)
    hits = (best[:, :, None] == proposed(proposer, inputs).ids[: len(best), None]).any(2)
    return found | {
        "outputs": len(rows),
        "recall": round(float(hits.mean()), 4),
        "rebuild": round(rebuild / 1e3, 3),
    }


def proposed(proposer: LSHProposer, inputs: Tensor) -> Any:
    wanted, nobody = np.full(len(inputs), proposer.best), Pattern.from_lists([[]] * len(inputs))
    return proposer.propose(inputs, nobody, wanted, np.uint64(0))


def cost(proposer: LSHProposer, inputs: Tensor) -> dict[str, Any]:
    """Milliseconds of a look-up of a batch, and what it reads."""
    milliseconds = median(lambda: proposed(proposer, inputs), SECONDS, least=2)
    in_buckets, exact = proposer._in_buckets, proposer.best * lsh_proposer._SCORED
    head = round(proposer.looked - in_buckets)
    read = WIDTH * (head + len(inputs) * in_buckets) + len(inputs) * exact * inputs[0].nbytes
    return {
        "head": head,
        "in_buckets": round(in_buckets, 1),
        "megabytes": round(read / 1e6, 1),
        "milliseconds": round(milliseconds, 2),
    }
