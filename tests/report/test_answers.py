"""What a report counts, against loops."""

import math

import numpy as np
import pytest

from slide.report.page import Answers, by_frequency, calibration, example, hardest_and_best
from slide.sparse import CSR, Pattern

RANGES = {
    "0": (0, 0),
    "1": (1, 1),
    "2-4": (2, 4),
    "5-9": (5, 9),
    "10-49": (10, 49),
    "50-499": (50, 499),
    "500+": (500, 10**9),
}


def naive_by_frequency(counts, truth, found):
    """For each bin that has labels: name, labels, and for k of 1, 3, 5 recall and part of P@k."""
    lines = []
    for name, (least, most) in RANGES.items():
        inside = {label for label, count in enumerate(counts) if least <= count <= most}
        if not inside:
            continue
        true = sum(label in inside for labels in truth for label in labels)
        parts = []
        for k in (1, 3, 5):
            hit = sum(
                label in inside and label in labels
                for labels, answers in zip(truth, found, strict=True)
                for label in answers[:k]
            )
            parts.append((hit / true if true else None, hit / (k * len(found))))
        lines.append((name, len(inside), parts))
    return lines


def naive_label_facts(label, truth, found):
    """Rows that have a label, rows where it was found, and rows where it was answered."""
    rows = [label in labels for labels in truth]
    answered = [label in answers for answers in found]
    both = [a and b for a, b in zip(rows, answered, strict=True)]
    return sum(rows), sum(both), sum(answered)


@pytest.fixture(scope="module")
def made():
    """Random answers to 60 rows of 30 labels; some rows have fewer answers than others."""
    rng = np.random.default_rng(0)
    truth = [sorted(rng.choice(30, rng.integers(0, 4), replace=False).tolist()) for _ in range(60)]
    ids = np.stack([rng.choice(12, 5, replace=False) for _ in range(60)])
    ids[rng.random(ids.shape) < 0.1] = -1
    scores = -np.sort(-rng.random(ids.shape), 1)
    counts = rng.integers(0, 12, 30)
    values = np.array([0.1, -0.9, 0.4] * 60, np.float32)
    features = CSR(np.arange(0, 181, 3), np.tile(np.arange(3, dtype=np.int32), 60), values)
    names = [f"l{i}" for i in range(30)]
    answers = Answers(
        ids, scores, Pattern.from_lists(truth), features, counts, True, names.__getitem__
    )
    return answers, truth, [[each for each in row if each >= 0] for row in ids.tolist()]


def test_frequencies(made):
    answers, truth, _ = made
    expected = naive_by_frequency(answers.counts, truth, answers.ids.tolist())
    found = by_frequency(answers)
    assert [(each.name, each.labels) for each in found] == [line[:2] for line in expected]
    for each, (_, _, parts) in zip(found, expected, strict=True):
        recall, precision = zip(*parts, strict=True)
        assert each.precision == pytest.approx(precision)
        for one, other in zip(each.found, recall, strict=True):
            assert math.isnan(one) if other is None else one == pytest.approx(other)
    assert sum(each.share for each in found) == pytest.approx(1)


def test_labels(made):
    answers, truth, found = made
    hardest, best = hardest_and_best(answers, most=4)
    assert len(hardest) == len(best) == 4
    for each in hardest + best:
        counts = naive_label_facts(each.label, truth, found)
        assert (each.rows, each.found, each.answered) == counts
        assert each.trained == answers.counts[each.label]
    shares = [each.found / each.rows for each in hardest + best[::-1]]
    assert shares == sorted(shares)
    for each in hardest:
        if each.example >= 0:
            assert each.label in truth[each.example]
            assert each.label not in found[each.example]
    for each in best:
        if each.example >= 0:
            assert each.label in set(truth[each.example]) & set(found[each.example])
    assert any(each.example >= 0 for each in best)


def test_calibration(made):
    answers, truth, _ = made
    mean, share, counts = calibration(answers, bins=4)
    known = [
        (float(score), label in labels)
        for row, scores, labels in zip(answers.ids, answers.scores, truth, strict=True)
        for label, score in zip(row, scores, strict=True)
        if label >= 0
    ]
    assert counts.sum() == len(known)
    assert mean @ counts == pytest.approx(sum(score for score, _ in known))
    assert share @ counts == pytest.approx(sum(right for _, right in known))
    inside = [right for score, right in known if 0.25 <= score < 0.5]
    at = int(np.flatnonzero((mean >= 0.25) & (mean < 0.5))[0])
    assert counts[at] == len(inside)
    assert share[at] == pytest.approx(np.mean(inside))


def test_names_of_a_row(made):
    answers, truth, found = made
    row = max(range(60), key=lambda i: len(truth[i]))
    names = example(answers, row)
    assert names[f"row {row}"] == ["feature 1", "feature 2", "feature 0"]
    by_count = sorted(truth[row], key=lambda label: -answers.counts[label])
    assert names["labels"] == [f"l{i}" for i in by_count]
    assert names["answers"] == [f"l{i}" for i in found[row]]
