"""What the last evaluation of a run says of labels, scores and rows."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from slide.sparse import CSR, Pattern, hits

# Labels by the number of their training rows: from the first number on, to before the next bin.
_BINS = {"0": 0, "1": 1, "2-4": 2, "5-9": 5, "10-49": 10, "50-499": 50, "500+": 500}
# Labels are compared that have this many evaluated rows; fewer, if there are few such labels.
_ENOUGH_ROWS = (20, 10, 5, 2, 1)
SHOWN_LABELS = SHOWN_FEATURES = 8


class Answers(NamedTuple):
    """Answers to the rows that a run was evaluated on.

    Attributes:
        ids: ``(n, k)`` labels, best first; -1: no more.
        scores: ``(n, k)`` their scores.
        labels: right labels of the n rows.
        features: the n rows.
        counts: ``(N,)`` how many training rows have each label.
        probabilities: whether the scores are probabilities.
        label_name: the name of a label's number.
        feature_name: the name of a feature's number.

    Example:
        >>> import numpy as np
        >>> from slide import CSR, Pattern
        >>> from slide.report import Answers
        >>> rows = CSR(np.arange(3), np.zeros(2, np.int32), np.ones(2, np.float32))
        >>> ids, scores = np.array([[0], [1]]), np.array([[0.9], [0.4]])
        >>> truth = Pattern.from_lists([[0], [0]])
        >>> Answers(ids, scores, truth, rows, np.array([7, 2]), True).label_name(1)
        'label 1'
    """

    ids: np.ndarray
    scores: np.ndarray
    labels: Pattern
    features: CSR
    counts: np.ndarray
    probabilities: bool
    label_name: Callable[[int], str] = lambda label: f"label {label}"
    feature_name: Callable[[int], str] = lambda feature: f"feature {feature}"


class Bin(NamedTuple):
    """Labels of similar frequency.

    Attributes:
        name: numbers of training rows.
        labels: number of such labels.
        share: of the right labels of all rows, in [0, 1].
        found: the share of these that is among the first 1, 3 and 5 answers; NaN without any.
        precision: what they contribute to P@1, P@3 and P@5.
    """

    name: str
    labels: int
    share: float
    found: list[float]
    precision: list[float]


class LabelFacts(NamedTuple):
    """How well a label was found.

    Attributes:
        label: its number.
        trained: training rows that have it.
        rows: evaluated rows that have it.
        found: of these, rows with it among the answers.
        answered: rows with it among the answers, rightly or not.
        example: an evaluated row; -1: none fits.
    """

    label: int
    trained: int
    rows: int
    found: int
    answered: int
    example: int


def by_frequency(answers: Answers) -> list[Bin]:
    """Precision and recall of labels by how many training rows they have.

    Example:
        >>> import numpy as np
        >>> from slide.report.answers import Answers, by_frequency
        >>> from slide.sparse import CSR, Pattern
        >>> rows = CSR(np.arange(3), np.zeros(2, np.int32), np.ones(2, np.float32))
        >>> truth, ids = Pattern.from_lists([[0], [1]]), np.array([[0], [0]])
        >>> bins = by_frequency(Answers(ids, ids, truth, rows, np.array([1, 7]), False))
        >>> [(each.name, each.share, each.found[0]) for each in bins]
        [('1', 0.5, 1.0), ('5-9', 0.5, 0.0)]
    """
    right, edges = hits(answers.ids, answers.labels), np.array(list(_BINS.values()))
    bin_of = np.searchsorted(edges, answers.counts, "right") - 1
    truth = np.bincount(bin_of[answers.labels.indices], minlength=len(_BINS))
    sizes = np.bincount(bin_of, minlength=len(_BINS))
    hit = np.stack([_hits_by_bin(answers.ids, right, bin_of, k) for k in (1, 3, 5)])
    found, rows = hit / np.where(truth, truth, np.nan), max(len(answers.ids), 1)
    precision = hit / (rows * np.array([[1], [3], [5]]))
    return [
        Bin(
            name,
            int(sizes[at]),
            float(truth[at] / max(truth.sum(), 1)),
            found[:, at].tolist(),
            precision[:, at].tolist(),
        )
        for at, name in enumerate(_BINS)
        if sizes[at]
    ]


def _hits_by_bin(ids: np.ndarray, right: np.ndarray, bin_of: np.ndarray, k: int) -> np.ndarray:
    return np.bincount(bin_of[ids[:, :k][right[:, :k]]], minlength=len(_BINS))


def calibration(answers: Answers, bins: int = 10) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How often answers are right, by their scores.

    Args:
        answers: the answers.
        bins: number of bins: of equal width for probabilities, else with equally many answers.

    Returns:
        For each bin that is not empty the mean score, the share of right answers, and their number.
    """
    known = answers.ids >= 0
    scores = answers.scores[known].astype(np.float64)
    right = hits(answers.ids, answers.labels)[known]
    if answers.probabilities:
        bin_of = np.clip((scores * bins).astype(np.int64), 0, bins - 1)
    else:
        order = np.argsort(np.argsort(scores, kind="stable"), kind="stable")
        bin_of = order * bins // max(len(scores), 1)
    counts = np.bincount(bin_of, minlength=bins)
    sums = np.bincount(bin_of, scores, bins), np.bincount(bin_of, right, bins)
    kept = counts > 0
    return sums[0][kept] / counts[kept], sums[1][kept] / counts[kept], counts[kept]


def calibration_errors(answers: Answers) -> tuple[float, float]:
    """The expected calibration error of all answers, and of the first answer to each row."""
    found = []
    for count in (answers.ids.shape[1], 1):
        part = answers._replace(ids=answers.ids[:, :count], scores=answers.scores[:, :count])
        scores, shares, counts = calibration(part)
        found.append(float(np.abs(scores - shares) @ counts / max(counts.sum(), 1)))
    return found[0], found[1]


def hardest_and_best(answers: Answers, most: int = 10) -> tuple[list[LabelFacts], list[LabelFacts]]:
    """The labels that were found least, and those that were found most.

    Args:
        answers: the answers.
        most: largest number of labels of each kind.
    """
    right, size = hits(answers.ids, answers.labels), len(answers.counts)
    rows = np.bincount(answers.labels.indices, minlength=size)
    found = np.bincount(answers.ids[right], minlength=size)
    answered = np.bincount(answers.ids[answers.ids >= 0], minlength=size)
    least = next((n for n in _ENOUGH_ROWS if (rows >= n).sum() >= 2 * most), _ENOUGH_ROWS[-1])
    labels = np.flatnonzero(rows >= least)
    share = found[labels] / rows[labels]
    # Among equal ones, those with more rows say more.
    worst_first = labels[np.lexsort((-rows[labels], share))]
    best_first = labels[np.lexsort((-rows[labels], -share))]
    most = min(most, len(labels) // 2)

    def facts(label: int, wanted: bool) -> LabelFacts:
        example, trained = _example(answers, right, label, wanted), int(answers.counts[label])
        in_rows, hit, given = (int(array[label]) for array in (rows, found, answered))
        return LabelFacts(int(label), trained, in_rows, hit, given, example)

    return (
        [facts(label, False) for label in worst_first[:most]],
        [facts(label, True) for label in best_first[:most]],
    )


def _example(answers: Answers, right: np.ndarray, label: int, wanted: bool) -> int:
    """The first row that has a label, and where it was found or not."""
    labels = answers.labels
    rows = np.searchsorted(labels.indptr, np.flatnonzero(labels.indices == label), "right") - 1
    was_found = ((answers.ids[rows] == label) & right[rows]).any(1)
    fitting = rows[was_found == wanted]
    return int(fitting[0]) if len(fitting) else -1


def strongest_features(answers: Answers, row: int) -> list[str]:
    """The names of the features of a row with the largest values."""
    begin, end = answers.features.indptr[row : row + 2]
    indices = answers.features.indices[begin:end]
    order = np.argsort(-np.abs(answers.features.values[begin:end]), kind="stable")
    return [answers.feature_name(int(each)) for each in indices[order[:SHOWN_FEATURES]]]


def right_labels(answers: Answers, row: int) -> list[str]:
    """The names of the labels of a row, the most frequent ones first."""
    begin, end = answers.labels.indptr[row : row + 2]
    labels = answers.labels.indices[begin:end]
    order = np.argsort(-answers.counts[labels], kind="stable")
    return [answers.label_name(int(each)) for each in labels[order[:SHOWN_LABELS]]]


def answered_labels(answers: Answers, row: int) -> list[str]:
    """The names of the answers to a row, the best first."""
    return [answers.label_name(int(each)) for each in answers.ids[row] if each >= 0]
