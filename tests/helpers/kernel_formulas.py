"""Kernels that have no reference, against formulas of NumPy and PyTorch."""

from itertools import combinations, pairwise

import numpy as np
import torch

from slide.check.self_test import Test, equal, near, random_csr
from slide.data.dataset import Split
from slide.hashing import HashTables
from slide.ops.kernels import text_rows as formatting
from slide.ops.kernels.active_sets import RankedIds, count_distinct, vote_per_sample
from slide.ops.kernels.base_scorers import (
    Questions,
    ask_similar,
    count_labels,
    look_up_lists,
    rank_scores,
    regress_items,
    relate_candidates,
)
from slide.ops.kernels.conjunctions import list_sets, mix_shares
from slide.ops.kernels.label_clusters import halve_nodes, sum_rows
from slide.ops.kernels.largest import keep_largest_bounds
from slide.ops.kernels.linear_classifiers import (
    DualScratch,
    Solver,
    TrainingRows,
    fit_classifiers,
    list_training_rows,
    score_labels,
)
from slide.ops.kernels.products import group_entries
from slide.ops.kernels.ragged import (
    RowRoom,
    clear_rows,
    count_nonzeros,
    gather_entries,
    take_nonzeros,
)
from slide.ops.kernels.random import random_bits
from slide.ops.kernels.sources import draw_features, draw_labels, subsample_words
from slide.ops.kernels.text_rows import Columns, parse_rows, read_index, read_number
from slide.ops.kernels.trees import Trees, splits_of, sum_trees
from slide.search import RowIndex, column_lists, shortened, sparse_top_k, top_votes
from slide.sparse import CSR, Pattern

_ROWS, _WIDTH, _COLUMNS, _LABELS = 12, 12, 30, 9
_TABLES, _OUTPUTS = 4, 40


def _labels(rng: np.random.Generator) -> Pattern:
    return Pattern.from_lists(
        [rng.permutation(_LABELS)[: rng.integers(1, 4)].tolist() for _ in range(_ROWS)]
    )


def _split(bounds: np.ndarray, values: np.ndarray) -> list[list]:
    return [values[a:b].tolist() for a, b in pairwise(bounds)]


def _text(rng: np.random.Generator) -> None:
    """Rows that are written are read by Python, and by the kernel, as what they were."""
    features, labels = random_csr(rng, _ROWS, _COLUMNS)[0], _labels(rng)
    features.values[:] *= 10.0 ** rng.integers(-9, 9, len(features.values))
    sizes = formatting.FEATURE_BYTES, formatting.LABEL_BYTES, formatting.ROW_BYTES
    room = int(np.dot(sizes, (len(features.indices), len(labels.indices), _ROWS)))
    data = np.empty(room, np.uint8)
    data = data[: formatting.format_rows(*features, *labels, 0, 0, data)]
    for row, line in enumerate(data.tobytes().decode().splitlines()):
        first, *pairs = line.split(" ")
        own = slice(features.indptr[row], features.indptr[row + 1])
        bounds = labels.indptr[row : row + 2]
        equal("written labels", first.split(","), list(map(str, labels.indices[slice(*bounds)])))
        words = [pair.split(":") for pair in pairs if pair]
        equal("written columns", [w[0] for w in words], list(map(str, features.indices[own])))
        values = np.array([w[1] for w in words], np.float64).astype(np.float32)
        equal("written values", values.tolist(), features.values[own].tolist())
    found = CSR(*(np.empty_like(each) for each in features))
    named = Pattern(*(np.empty_like(each) for each in labels))
    columns = Columns(0, 0, _COLUMNS, _LABELS)
    _, rows, skipped, *_ = parse_rows(data, columns, _ROWS, False, True, *found, *named)
    equal("numbers of rows and malformed rows", (int(rows), int(skipped)), (_ROWS, 0))
    for one, other in zip((*found, *named), (*features, *labels), strict=True):
        equal("a row that is read", one.tolist(), other.tolist())


def _words(rng: np.random.Generator) -> None:
    words, keep = rng.integers(-1, 5, 60).astype(np.int32), rng.random(5)
    key, out = np.uint64(rng.integers(1 << 62)), np.empty(60, np.int32)
    draws = [(int(random_bits(key, 7 + i)) >> 11) / 2**53 for i in range(60)]
    expected = [int(w) for w, x in zip(words, draws, strict=True) if w >= 0 and x < keep[w]]
    equal(
        "the words that stay", out[: subsample_words(words, 7, key, keep, out)].tolist(), expected
    )


def _generated(rng: np.random.Generator) -> None:
    """Labels of one cluster; features of one prototype, without repeats."""
    first, bounds = rng.integers(0, _LABELS, _ROWS), np.arange(0, 3 * _ROWS + 1, 3)
    steps, ranks = rng.integers(-9, 9, 3 * _ROWS), np.empty(3 * _ROWS, np.int32)
    draw_labels(first, steps, 1, _LABELS, bounds, ranks)
    for row, found in enumerate(_split(bounds, ranks)):
        own = [int(first[row])]
        for step in steps[3 * row + 1 : 3 * row + 3]:
            position = min(abs(own[0] + int(step)), _LABELS - 1)
            while position in own:
                position = (position + 1) % _LABELS
            own.append(position)
        equal("drawn labels", found, own)
    prototypes = np.stack([rng.permutation(_COLUMNS)[:5] for _ in range(_LABELS)]).astype(np.int32)
    common = np.concatenate([rng.permutation(_COLUMNS)[:4] for _ in first]).astype(np.int32)
    slots, bounds = np.tile(np.arange(4, dtype=np.uint8), _ROWS), np.arange(0, 4 * _ROWS + 1, 4)
    names = rng.permutation(_COLUMNS).astype(np.int32)
    idf, positions = (1 + rng.random(_COLUMNS)).astype(np.float32), np.full(_COLUMNS, -1)
    indices, values = np.empty(4 * _ROWS, np.int32), np.empty(4 * _ROWS, np.float32)
    pick = np.repeat(rng.choice([0.2, 0.9], _ROWS), 4)  # By popularity, or by the prototype.
    given = np.arange(_ROWS + 1), first.astype(np.int32), prototypes, pick, slots, common, 0.5
    draw_features(*given, idf, names, positions, bounds, indices, values)
    drawn = common.reshape(-1, 4), prototypes[first, :4]
    chosen = np.where(pick.reshape(-1, 4) < 0.5, *drawn)
    equal("drawn features", indices.tolist(), names[chosen].ravel().tolist())
    weights = torch.from_numpy(idf[chosen])
    expected = weights / weights.norm(dim=1, keepdim=True)
    near("their weights", torch.from_numpy(values).view(-1, 4), expected)


def _votes(rng: np.random.Generator) -> None:
    labels = _labels(rng)
    near_rows = np.stack([rng.permutation(_ROWS)[:5] for _ in range(4)]).astype(np.int32)
    weights = rng.random(near_rows.shape).astype(np.float32)
    have = np.zeros((_ROWS, _LABELS))
    have[np.repeat(np.arange(_ROWS), np.diff(labels.indptr)), labels.indices] = 1
    ids, votes, sharp = top_votes(near_rows, weights, labels, _LABELS, _LABELS)
    for power, found in ((1, votes), (4, sharp)):
        expected = ((weights**power)[:, :, None] * have[near_rows]).sum(1)
        expected = np.where(ids < 0, 0, np.take_along_axis(expected, np.maximum(ids, 0), 1))
        near("votes", found, expected)
    equal("the order of votes", bool((np.diff(votes) <= 0).all()), True)
    equal("labels with votes", int((ids >= 0).sum()), int(have[near_rows].any(1).sum()))
    without = Pattern(np.arange(5), ids[:, 0].copy())
    found, *_ = top_votes(near_rows, weights, labels, _LABELS, _LABELS - 1, without)
    equal("labels but the best one", np.sort(found).tolist(), np.sort(ids[:, 1:]).tolist())


def _candidates(rng: np.random.Generator) -> None:
    """All labels of each row are candidates, and their lists know all of them."""
    scores = rng.standard_normal((_ROWS, _LABELS)).astype(np.float32)
    starts, found = np.arange(_ROWS + 1) * _LABELS, np.empty((scores.size, 4), np.float32)
    found[:, 1] = scores.ravel()
    rank_scores(starts, np.array([[1, 0, 2, 3]]), found)
    behind, values, ranks, best = torch.from_numpy(found).view(_ROWS, _LABELS, 4).unbind(2)
    most = values.amax(1, keepdim=True)
    near("what is missing", behind, values - most)
    near("a rank", ranks, (-values).argsort(1).argsort(1).float())
    near("the best score", best, most.expand_as(best))


def _lists(rng: np.random.Generator) -> None:
    """All labels of each row are candidates, and their lists know all of them."""
    ids = np.tile(np.arange(_LABELS)[::-1], (_ROWS, 1))
    listed = np.stack([rng.permutation(_LABELS) for _ in range(_ROWS)]).astype(np.int32)
    values = rng.standard_normal((2, _ROWS, _LABELS)).astype(np.float32)
    starts, found = np.arange(_ROWS + 1) * _LABELS, np.empty((ids.size, 2), np.float32)
    look_up_lists(ids, starts, listed, (values[0], values[1]), found)
    position = np.argsort(listed, 1)[:, ::-1]
    expected = [np.take_along_axis(each, position, 1).ravel() for each in values]
    near("values of lists", found, np.stack(expected, 1))


def _relations(rng: np.random.Generator) -> None:
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


def _answers(rng: np.random.Generator) -> None:
    """All labels are candidates, and each question that a feature makes has answers of its own."""
    features, x = random_csr(rng, _ROWS, _COLUMNS)
    weights, dense = random_csr(rng, _COLUMNS, _COLUMNS)
    weights, dense = weights._replace(values=np.abs(weights.values)), dense.abs()
    (indptr, others, _), beside = random_csr(rng, _ROWS, _COLUMNS)
    has = torch.from_numpy(rng.random((len(others), _LABELS)) < 0.3)
    labels = Pattern.from_lists([np.flatnonzero(row).tolist() for row in has.numpy()])
    questions = Questions(indptr, others, np.arange(len(others), dtype=np.int32))
    ids = np.tile(np.arange(_LABELS), (_ROWS, 1))
    found, positions = np.zeros((ids.size, 2), np.float32), np.zeros((2, _LABELS), np.int32)
    # The features of a row are asked beside the group of its number.
    groups, starts = features.entry_rows(), np.arange(_ROWS + 1) * _LABELS
    ask_similar(features, groups, weights, questions, labels, ids, starts, positions, found)
    answers = torch.zeros(_ROWS, _COLUMNS, _LABELS)
    answers[beside != 0] = has.float()
    asked = (x != 0)[:, :, None] * dense * (beside != 0)[:, None]
    shares = (asked @ answers) / asked.sum(2, keepdim=True).clamp(min=1e-30)
    best = (asked.amax(1)[:, :, None] * answers).amax(1)
    near("what answers say", found, torch.stack([shares.sum(1), best], 2).view(-1, 2))


def _regressions(rng: np.random.Generator) -> None:
    """All other items have a weight."""
    rows = torch.from_numpy(rng.random((80, _LABELS)) < 0.4).float()
    products = rows.T @ rows
    each, positions = np.nonzero(products.numpy())
    bounds = np.searchsorted(each, np.arange(_LABELS + 1))
    lists = CSR(bounds, positions.astype(np.int32), products[each, positions].numpy())
    size = _LABELS * _LABELS
    room = RowRoom(np.arange(_LABELS) * _LABELS, np.empty(_LABELS, np.int64), *_room(size))
    scratch = np.zeros((2, _LABELS), np.int32), np.empty((2, _LABELS), np.int32)
    gram = np.empty((2, _LABELS + 1, _LABELS + 1), np.float32)
    counts = rows.sum(0).long().numpy()
    regress_items(lists, counts, 0, _LABELS, np.float32(9), 50, *scratch, gram, room)
    for item in range(_LABELS):
        begin, count = room.starts[item], room.counts[item]
        others = room.columns[begin : begin + count]
        equal("other items", others.tolist(), [n for n in range(_LABELS) if n != item])
        matrix = products[others][:, others] + 9 * torch.eye(count)
        expected = torch.linalg.solve(matrix, products[others, item])
        near("weights", room.values[begin : begin + count], expected)


def _room(size: int) -> tuple[np.ndarray, np.ndarray]:
    return np.empty(size, np.int32), np.empty(size, np.float32)


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
    near("the sum of the trees", found, expected)


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
    near("the scores", scores, (x @ weight).clamp(min=0).topk(5).values)
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


def _csr_of_nothing(rng: np.random.Generator) -> None:
    empty = CSR(np.zeros(_ROWS + 1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    lists, _ = random_csr(rng, _WIDTH, 30)
    _, ids = sparse_top_k(empty, lists, 30, 3)
    equal("what rows without entries find", set(ids.ravel().tolist()), {-1})


def _entries(rng: np.random.Generator) -> None:
    rows, dense = random_csr(rng, _ROWS, _WIDTH)
    chosen = rng.permutation(_ROWS)[:6]
    values = rows.values.copy()
    clear_rows(rows.indptr, chosen, values)
    stay = ~np.isin(rows.entry_rows(), chosen)
    equal("rows that are cleared", values.tolist(), (rows.values * stay).tolist())
    positions = rng.permutation(len(values)).astype(np.int32)
    found = np.empty_like(values)
    gather_entries(rows.values, positions, found)
    equal("entries in another order", found.tolist(), rows.values[positions].tolist())
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
    """The rows of a label, and rows of which it is a wrong candidate."""
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


def _bucket_votes(rng: np.random.Generator) -> None:
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
    near("the bounds of the ids", bounds.gather(1, torch.from_numpy(ids)), best)


def _sets_of_features(rng: np.random.Generator) -> None:
    """The keys and kinds of all sets of up to three features."""
    lists = [rng.permutation(_WIDTH)[:5].tolist() for _ in range(_ROWS)]
    rows = Pattern.from_lists(lists)
    each = [list(s) for size in (1, 2, 3) for s in combinations(range(5), size)]
    hashes = rng.integers(0, 2**63, 5 * _ROWS).astype(np.uint64)
    groups = rng.integers(0, 80, 5 * _ROWS).astype(np.uint8)
    keys, kinds = np.empty(_ROWS * len(each), np.uint64), np.empty(_ROWS * len(each), np.uint8)
    starts = len(each) * np.arange(_ROWS)
    list_sets(rows, hashes, groups, np.full(_ROWS, 3), starts, keys, kinds)
    for found, parts in ((keys, hashes), (kinds, groups)):
        own = parts.reshape(_ROWS, 5)
        expected = [sorted(int(row[s].sum(dtype=row.dtype)) for s in each) for row in own]
        equal("sets of features", np.sort(found.reshape(_ROWS, -1)).tolist(), expected)


def _shares(rng: np.random.Generator) -> None:
    """Weights of sets times shares of their labels."""
    sets, weights = random_csr(rng, _ROWS, _WIDTH)
    lists, shares = random_csr(rng, _WIDTH, _LABELS)
    ids = np.stack([rng.permutation(_LABELS)[:5] for _ in range(_ROWS)])
    found, scratch = np.empty(5 * _ROWS, np.float32), np.zeros((1, _LABELS), np.int32)
    mix_shares(sets, lists, ids, 5 * np.arange(_ROWS + 1), scratch, found)
    near(
        "sums of shares",
        found.reshape(ids.shape),
        (weights @ shares).gather(1, torch.from_numpy(ids)),
    )


def _label_clusters(rng: np.random.Generator) -> None:
    """Sums of rows at length 1, and two groups of rows without a common column."""
    x, dense = random_csr(rng, _ROWS, _WIDTH)
    lists, member = random_csr(rng, 6, _ROWS)
    room = np.zeros(6 * _WIDTH, np.int32), np.zeros(6 * _WIDTH, np.float32)
    found = RowRoom(_WIDTH * np.arange(6), np.zeros(6, np.int64), *room)
    sum_rows(lists, x, np.zeros((1, _WIDTH), np.float32), found)
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


def _index(rng: np.random.Generator) -> None:
    """Few rows are all seen, so the index misses none of the best."""
    x, weight, bias = torch.randn(_ROWS, 9), torch.randn(_OUTPUTS, 9), torch.randn(_OUTPUTS)
    scores, ids = RowIndex(weight, bias, int(rng.integers(99))).top_k(x, 7)
    dense = torch.nn.functional.linear(x, weight, bias)
    near("the scores", scores, dense.topk(7).values)
    # Rounding may swap equal scores, so each id is compared by its score.
    near("the scores of the ids", dense.gather(1, ids), scores)
    equal("the number of distinct ids", [len(set(row)) for row in ids.tolist()], [7] * _ROWS)


def _rows(rng: np.random.Generator) -> None:
    sparse, dense = random_csr(rng, _ROWS, _WIDTH)
    labels = Pattern.from_lists([[row] for row in range(_ROWS)])
    rows = rng.integers(0, _ROWS, 30)
    taken = Split(sparse, labels, _WIDTH, _ROWS).take(rows)
    indptr, indices, values = taken.features
    found = torch.zeros(30, _WIDTH)
    owner = torch.arange(30).repeat_interleave(torch.from_numpy(np.diff(indptr)))
    found[owner, torch.from_numpy(indices).long()] = torch.from_numpy(values)
    near("rows that are copied", found, dense[torch.from_numpy(rows)], 0.0)
    equal("their labels", taken.labels.indices.tolist(), rows.tolist())


FORMULAS: dict[str, Test] = {
    "index over rows": _index,
    "rows of data": _rows,
    "numbers in text": _numbers_in_text,
    "decision trees": _trees,
    "linear classifiers": _classifiers,
    "labels of features": _label_counts,
    "largest sparse products": _sparse_products,
    "rows without entries": _csr_of_nothing,
    "entries that are not zero": _nonzeros,
    "votes of buckets": _bucket_votes,
    "counts of ids": _counts,
    "largest bounds": _largest_bounds,
    "entries of rows": _entries,
    "rows of classifiers": _training_rows,
    "scores of classifiers": _scores,
    "rows as text": _text,
    "words that stay": _words,
    "generated rows": _generated,
    "votes of near rows": _votes,
    "ranks of candidates": _candidates,
    "values of candidates in lists": _lists,
    "candidates and features": _relations,
    "answers to similar questions": _answers,
    "regressions of items": _regressions,
    "sets of features": _sets_of_features,
    "shares of labels": _shares,
    "clusters of labels": _label_clusters,
}
