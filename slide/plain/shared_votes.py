"""`slide.kernels.shared_votes` in torch: votes of a batch, added up over its samples."""

from torch import Tensor

from slide.plain.buckets import BucketTensors, look_up
from slide.plain.random import random_bits, shifted
from slide.plain.votes import most_voted


def vote_shared(
    buckets: BucketTensors, codes: Tensor, capacity: int, key: int, places: int
) -> Tensor:
    """The ids with the most votes over all samples and tables of a batch.

    Args:
        buckets: the tables.
        codes: ``(P * L, B)`` int32: of P buckets in each table.
        capacity: bucket capacity.
        key: key of the draws that order ids with equal votes.
        places: largest number of ids.

    Returns:
        ``(places,)`` int32 distinct ids, the most votes first; -1 where there are fewer ids.
    """
    ids = look_up(buckets, codes, capacity).flatten().sort().values
    chance = shifted(random_bits(key, ids.long()), 32)
    return most_voted(ids[None], chance[None], places)[0]
