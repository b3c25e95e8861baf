"""Kernels against references and formulas, several draws, also with kernels as plain Python."""

import numpy as np
import pytest
import torch

from slide.active_set import transpose
from slide.check.self_test import SELF_TESTS, equal, near, random_csr
from slide.ops.active_sets import count_distinct
from slide.ops.base_scorers import relate_candidates
from slide.ops.item_factors import solve_factors, sum_products
from slide.ops.label_clusters import halve_nodes, sum_rows
from slide.ops.ragged import RowRoom, gather_entries
from slide.sparse import CSR, Pattern

_ROWS, _WIDTH, _COLUMNS, _LABELS, _OUTPUTS = 12, 12, 30, 9, 40


def _counts(rng):
    ids = rng.integers(0, _OUTPUTS, 60).astype(np.int32)
    distinct = count_distinct(ids, np.zeros(_OUTPUTS, np.uint8))
    equal("the number of distinct ids", int(distinct), len(set(ids.tolist())))


def _entries(rng):
    rows, _ = random_csr(rng, _ROWS, _WIDTH)
    values = rows.values
    positions = rng.permutation(len(values)).astype(np.int32)
    found = np.empty_like(values)
    gather_entries(rows.values, positions, found)
    equal("entries in another order", found.tolist(), rows.values[positions].tolist())
    ids, starts, entries, samples = transpose(Pattern(rows.indptr, rows.indices), _WIDTH)
    order = np.argsort(rows.indices, kind="stable")
    equal("grouped entries", entries.tolist(), order.tolist())
    equal("their samples", samples.tolist(), rows.entry_rows()[order].tolist())
    columns, counts = np.unique(rows.indices, return_counts=True)
    equal("the groups", ids.tolist(), columns.tolist())
    equal("their bounds", starts.tolist(), [0, *counts.cumsum().tolist()])


def _relations(rng):
    """Some labels of each row are candidates."""
    rows, x = random_csr(rng, _ROWS, _COLUMNS)
    lists, dense = random_csr(rng, _COLUMNS, _LABELS)
    lists, dense = lists._replace(values=np.abs(lists.values)), dense.abs()
    unseen, shares = (rng.random(n).astype(np.float32) + 0.1 for n in (_COLUMNS, _LABELS))
    ids = np.where(rng.random((_ROWS, _LABELS)) < 0.3, -1, np.arange(_LABELS))
    starts = np.append(0, np.cumsum((ids >= 0).sum(1)))
    found, scratch = np.empty((starts[-1], 3), np.float32), np.zeros((2, _LABELS), np.int32)
    relate_candidates(rows, lists, unseen, shares, ids, starts, scratch, found)
    equal("scratch that is not zero", int(scratch.any()), 0)
    own = torch.zeros_like(x).index_put_(
        (
            torch.from_numpy(np.repeat(np.arange(_ROWS), np.diff(rows.indptr))),
            torch.from_numpy(rows.indices).long(),
        ),
        torch.tensor(1.0),
    )
    shared = torch.from_numpy(shares)
    factors = dense / shared + torch.from_numpy(unseen)[:, None]
    bayes = shared.log() + own @ factors.log()
    best = (own[:, :, None] * dense).amax(1)
    expected = torch.stack([x @ dense, best, bayes], 2)[torch.from_numpy(ids >= 0)]
    near("relations", found, expected)


def _label_clusters(rng):
    """Sums of rows at length 1, and two groups of rows without a common column."""
    x, dense = random_csr(rng, _ROWS, _WIDTH)
    lists, member = random_csr(rng, 6, _ROWS)
    room = np.zeros(6 * _WIDTH, np.int32), np.zeros(6 * _WIDTH, np.float32)
    found = RowRoom(_WIDTH * np.arange(6), np.zeros(6, np.int64), *room)
    scratch = np.zeros((2, 2, _WIDTH), np.float32)[:, 0]  # Not contiguous, as where it is called.
    sum_rows(lists, x, scratch, found)
    sums = np.zeros((6, _WIDTH), np.float32)
    for n, (begin, count) in enumerate(zip(found.starts, found.counts, strict=True)):
        own = slice(begin, begin + count)
        sums[n, room[0][own]] = room[1][own]
    expected = torch.nn.functional.normalize((member != 0).float() @ dense, eps=1e-9)
    near("sums of rows", sums, expected)
    half, width = _ROWS // 2, _WIDTH // 2
    columns = np.arange(width) + width * np.repeat([0, 1], half)[:, None]
    values = rng.random(columns.size).astype(np.float32) + 1
    rows = CSR(width * np.arange(_ROWS + 1), columns.ravel().astype(np.int32), values)
    members = rng.permutation(_ROWS)
    members[0], members[np.flatnonzero(members == half)[0]] = half, members[0]
    halve_nodes(rows, members, np.array([0, _ROWS]), 8, np.zeros((1, 2, _WIDTH), np.float32))
    halves = {tuple(np.sort(each).tolist()) for each in (members[:half], members[half:])}
    equal("halves of a node", halves, {tuple(range(half)), tuple(range(half, _ROWS))})


def _item_factors(rng):
    """The solution of each row's equations, and sums of products."""
    rows, dense = random_csr(rng, _ROWS, _COLUMNS)
    other = rng.standard_normal((_COLUMNS, 5)).astype(np.float32)
    parts = np.empty((4, 5, 5), np.float32)
    sum_products(other, parts)
    gram = torch.from_numpy(other).T @ torch.from_numpy(other)
    near("sums of products", parts.sum(0), gram)
    penalty, found = rng.random(_ROWS).astype(np.float32) + 1, np.ones((_ROWS, 5), np.float32)
    solve_factors(
        *(Pattern(rows.indptr, rows.indices), other, gram.numpy() / 8, penalty, 30),
        *(np.empty((1, 3, 5), np.float32), found),
    )
    for b, has in enumerate(dense != 0):
        own = torch.from_numpy(other)[has]
        matrix = gram / 8 + own.T @ own + float(penalty[b]) * torch.eye(5)
        near("factors of a row", found[b], torch.linalg.solve(matrix, own.sum(0)), 1e-3)


TESTS = SELF_TESTS | {
    "counts of ids": _counts,
    "entries of rows": _entries,
    "candidates and features": _relations,
    "clusters of labels": _label_clusters,
    "factors of items": _item_factors,
}


@pytest.mark.kernels_only
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", TESTS)
def test_kernels_equal_their_references_and_formulas(name):
    rng = np.random.default_rng(1)
    torch.manual_seed(1)
    for _ in range(3):
        TESTS[name](rng)
