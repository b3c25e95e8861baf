"""Kernels that choose outputs: hashes by maxima, votes, best ids, weights and counts of sets."""

from itertools import combinations

import numpy as np
import torch
from torch.nn import functional as F

from slide.check.comparing import Test, equal, near, random_csr
from slide.hashing import DWTA, HashTables
from slide.kernels.assemble_sets import count_distinct, count_updates, stratified_log_weights
from slide.kernels.largest import keep_largest_bounds
from slide.kernels.votes import RankedIds
from slide.sampling.best_ids import best_of_voted
from slide.sampling.voting import most_voted_by_all, most_voted_ids
from slide.scratch import Scratch
from slide.sparse import Pattern

_ROWS, _WIDTH, _OUTPUTS, _TABLES, _DIGITS, _BITS = 9, 32, 40, 4, 3, 3


def _joined(digits: np.ndarray) -> np.ndarray:
    """The codes of digits ``(n, L, K)``, the first digit highest."""
    powers = 1 << _BITS * np.arange(_DIGITS)[::-1]
    return (digits * powers).sum(2).T


def _maxima(rng: np.random.Generator) -> None:
    """Codes by the largest coordinate of each bin, and codes with the second one in its place."""
    shape = {"hashes_per_table": _DIGITS, "num_tables": _TABLES, "bin_size": 1 << _BITS}
    family = DWTA(_WIDTH, **shape, seed=int(rng.integers(99)))
    x = torch.randn(_ROWS, _WIDTH)
    members = torch.from_numpy(family.coordinates).long()
    best = x[:, members].topk(2)
    places = best.indices.numpy().reshape(_ROWS, _TABLES, _DIGITS, 2)
    equal("codes", family.codes(x).tolist(), _joined(places[..., 0]).tolist())
    cost = (best.values[..., 0] - best.values[..., 1]).view(_ROWS, _TABLES, _DIGITS).double()
    every = [c for size in range(_DIGITS + 1) for c in combinations(range(_DIGITS), size)]
    changes = np.array([[k in one for k in range(_DIGITS)] for one in every])
    order = (cost.square().numpy() @ changes.T).argsort(2)
    probes = []
    for number in range(3):
        changed = changes[order[..., number]]
        probes.append(_joined(np.where(changed, places[..., 1], places[..., 0])))
    found = family.probe_codes(x, 2)
    equal("codes of the next buckets", found.tolist(), np.concatenate(probes).tolist())

    sparse, dense = random_csr(rng, _ROWS, _WIDTH)
    stored = torch.where(dense != 0, dense, -torch.inf)[
        :, torch.from_numpy(family.coordinates).long()
    ]
    value, place = stored.max(2)
    filled = (value > -torch.inf).numpy().reshape(_ROWS, _TABLES, _DIGITS)
    shifts = _BITS * np.arange(_DIGITS)[::-1]
    digits = family.sparse_codes(sparse).T[:, :, None] >> shifts & (1 << _BITS) - 1
    expected = place.numpy().reshape(digits.shape)
    equal("digits of sparse rows", digits[filled].tolist(), expected[filled].tolist())


def _votes(rng: np.random.Generator) -> None:
    """Ids by the number of buckets that a sample, or the batch, shares with them."""
    buckets, most = 8, 12
    codes = rng.integers(0, buckets, (_TABLES, _OUTPUTS)).astype(np.int32)
    asked = rng.integers(0, buckets, (_TABLES, _ROWS)).astype(np.int32)
    tables = HashTables(_TABLES, buckets, bucket_capacity=_OUTPUTS)
    tables.build(codes)
    votes = (codes[:, None] == asked[:, :, None]).sum(0)
    key, scratch = np.uint64(rng.integers(1 << 62)), Scratch(_OUTPUTS)
    places = np.full(_ROWS, most)
    ranked = most_voted_ids(tables, asked, places, key, scratch)
    every = most_voted_by_all(tables, asked, most, key, scratch)
    if isinstance(ranked, RankedIds):
        lists = [ranked.ids[row, : ranked.counts[row]] for row in range(_ROWS)]
    else:
        lists = [row[row >= 0] for row in ranked.numpy()]
    lists.append(np.asarray(every))
    for own, ids in zip([*votes, votes.sum(0)], lists, strict=True):
        best = np.sort(own)[::-1][:most]
        equal("the number of distinct ids", len(set(ids.tolist())), int((best > 0).sum()))
        equal("the votes of the best ids", sorted(own[ids], reverse=True), best[best > 0].tolist())


def _best_of_lists(rng: np.random.Generator) -> None:
    lists = np.stack([rng.permutation(_OUTPUTS)[:20] for _ in range(_ROWS)]).astype(np.int32)
    counts = rng.integers(8, 20, _ROWS)
    labels = Pattern.from_lists([row[:2].tolist() for row in lists])
    x, weight = torch.randn(_ROWS, _WIDTH), torch.randn(_OUTPUTS, _WIDTH)
    bias = torch.randn(_OUTPUTS)
    found = best_of_voted(x, weight, bias, RankedIds(lists, counts), labels, 5)
    scores = F.linear(x, weight, bias).double()
    for row in range(_ROWS):
        own = torch.from_numpy(lists[row, 2 : counts[row]]).long()
        equal("ids of a list", set(found[row].tolist()) <= set(own.tolist()), True)
        best = scores[row, torch.from_numpy(found[row]).long()]
        near("the best scores of a list", best, scores[row, own].topk(5).values)


def _weights_of_sets(rng: np.random.Generator) -> None:
    """Ids that were drawn stand for all that could have been."""
    sizes, known = rng.integers(5, 9, _ROWS), rng.integers(0, 6, _ROWS)
    indptr = np.concatenate([[0], sizes.cumsum()])
    found = np.empty(indptr[-1], np.float32)
    stratified_log_weights(indptr, known, _OUTPUTS, found)
    drawn = np.arange(indptr[-1]) - np.repeat(indptr[:-1], sizes) >= np.repeat(known, sizes)
    share = np.repeat((_OUTPUTS - known) / np.maximum(sizes - known, 1), sizes)
    expected = torch.from_numpy(np.where(drawn, np.log(share), 0.0)).float()
    near("the weights of a set", torch.from_numpy(found), expected)


def _counts(rng: np.random.Generator) -> None:
    ids = rng.integers(0, _OUTPUTS, 60).astype(np.int32)
    distinct = count_distinct(ids, np.zeros(_OUTPUTS, np.uint8))
    equal("the number of distinct ids", int(distinct), len(set(ids.tolist())))
    updates, listed = np.zeros(_OUTPUTS, np.uint8), np.empty(len(ids), np.int32)
    listed = listed[: count_updates(ids, updates, 2, listed)]
    times = np.bincount(ids, minlength=_OUTPUTS)
    equal("the updates of rows", updates.tolist(), np.minimum(times, 2).tolist())
    equal("rows with two updates", sorted(listed.tolist()), np.flatnonzero(times > 1).tolist())


def _largest_bounds(rng: np.random.Generator) -> None:
    products, errors = torch.randn(_ROWS, _OUTPUTS), torch.rand(_ROWS)
    lengths, biases = torch.rand(_OUTPUTS), torch.randn(_OUTPUTS)
    best, ids = np.full((_ROWS, 5), -np.inf, np.float32), np.full((_ROWS, 5), -1)
    factors = products.numpy(), errors.numpy(), lengths.numpy()
    keep_largest_bounds(*factors, biases.numpy(), 0, best, ids)
    bounds = products + errors[:, None] * lengths + biases
    near(
        "the bounds", torch.from_numpy(best).sort(1, descending=True).values, bounds.topk(5).values
    )
    near("the bounds of the ids", bounds.gather(1, torch.from_numpy(ids)), torch.from_numpy(best))


CHOICE_TESTS: dict[str, Test] = {
    "hashes by maxima": _maxima,
    "votes of buckets": _votes,
    "best ids of lists": _best_of_lists,
    "weights of drawn ids": _weights_of_sets,
    "counts of ids": _counts,
    "largest bounds": _largest_bounds,
}
