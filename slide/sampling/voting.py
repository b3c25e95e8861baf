"""Scratch memory of the votes of a batch."""

import numpy as np

from slide.kernels.shared_votes import PARTS, SharedScratch
from slide.runtime import num_threads
from slide.scratch import Scratch


def voting_scratch(
    scratch: Scratch, num_tables: int, num_samples: int, num_buckets: int, capacity: int
) -> SharedScratch:
    """Arrays of ``scratch`` for `slide.kernels.shared_votes.vote_shared`."""
    runs, filled, num_rows = num_threads(), scratch.filled, scratch.out_features
    span = 1 << (-(-num_rows // PARTS) - 1).bit_length()
    # A table holds an id once.
    in_table = min(min(num_samples, num_buckets) * capacity, num_rows)
    shape, room = (num_tables, num_samples), (num_tables * in_table,)
    return SharedScratch(
        hits=filled("hits", (num_tables, num_buckets), np.int32),
        votes=filled(f"votes{runs}", (runs, span), np.int32),
        buckets=filled("buckets", shape, np.int32),
        weights=filled("weights", shape, np.int32),
        cursors=filled("cursors", (num_tables, PARTS), np.int64),
        ids=filled("ids", room, np.int32),
        ballots=filled("ballots", room, np.int32),
        histogram=filled("histogram", (runs, num_tables * num_samples + 1), np.int64),
    )
