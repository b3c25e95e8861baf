"""The benchmark of labels by frequency counts what a loop over rows and labels counts."""

import numpy as np
import pytest
from benchmarks import frequency
from helpers import naive_frequency

from slide.sparse import Pattern
from slide.training import precision_at_k

# The ends of all bins.
COUNTS = np.array([0, 1, 2, 4, 5, 9, 10, 49, 50, 499, 500, 70_000, 0, 1, 3, 30])


def random_case(seed):
    """True labels and five answers of forty rows, of which some have no labels."""
    rng = np.random.default_rng(seed)
    truth = [sorted(rng.permutation(len(COUNTS))[: rng.integers(0, 6)].tolist()) for _ in range(40)]
    found = np.array([rng.permutation(len(COUNTS))[:5] for _ in truth])
    found[::7, 3:] = -1
    return truth, found


@pytest.mark.parametrize("seed", range(5))
def test_it_counts_as_the_loop_does(seed):
    truth, found = random_case(seed)
    labels = Pattern.from_lists(truth)
    sizes = frequency.sizes(COUNTS, labels)
    parts = frequency.found_by_bin(COUNTS, labels, found)
    expected = naive_frequency.by_frequency(COUNTS.tolist(), truth, found.tolist())
    for size, part, line in zip(sizes, parts, expected, strict=True):
        assert tuple((size | part).values()) == pytest.approx(line)


def test_shares_and_contributions_add_up():
    truth, found = random_case(9)
    labels = Pattern.from_lists(truth)
    assert sum(each["share"] for each in frequency.sizes(COUNTS, labels)) == pytest.approx(1)
    parts = frequency.found_by_bin(COUNTS, labels, found)
    total = sum(each["contribution"] for each in parts)
    assert total == pytest.approx(precision_at_k(found, labels, 5))
    assert total > 0


def test_a_bin_without_true_labels_has_no_recall():
    labels = Pattern.from_lists([[1]])
    parts = frequency.found_by_bin(COUNTS, labels, np.array([[1, -1, -1, -1, -1]]))
    assert [part["recall"] for part in parts] == [None, 1.0, None, None, None, None, None]
    assert parts[1]["contribution"] == pytest.approx(0.2)
