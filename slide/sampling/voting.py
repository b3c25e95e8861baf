"""Votes over the buckets of hash tables, by kernels or in plain torch."""

from typing import Any

import numpy as np
from torch import Tensor

from slide.backend import plain
from slide.hashing import HashTables
from slide.kernels.shared_votes import PARTS, SharedScratch, vote_shared
from slide.kernels.votes import RankedIds, vote_per_sample
from slide.runtime import num_threads, profiled
from slide.sampling import plain_lsh
from slide.scratch import Scratch


@profiled("votes")
def most_voted_ids(
    tables: HashTables, codes: Any, places: np.ndarray, key: np.uint64, scratch: Scratch
) -> RankedIds | Tensor:
    """The ids in the most buckets of each sample; see `slide.Proposer.propose`.

    Args:
        tables: hold the ids.
        codes: ``(P * L, B)`` int32: of P buckets of each sample in each table.
        places: ``(B,)`` int64, largest number of ids of each sample.
        key: key of the draw of the table that comes first.
        scratch: that of the layer.

    Raises:
        ValueError: for codes that do not fit the tables, which a family of hashes may give.
    """
    codes = tables.buckets_of(codes, len(codes) // tables.num_tables)
    if plain(codes):
        return plain_lsh.propose(tables, codes, places, key)
    runs, capacity = num_threads(), tables.capacity
    most = min(scratch.out_features, len(codes) * capacity)
    ranked = RankedIds(np.empty((len(places), places.max(initial=0)), np.int32), places.copy())
    marks, found = scratch.marks(runs), np.empty((runs, most), np.int32)
    vote_per_sample(tables.arrays(), codes, capacity, key, marks, found, ranked)
    return ranked


@profiled("votes")
def most_voted_by_all(
    tables: HashTables, codes: Any, places: int, key: np.uint64, scratch: Scratch
) -> np.ndarray | Tensor:
    """The ids in the most buckets of all samples; see `slide.Proposer.propose_shared`.

    Of ids with equal votes, the chosen ones are drawn. Arguments and errors are those of
    `most_voted_ids`.
    """
    codes = tables.buckets_of(codes, len(codes) // tables.num_tables)
    if plain(codes):
        return plain_lsh.propose_shared(tables, codes, places, key)
    out, capacity = np.empty(places, np.int32), tables.capacity
    num_asked = codes.size // tables.num_tables
    shape = tables.num_tables, num_asked, tables.num_buckets, capacity
    room = voting_scratch(scratch, *shape)
    return out[: vote_shared(tables.arrays(), codes, capacity, key, room, out)]


def voting_scratch(
    scratch: Scratch, num_tables: int, num_asked: int, num_buckets: int, capacity: int
) -> SharedScratch:
    """Arrays of ``scratch`` for `slide.kernels.shared_votes.vote_shared`.

    ``num_asked`` is the number of buckets that a batch looks at in each table.
    """
    runs, filled, num_rows = num_threads(), scratch.filled, scratch.out_features
    span = 1 << (-(-num_rows // PARTS) - 1).bit_length()
    # A table holds an id once.
    in_table = min(min(num_asked, num_buckets) * capacity, num_rows)
    shape, room = (num_tables, num_asked), (num_tables * in_table,)
    return SharedScratch(
        hits=filled("hits", (num_tables, num_buckets), np.int32),
        votes=filled("votes", (runs, span), np.int32),
        buckets=filled("buckets", shape, np.int32),
        weights=filled("weights", shape, np.int32),
        cursors=filled("cursors", (num_tables, PARTS), np.int64),
        ids=filled("ids", room, np.int32),
        ballots=filled("ballots", room, np.int32),
        histogram=filled("histogram", (runs, num_tables * num_asked + 1), np.int64),
    )
