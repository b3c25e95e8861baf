"""`slide.kernels.votes` in torch: which ids occur in the most buckets of each sample."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from slide.plain.buckets import BucketTensors, look_up
from slide.plain.pattern_products import first_of_equal
from slide.plain.random import random_below


def vote_per_sample(
    buckets: BucketTensors, codes: Tensor, capacity: int, key: int, places: Tensor, most: int
) -> Tensor:
    """For each sample, the ids found in the most of its buckets.

    Of ids with equal votes, the first found wins.

    Args:
        buckets: the tables.
        codes: ``(P * L, B)`` int32: of P buckets in each table, the nearest of each table first.
        capacity: bucket capacity.
        key: key of the draw of the table that comes first.
        places: ``(B,)``, largest number of ids of each sample.
        most: the largest of these.

    Returns:
        ``(B, most)`` int32 distinct ids, the most votes first; -1 where there are fewer.
    """
    num_tables, count = len(buckets.starts), codes.shape[1]
    device = codes.device
    found = look_up(buckets, codes, capacity).transpose(0, 1)
    first = random_below(key, torch.arange(count, device=device), num_tables)[:, None]
    rows = torch.arange(len(codes), device=device)
    turn = rows - rows % num_tables + (first + rows) % num_tables
    found = found.gather(1, turn[:, :, None].expand_as(found)).flatten(1)
    ids, arrival = found.sort(dim=1, stable=True)
    best = most_voted(ids, ids.shape[1] - arrival, most)
    return torch.where(torch.arange(most, device=device) < places[:, None], best, -1)


def most_voted(ids: Tensor, rank: Tensor, places: int) -> Tensor:
    """The values that occur most often in rows of ascending ids ``(B, n)``, ``(B, places)`` int32.

    ``rank`` ``(B, n)``, below 2^32, orders ids with equal votes, the larger first. Negative ids
    are none.
    """
    first = first_of_equal(ids)
    place = first.cumsum(1) - 1
    votes = torch.zeros_like(place).scatter_add_(1, place, torch.ones_like(place))
    score = (votes.gather(1, place) << 32) + rank
    score = torch.where(first & (ids >= 0), score, -1)
    score, order = score.topk(min(places, ids.shape[1]))
    best = torch.where(score >= 0, ids.gather(1, order), -1)
    return pad(best, (0, places - best.shape[1]), value=-1)
