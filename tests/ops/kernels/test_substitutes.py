"""The answers to questions that differ in one feature: the kernel against its naive twin."""

import numpy as np
import pytest
from helpers import naive_experts
from helpers.matrices import make_csr, make_pattern

from slide.ops.kernels.base_scorers import Questions, ask_similar
from slide.sparse import CSR

FEATURES, LABELS, GROUPS, ROWS = 20, 9, 6, 14


def ascending(matrix):
    """The same rows with ascending columns, and values above 0."""
    order = np.lexsort((matrix.indices, matrix.entry_rows()))
    return CSR(matrix.indptr, matrix.indices[order], np.abs(matrix.values[order]) + 0.1)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("similar", "beside"), [(3, 15), (15, 3), (8, 8)])
def test_ask_similar(similar, beside, threads):
    """Either list may be the shorter one; a question may stand there several times."""
    rng = np.random.default_rng(similar)
    features = make_csr(rng, [0, *rng.integers(1, 5, ROWS - 1)], FEATURES)
    groups = rng.integers(-1, GROUPS, len(features.indices))
    lists = ascending(make_csr(rng, [0, *rng.integers(1, similar, FEATURES - 1)], FEATURES))
    others = np.sort(rng.integers(FEATURES, size=(GROUPS, beside)), axis=1).astype(np.int32)
    rows = rng.permutation(others.size).astype(np.int32)
    labels = make_pattern(rng, rng.integers(0, 4, others.size), LABELS)
    questions = Questions(np.arange(GROUPS + 1) * beside, others.ravel(), rows)
    ids = np.stack([rng.permutation(LABELS) for _ in range(ROWS)])
    ids[rng.random(ids.shape) < 0.3] = -1
    ids[2] = -1
    starts = np.concatenate([[0], np.cumsum((ids >= 0).sum(1))])
    found = np.zeros((starts[-1] + 1, 2), np.float32)
    found[-1], places = -7, np.zeros((threads, LABELS), np.int32)
    ask_similar(features, groups, lists, questions, labels, ids, starts, places, found[:-1])
    assert (found[-1] == -7).all(), "beyond the candidates"
    assert not places.any(), "the scratch is not handed back as it was"
    weights = [dict(zip(*pair, strict=True)) for pair in entries(lists)]
    answers = [labels.indices[a:b].tolist() for a, b in zip(*bounds(labels), strict=True)]
    asked = [
        [(other, answers[row]) for other, row in zip(own, numbers, strict=True)]
        for own, numbers in zip(others.tolist(), rows.reshape(GROUPS, -1).tolist(), strict=True)
    ]
    for b, (own, its_groups) in enumerate(entries(features._replace(values=groups))):
        row = list(zip(own, its_groups, strict=True))
        expected = naive_experts.ask_similar(row, weights, asked, ids[b].tolist())
        part = found[starts[b] : starts[b + 1]]
        np.testing.assert_allclose(part, np.reshape(expected, part.shape), rtol=1e-5)
    assert (found[:-1] > 0).any(0).all()


def bounds(matrix):
    return matrix.indptr[:-1], matrix.indptr[1:]


def entries(matrix):
    """Columns and values of each row, as lists."""
    return [
        (matrix.indices[a:b].tolist(), matrix.values[a:b].tolist())
        for a, b in zip(*bounds(matrix), strict=True)
    ]
