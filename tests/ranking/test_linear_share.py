"""Weight of the linear classifiers by the number of labels of a row."""

import pytest

from slide.ranking.linear_ranker import linear_share


@pytest.mark.parametrize(
    ("labels", "share"), [(0, 0.5), (1, 0.5), (4, 0.5), (5, 0.4), (10, 0.2), (20, 0.1), (200, 0.1)]
)
def test_linear_share(labels, share):
    assert linear_share(labels) == pytest.approx(share)


def test_an_impossible_number_of_labels_is_refused():
    with pytest.raises(ValueError, match="labels_per_row must be a number of at least 0, not -1"):
        linear_share(-1)
