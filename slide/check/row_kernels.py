"""Kernels that list, group, shorten and clear the entries of rows, and score classifiers."""

import numpy as np
import torch

from slide.check.comparing import Test, equal, near, random_csr
from slide.ops.kernels.linear_classifiers import list_training_rows, score_labels
from slide.ops.kernels.pattern_products import group_entries
from slide.ops.kernels.ragged import clear_rows, gather_entries
from slide.search import shortened
from slide.sparse import Pattern

_ROWS, _WIDTH = 15, 12


def _entries(rng: np.random.Generator) -> None:
    rows, dense = random_csr(rng, _ROWS, _WIDTH)
    chosen = rng.permutation(_ROWS)[:6]
    values = rows.values.copy()
    clear_rows(rows.indptr, chosen, values)
    stay = ~np.isin(rows.entry_rows(), chosen)
    equal("rows that are cleared", values.tolist(), (rows.values * stay).tolist())
    places = rng.permutation(len(values)).astype(np.int32)
    found = np.empty_like(values)
    gather_entries(rows.values, places, found)
    equal("entries in another order", found.tolist(), rows.values[places].tolist())
    slots = rng.permutation(_WIDTH).astype(np.int32)
    starts, entries = np.empty(_WIDTH + 1, np.int64), np.empty(len(values), np.int64)
    samples = np.empty(len(values), np.int32)
    group_entries(rows.indptr, rows.indices, slots, starts, entries, samples)
    order = np.argsort(slots[rows.indices], kind="stable")
    equal("grouped entries", entries.tolist(), order.tolist())
    equal("their samples", samples.tolist(), rows.entry_rows()[order].tolist())
    ends = np.bincount(slots[rows.indices], minlength=_WIDTH).cumsum()
    equal("the bounds of the groups", starts.tolist(), [0, *ends.tolist()])
    least = dense.abs().topk(2).values[:, 1:]
    kept = shortened(rows, 2).values.tolist()
    equal("what is left of rows", kept, dense[(dense != 0) & (dense.abs() >= least)].tolist())


def _training_rows(rng: np.random.Generator) -> None:
    """The rows of a label, and those of which it is a wrong candidate."""
    lists = [[rng.permutation(_WIDTH)[:4].tolist() for _ in range(_ROWS)] for _ in range(2)]
    labels, candidates = (Pattern.from_lists(each) for each in lists)
    own, wrong = (np.zeros((_WIDTH, _ROWS), bool) for _ in range(2))
    for mask, each in ((own, lists[0]), (wrong, lists[1])):
        for row, ids in enumerate(each):
            mask[ids, row] = True
    used = own | wrong
    ends = used.sum(1).cumsum()
    marks, counts = np.empty(_WIDTH, np.int32), np.zeros(_WIDTH, np.int64)
    rows, signs = np.empty(ends[-1], np.int32), np.empty(ends[-1], np.float32)
    list_training_rows(labels, candidates, marks, counts, rows[:0], signs[:0])
    equal("the number of training rows", counts.tolist(), used.sum(1).tolist())
    list_training_rows(labels, candidates, marks, ends - counts, rows, signs)
    equal("training rows", rows.tolist(), np.nonzero(used)[1].tolist())
    equal("their signs", signs.tolist(), np.where(own, 1.0, -1.0)[used].tolist())


def _scores(rng: np.random.Generator) -> None:
    x, dense = random_csr(rng, _ROWS, _WIDTH)
    classifiers, weight = random_csr(rng, 40, _WIDTH)
    ids = np.stack([rng.permutation(40)[:6] for _ in range(_ROWS)])
    ids[0, 0] = -1
    found, room = np.empty(ids.shape, np.float32), np.zeros((1, _WIDTH), np.float32)
    score_labels(x, classifiers, -0.5, ids, room, found)
    equal("the score of nothing", float(found[0, 0]), -np.inf)
    expected = (dense @ weight.T).gather(1, torch.from_numpy(np.maximum(ids, 0))) - 0.5
    known = torch.from_numpy(ids >= 0)
    near("the scores of classifiers", torch.from_numpy(found)[known], expected[known])


ROW_TESTS: dict[str, Test] = {
    "entries of rows": _entries,
    "rows of classifiers": _training_rows,
    "scores of classifiers": _scores,
}
