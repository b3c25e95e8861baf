"""Kernels of data and of evidence: rows as text, generated rows, words, votes, candidates."""

from itertools import pairwise

import numpy as np
import torch

from slide.check.comparing import Test, equal, near, random_csr
from slide.ops.kernels import text_rows as formatting
from slide.ops.kernels.base_scorers import Questions, ask_similar, regress_items, relate_candidates
from slide.ops.kernels.evidence import fill_evidence
from slide.ops.kernels.ragged import RowRoom
from slide.ops.kernels.random import random_bits
from slide.ops.kernels.sources import draw_features, draw_labels, subsample_words
from slide.ops.kernels.text_rows import Columns, parse_rows
from slide.search import top_votes
from slide.sparse import CSR, Pattern

_ROWS, _COLUMNS, _LABELS = 12, 30, 9


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
            place = min(abs(own[0] + int(step)), _LABELS - 1)
            while place in own:
                place = (place + 1) % _LABELS
            own.append(place)
        equal("drawn labels", found, own)
    prototypes = np.stack([rng.permutation(_COLUMNS)[:5] for _ in range(_LABELS)]).astype(np.int32)
    common = np.concatenate([rng.permutation(_COLUMNS)[:4] for _ in first]).astype(np.int32)
    slots, bounds = np.tile(np.arange(4, dtype=np.uint8), _ROWS), np.arange(0, 4 * _ROWS + 1, 4)
    names = rng.permutation(_COLUMNS).astype(np.int32)
    idf, places = (1 + rng.random(_COLUMNS)).astype(np.float32), np.full(_COLUMNS, -1)
    indices, values = np.empty(4 * _ROWS, np.int32), np.empty(4 * _ROWS, np.float32)
    pick = np.repeat(rng.choice([0.2, 0.9], _ROWS), 4)  # By popularity, or by the prototype.
    given = np.arange(_ROWS + 1), first.astype(np.int32), prototypes, pick, slots, common, 0.5
    draw_features(*given, idf, names, places, bounds, indices, values)
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
        near("votes", torch.from_numpy(found), torch.from_numpy(expected).float())
    equal("the order of votes", bool((np.diff(votes) <= 0).all()), True)
    equal("labels with votes", int((ids >= 0).sum()), int(have[near_rows].any(1).sum()))
    without = Pattern(np.arange(5), ids[:, 0].copy())
    found, *_ = top_votes(near_rows, weights, labels, _LABELS, _LABELS - 1, without)
    equal("labels but the best one", np.sort(found).tolist(), np.sort(ids[:, 1:]).tolist())


def _candidates(rng: np.random.Generator) -> None:
    """All labels of each row are candidates, and the list of votes knows all of them."""
    ids = np.tile(np.arange(_LABELS)[::-1], (_ROWS, 1))
    lists = np.stack([rng.permutation(_LABELS) for _ in range(_ROWS)]).astype(np.int32)
    scores = rng.standard_normal((5, _ROWS, _LABELS)).astype(np.float32)
    frequency, of_row = rng.integers(0, 99, _LABELS), rng.random((_ROWS, 3)).astype(np.float32)
    starts, found = np.arange(_ROWS + 1) * _LABELS, np.empty((ids.size, 20), np.float32)
    related = np.stack([scores[4].ravel(), *rng.random((2, ids.size))], axis=1).astype(np.float32)
    answered = rng.random((ids.size, 2)).astype(np.float32)
    known = (lists, scores[2], scores[3]), related, answered
    fill_evidence(ids, starts, scores[0], scores[1], *known, frequency, of_row, found)
    columns = torch.from_numpy(found).view(_ROWS, _LABELS, 20)
    place = torch.from_numpy(np.argsort(lists, 1)[:, ::-1].copy())
    for column, number in zip((0, 3, 6, 7, 9), range(5), strict=True):
        values = torch.from_numpy(scores[number])
        values = values.gather(1, place) if number in (2, 3) else values
        near("a score", columns[:, :, column], values)
        if column != 7:
            ranks = columns[:, :, {0: 2, 3: 5, 6: 8, 9: 12}[column]]
            near("its rank", ranks, (-values).argsort(1).argsort(1).float())
        if number < 2:
            near(
                "what is missing", columns[:, :, column + 1], values - values.amax(1, keepdim=True)
            )
    near("what features say", columns[:, :, 10:12].reshape(-1, 2), torch.from_numpy(related[:, 1:]))
    near("a frequency", columns[0, :, 13], torch.from_numpy(np.log1p(frequency[::-1])).float())
    near("the numbers of a row", columns[:, 0, 14:17], torch.from_numpy(of_row))
    near("the best score", columns[:, 3, 17], torch.from_numpy(scores[0].max(1)))
    near("what answers say", columns[:, :, 18:].reshape(-1, 2), torch.from_numpy(answered))


def _relations(rng: np.random.Generator) -> None:
    """All labels of each row are candidates."""
    rows, x = random_csr(rng, _ROWS, _COLUMNS)
    lists, dense = random_csr(rng, _COLUMNS, _LABELS)
    lists, dense = lists._replace(values=np.abs(lists.values)), dense.abs()
    unseen, shares = (rng.random(n).astype(np.float32) + 0.1 for n in (_COLUMNS, _LABELS))
    ids = np.tile(np.arange(_LABELS), (_ROWS, 1))
    found = np.empty((ids.size, 3), np.float32)
    places = np.zeros((2, _LABELS), np.int32)
    starts = np.arange(_ROWS + 1) * _LABELS
    relate_candidates(rows, lists, unseen, shares, ids, starts, places, found)
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
    near("relations", torch.from_numpy(found), torch.stack([x @ dense, best, bayes], 2).view(-1, 3))


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
    found, places = np.zeros((ids.size, 2), np.float32), np.zeros((2, _LABELS), np.int32)
    # The features of a row are asked beside the group of its number.
    groups, starts = features.entry_rows(), np.arange(_ROWS + 1) * _LABELS
    ask_similar(features, groups, weights, questions, labels, ids, starts, places, found)
    answers = torch.zeros(_ROWS, _COLUMNS, _LABELS)
    answers[beside != 0] = has.float()
    asked = (x != 0)[:, :, None] * dense * (beside != 0)[:, None]
    shares = (asked @ answers) / asked.sum(2, keepdim=True).clamp(min=1e-30)
    best = (asked.amax(1)[:, :, None] * answers).amax(1)
    near(
        "what answers say",
        torch.from_numpy(found),
        torch.stack([shares.sum(1), best], 2).view(-1, 2),
    )


def _regressions(rng: np.random.Generator) -> None:
    """All other items have a weight."""
    rows = torch.from_numpy(rng.random((80, _LABELS)) < 0.4).float()
    products = rows.T @ rows
    each, places = np.nonzero(products.numpy())
    bounds = np.searchsorted(each, np.arange(_LABELS + 1))
    lists = CSR(bounds, places.astype(np.int32), products[each, places].numpy())
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
        near("weights", torch.from_numpy(room.values[begin : begin + count]), expected)


def _room(size: int) -> tuple[np.ndarray, np.ndarray]:
    return np.empty(size, np.int32), np.empty(size, np.float32)


DATA_TESTS: dict[str, Test] = {
    "rows as text": _text,
    "words that stay": _words,
    "generated rows": _generated,
    "votes of near rows": _votes,
    "evidence of candidates": _candidates,
    "candidates and features": _relations,
    "answers to similar questions": _answers,
    "regressions of items": _regressions,
}
