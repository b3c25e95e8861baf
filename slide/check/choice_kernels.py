"""Kernels that choose outputs: hashes by maxima, votes, best ids, weights and counts of sets."""

from itertools import combinations

import numpy as np
import torch
from torch.nn import functional as F

from slide.check.comparing import Test, equal, near, random_csr
from slide.hashing import DWTA, HashTables
from slide.hashing.tables import fold
from slide.kernels.assemble_sets import count_distinct, stratified_log_weights
from slide.kernels.largest import keep_largest_bounds
from slide.kernels.sketches import (
    CODES,
    PRIOR,
    SCALE,
    WIDTH,
    Head,
    largest_scores,
    rank_buckets,
    sketch_rows,
)
from slide.kernels.votes import RankedIds, vote_per_sample
from slide.plain import buckets as plain_buckets
from slide.plain import sketches as plain_sketches
from slide.sampling.best_ids import best_of_voted
from slide.sparse import Pattern

_ROWS, _WIDTH, _OUTPUTS, _TABLES, _DIGITS, _BITS = 9, 32, 40, 4, 3, 3


def _joined(digits: np.ndarray) -> np.ndarray:
    """The codes of digits ``(n, L, K)``, the first digit highest."""
    powers = 1 << _BITS * np.arange(_DIGITS)[::-1]
    return (digits * powers).sum(2).T


def _maxima(rng: np.random.Generator) -> None:
    """Codes by the largest coordinate of each bin, and codes with the second one in its place."""
    seed = int(rng.integers(99))
    family = DWTA(_WIDTH, _DIGITS, _TABLES, bin_size=1 << _BITS, seed=seed)
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
    """Ids by the number of buckets that a sample shares with them."""
    buckets, most = 8, 12
    codes = rng.integers(0, buckets, (_TABLES, _OUTPUTS)).astype(np.int32)
    asked = rng.integers(0, buckets, (_TABLES, _ROWS)).astype(np.int32)
    tables = HashTables(_TABLES, buckets, bucket_capacity=_OUTPUTS)
    tables.build(codes)
    votes = (codes[:, None] == asked[:, :, None]).sum(0)
    ranked = RankedIds(np.empty((_ROWS, most), np.int32), np.full(_ROWS, most))
    marks = np.zeros((1, _OUTPUTS), np.uint8), np.zeros((1, _TABLES * _OUTPUTS), np.int32)
    key = np.uint64(rng.integers(1 << 62))
    vote_per_sample(tables.arrays(), asked, _OUTPUTS, key, *marks, ranked)
    for row, own in enumerate(votes):
        ids = ranked.ids[row, : ranked.counts[row]]
        best = np.sort(own)[::-1][:most]
        equal("the number of distinct ids", len(set(ids.tolist())), int((best > 0).sum()))
        equal("the votes of the best ids", sorted(own[ids], reverse=True), best[best > 0].tolist())


def _folded(rng: np.random.Generator) -> None:
    """Buckets of codes, of which there are more than buckets."""
    codes, buckets = rng.integers(0, 1 << 31, (_TABLES, _OUTPUTS)).astype(np.int32), 37
    expected = plain_buckets.fold(torch.from_numpy(codes), buckets)
    equal("buckets of codes", fold(codes, buckets).tolist(), expected.tolist())


def _sketches(rng: np.random.Generator) -> None:
    """The best rounded rows in the head and in the buckets of a sample."""
    buckets, most, first = 8, 6, 15
    codes = rng.integers(1, buckets, (_TABLES, _OUTPUTS)).astype(np.int32)
    codes[:, :first] = 0  # The bucket of the head, which nobody asks for.
    asked = rng.integers(1, buckets, (_TABLES, _ROWS)).astype(np.int32)
    tables = HashTables(_TABLES, buckets, bucket_capacity=None)
    tables.build(codes)
    sketches = rng.integers(-127, 128, (_OUTPUTS, WIDTH)).astype(np.int8)
    floats = sketches.view(np.float32)
    floats[:, SCALE], floats[:, PRIOR] = rng.random(_OUTPUTS), rng.random(_OUTPUTS)
    queries = np.zeros((_ROWS, WIDTH), np.float32)
    queries[:, :CODES] = rng.standard_normal((_ROWS, CODES))
    labels = Pattern.from_lists([[row] for row in range(_ROWS)])
    ids = np.empty((_ROWS, most), np.int32)
    which = np.arange(_TABLES)
    products = queries[:, :CODES] @ sketches[:first, :CODES].T.astype(np.float32)
    head = Head(np.arange(first, dtype=np.int32), *floats[:first, [SCALE, PRIOR]].T.copy())
    arrays = tables.arrays(), (sketches, floats)
    rank_buckets(products, head, queries, which, asked, *arrays, labels, 99, ids)
    scores = queries[:, :CODES].astype(float) @ sketches[:, :CODES].T * floats[:, SCALE]
    scores += floats[:, PRIOR]
    shares = (codes[:, None] == asked[:, :, None]).any(0)
    shares[:, :first] = True
    shares[np.arange(_ROWS), np.arange(_ROWS)] = False
    for row in range(_ROWS):
        best = np.argsort(-np.where(shares[row], scores[row], -np.inf))[:most]
        best = best[shares[row, best]]
        equal("the best rows of buckets", ids[row, : len(best)].tolist(), best.tolist())
        equal("places that are left", set(ids[row, len(best) :].tolist()) <= {-1}, True)


def _rounded_rows(rng: np.random.Generator) -> None:
    """Sketches of rows."""
    projected = rng.standard_normal((_OUTPUTS, 9)).astype(np.float32)
    found = np.empty((_OUTPUTS, WIDTH), np.int8)
    sketch_rows(projected, projected[0], (found, found.view(np.float32)))
    rows, offset = torch.from_numpy(projected), torch.from_numpy(projected[0])
    expected = plain_sketches.sketch_rows(rows, offset).numpy()
    # A quotient that is nearly half a number may be rounded to either side.
    errors = np.abs(found[:, :CODES].astype(int) - expected[:, :CODES])
    equal("numbers of rounded rows", bool((errors <= 1).all()), True)
    floats, twins = (
        torch.from_numpy(x.view(np.float32)[:, [SCALE, PRIOR]]) for x in (found, expected)
    )
    near("scales of rounded rows", floats, twins)


def _largest_scores(rng: np.random.Generator) -> None:
    """The score that a row may have."""
    sketches = rng.integers(-127, 128, (_OUTPUTS, WIDTH)).astype(np.int8)
    floats, variances = sketches.view(np.float32), np.zeros(WIDTH, np.float32)
    floats[:, [SCALE, PRIOR]], variances[:CODES] = rng.random((_OUTPUTS, 2)), rng.random(CODES)
    found = np.empty(_OUTPUTS, np.float32)
    largest_scores((sketches, floats), variances, np.float32(2), found)
    spread = np.sqrt(sketches.astype(float) ** 2 @ variances)
    expected = torch.from_numpy(floats[:, PRIOR] + 2 * floats[:, SCALE] * spread)
    near("largest scores", torch.from_numpy(found), expected.float())


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
    "buckets of codes": _folded,
    "best rows of buckets": _sketches,
    "rounded rows": _rounded_rows,
    "largest scores of rows": _largest_scores,
    "best ids of lists": _best_of_lists,
    "weights of drawn ids": _weights_of_sets,
    "counts of ids": _counts,
    "largest bounds": _largest_bounds,
}
