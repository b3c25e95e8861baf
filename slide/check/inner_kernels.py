"""Kernels that no public operation shows alone: random numbers, trees, classifiers and others."""

import numpy as np
import torch
from torch.nn import functional as F

from slide.active_set import ActiveSet
from slide.check.comparing import Test, equal, gradient, near, random_csr
from slide.functional import active_linear, loss_on_active, relu_dropout
from slide.hashing import HashTables
from slide.ops.kernels.base_scorers import count_labels
from slide.ops.kernels.linear_classifiers import (
    DualScratch,
    Solver,
    TrainingRows,
    fit_classifiers,
)
from slide.ops.kernels.ragged import RowRoom, count_nonzeros, take_nonzeros
from slide.ops.kernels.random import random_below, random_bits
from slide.ops.kernels.text_rows import read_index, read_number
from slide.ops.kernels.trees import Trees, splits_of, sum_trees
from slide.optim import RowSparseAdam
from slide.search import column_lists, sparse_top_k
from slide.sparse import CSR, Pattern

_ROWS, _WIDTH = 20, 12
_MASK = (1 << 64) - 1


def _random_numbers(rng: np.random.Generator) -> None:
    """SplitMix64, with Python's integers."""
    for _ in range(20):
        key, counter = (int(rng.integers(1 << 62)) for _ in range(2))
        z = (key + (counter + 1) * 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        bound = int(rng.integers(1, 1 << 31))
        expected = (((z ^ (z >> 31)) >> 32) * bound) >> 32
        equal("random bits", int(random_bits(np.uint64(key), counter)), z ^ (z >> 31))
        equal("a random number", int(random_below(np.uint64(key), counter, bound)), expected)


def _numbers_in_text(rng: np.random.Generator) -> None:
    for _ in range(20):
        number = float(rng.standard_normal() * 10.0 ** rng.integers(-9, 9))
        text = f"{number:.{rng.integers(0, 9)}{rng.choice(list('feg'))}}"
        data = np.frombuffer(text.encode() + b" ", np.uint8)
        value, end, valid = read_number(data, 0)
        near(f"the number {text}", torch.tensor(value), torch.tensor(float(text)), 1e-12)
        equal(f"the end of {text}", (int(end), bool(valid)), (len(text), True))
        whole = str(rng.integers(1 << 31))
        found = read_index(np.frombuffer(whole.encode() + b":", np.uint8), 0)
        equal(f"the number {whole}", tuple(map(int, found)), (int(whole), len(whole)))


def _trees(rng: np.random.Generator) -> None:
    """Trees of two levels; the nodes of each are root, two inner ones and four leaves."""
    columns = np.tile(np.array([0, 1, 2, -1, -1, -1, -1], np.int32), 3)
    starts = np.repeat(np.arange(3) * 7, 7)
    left = (np.tile([1, 3, 5, 0, 0, 0, 0], 3) + starts).astype(np.int32)
    thresholds, values = rng.random(21), rng.random(21).astype(np.float32)
    rows = rng.random((_ROWS, 3)).astype(np.float32)
    roots = np.arange(0, 21, 7).astype(np.int32)
    found = np.empty(_ROWS, np.float32)
    trees = Trees(roots, columns, thresholds, left, left + 1, values)
    sum_trees(rows, splits_of(trees, 3), 0.5, found)
    expected = np.full(_ROWS, 0.5)
    for root in roots:
        first = root + 1 + (rows[:, 0] > thresholds[root])
        inner = np.where(first == root + 1, rows[:, 1], rows[:, 2]) > thresholds[first]
        expected += values[left[first] + inner]
    near("the sum of the trees", torch.from_numpy(found).double(), torch.from_numpy(expected))


def _classifiers(rng: np.random.Generator) -> None:
    """At the minimum of the squared hinge loss its gradient is zero."""
    sparse, dense = random_csr(rng, _ROWS, _WIDTH)
    rows, signs = np.arange(_ROWS, dtype=np.int32), rng.choice([-1, 1], _ROWS).astype(np.float32)
    lists = TrainingRows(np.array([0, _ROWS]), rows, signs)
    solver, first = Solver(1.0, -0.5, 2000, 1e-5), np.zeros(1, np.int64)
    for most_copied in (len(sparse.indices), 0):
        scratch = DualScratch.of(1, _ROWS, _WIDTH, most_copied)
        room = np.empty(_WIDTH, np.int32), np.empty(_WIDTH, np.float32)
        found = RowRoom(np.zeros(1, np.int64), np.zeros(1, np.int64), *room)
        fit_classifiers(sparse, np.empty(0), lists, first, solver, 0.0, scratch, found)
        columns, values = (each[: found.counts[0]] for each in room)
        weight = torch.zeros(_WIDTH, dtype=torch.float64)
        weight[torch.from_numpy(columns).long()] = torch.from_numpy(values).double()
        y, x = torch.from_numpy(signs).double(), dense.double()
        slack = (1 - y * (x @ weight - 0.5)).clamp(min=0)
        near("the weight of a classifier", weight, 2 * x.T @ (y * slack), 1e-3)


def _label_counts(rng: np.random.Generator) -> None:
    """All labels of a feature, and the two with the most rows."""
    lists = [rng.permutation(_WIDTH)[:4].tolist() for _ in range(_ROWS)]
    rows, _ = random_csr(rng, 6, _ROWS)
    expected = torch.zeros(6, _WIDTH)
    for f in range(6):
        for row in rows.indices[rows.indptr[f] : rows.indptr[f + 1]]:
            expected[f, lists[row]] += 1
    sums, touched = np.zeros((1, _WIDTH), np.int32), np.empty((1, _WIDTH + 1), np.int32)
    for longest in (_WIDTH, 2):
        room = np.empty(6 * longest, np.int32), np.zeros(6 * longest, np.float32)
        found = RowRoom(np.arange(6) * longest, np.zeros(6, np.int64), *room)
        count_labels(rows, Pattern.from_lists(lists), longest, sums, touched, found)
        most = torch.from_numpy(room[1].reshape(6, longest)).sort(descending=True).values
        near("the counts of labels", most, expected.topk(longest).values)
        for f, (begin, count) in enumerate(zip(found.starts, found.counts, strict=True)):
            ids, counts = (torch.from_numpy(each[begin : begin + count]) for each in room)
            near("the count of a label", counts, expected[f, ids.long()])


def _sparse_products(rng: np.random.Generator) -> None:
    lists, weight = random_csr(rng, _WIDTH, 40)
    rows, x = random_csr(rng, _ROWS, _WIDTH)
    scores, _ = sparse_top_k(rows, lists, 40, 5)
    near("the scores", torch.from_numpy(scores), (x @ weight).clamp(min=0).topk(5).values)
    turned = column_lists(rows, _WIDTH)
    equal("the columns' rows", turned.indices.tolist(), x.T.nonzero()[:, 1].tolist())


def _nonzeros(rng: np.random.Generator) -> None:
    _, dense = random_csr(rng, _ROWS, _WIDTH)
    matrix, indptr = dense.numpy(), np.zeros(_ROWS + 1, np.int64)
    count_nonzeros(matrix, indptr[1:])
    equal("the number of entries", indptr[1:].tolist(), (matrix != 0).sum(1).tolist())
    np.cumsum(indptr, out=indptr)
    columns, values = np.empty(indptr[-1], np.int32), np.empty(indptr[-1], np.float32)
    take_nonzeros(matrix, indptr, columns, values)
    equal("the columns", columns.tolist(), np.nonzero(matrix)[1].tolist())
    equal("the values", values.tolist(), matrix[matrix != 0].tolist())


def _dropout(rng: np.random.Generator) -> None:
    x = torch.randn(_ROWS, 400, requires_grad=True)
    out = relu_dropout(x, 0.5)
    up = torch.randn_like(out)
    out.backward(up)
    kept = out.detach() != 0
    near("what stays", out[kept], 2 * x[kept])
    near("the gradient", gradient(x), torch.where(kept, 2 * up, 0))
    share = float(kept.sum() / (x > 0).sum())
    if not 0.4 < share < 0.6 or bool((kept & (x <= 0)).any()):
        raise ValueError(f"{share:.0%} of the positive values stay, not half of them")


def _moved_rows(rng: np.random.Generator) -> None:
    """Tables in which rows moved hold what new tables would."""
    old, new = (rng.integers(0, 8, (3, 50)).astype(np.int32) for _ in range(2))
    ids = rng.permutation(50)[:20].astype(np.int32)
    moved, fresh, now = HashTables(3, 8, 64), HashTables(3, 8, 64), old.copy()
    now[:, ids] = new[:, ids]
    moved.build(old)
    moved.move(ids, old[:, ids], now[:, ids])
    fresh.build(now)
    every = np.tile(np.arange(8, dtype=np.int32), (3, 1))
    for table in range(3):
        for tables in (moved, fresh):
            equal("the number of ids", int(tables.buckets.seen[table].sum()), 50)
    found, expected = (tables.query(every) for tables in (moved, fresh))
    for b in range(8):
        part, other = (sorted(f.indices[f.indptr[b] : f.indptr[b + 1]]) for f in (found, expected))
        equal("a bucket", part, other)


def _decoupled(rng: np.random.Generator) -> None:
    """Each label against the outputs that are no labels."""
    targets = Pattern.from_lists([sorted(rng.permutation(9)[:3].tolist()) for _ in range(_ROWS)])
    active = ActiveSet(50, np.arange(9, dtype=np.int32), None, targets)
    scores = torch.randn(_ROWS, 9)
    truth = torch.zeros(_ROWS, 9, dtype=torch.bool)
    truth[torch.arange(_ROWS)[:, None], torch.from_numpy(targets.indices).long().view(-1, 3)] = True
    others = scores.masked_fill(truth, -torch.inf).logsumexp(1, keepdim=True)
    expected = (F.softplus(others - scores) * truth).sum(1).mean() / 3
    near("the loss", loss_on_active(scores, active, "decoupled_softmax"), expected)


def _adam_on_rows(rng: np.random.Generator) -> None:
    """A step of Adam changes an entry by its rate against the sign of its gradient."""
    weight = torch.nn.Parameter(torch.randn(60, _WIDTH))
    lists = [rng.permutation(60)[:5].tolist() for _ in range(_ROWS)]
    indptr, ids = Pattern.from_lists(lists)
    x, before = torch.randn(_ROWS, _WIDTH), weight.detach().clone()
    up = torch.randn(len(ids))
    active_linear(x, weight, None, ActiveSet(60, ids, indptr)).backward(up)
    RowSparseAdam([weight], lr=0.1, eps=1e-12).step()
    owner = torch.arange(_ROWS).repeat_interleave(5)
    grad = torch.zeros(60, _WIDTH).index_add_(
        0, torch.from_numpy(ids).long(), up[:, None] * x[owner]
    )
    near("the weight after a step", weight.detach(), before - 0.1 * grad.sign(), 1e-3)


def _csr_of_nothing(rng: np.random.Generator) -> None:
    empty = CSR(np.zeros(_ROWS + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    lists, _ = random_csr(rng, _WIDTH, 30)
    _, ids = sparse_top_k(empty, lists, 30, 3)
    equal("what rows without entries find", set(ids.ravel().tolist()), {-1})


INNER_TESTS: dict[str, Test] = {
    "random numbers": _random_numbers,
    "numbers in text": _numbers_in_text,
    "decision trees": _trees,
    "linear classifiers": _classifiers,
    "labels of features": _label_counts,
    "largest sparse products": _sparse_products,
    "rows without entries": _csr_of_nothing,
    "entries that are not zero": _nonzeros,
    "dropout": _dropout,
    "rows that move between buckets": _moved_rows,
    "decoupled softmax": _decoupled,
    "Adam on rows": _adam_on_rows,
}
