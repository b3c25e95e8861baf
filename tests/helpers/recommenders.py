"""Generated recommenders: many items, few in a row, and none that is asked for again."""

import numpy as np

from slide.data import Split
from slide.sparse import CSR, Pattern


def recommender(
    rows: int,
    items: int,
    groups: int = 50,
    own: int = 4,
    asked: int = 3,
    skew: float = 1.0,
    loyal: float = 0.7,
    seed: int = 0,
) -> Split:
    """Rows of items that a user has, and further items of the same user.

    The n-th most popular item of all has a weight of ``(n + 10)^-skew``. Items are in ``groups`` at
    random. A share ``loyal`` of the items of a user are of two groups, the others of any.

    Args:
        own: number of a row's items that are features, on average.
        asked: number of its labels, on average.
    """
    rng = np.random.default_rng(seed)
    weight = (np.arange(items) + 10.0) ** -skew
    group = rng.integers(groups, size=items)
    members = [np.flatnonzero(group == number) for number in range(groups)]
    sums = [np.cumsum(weight[each]) for each in [*members, np.arange(items)]]
    features, labels = [], []
    for _ in range(rows):
        first, second = 1 + rng.poisson([own - 1, asked - 1])
        tastes, drawn = rng.integers(groups, size=2), {}
        while len(drawn) < first + second:  # Each item once, in the order of the draws.
            taste = tastes[rng.integers(2)] if rng.random() < loyal else groups
            index = np.searchsorted(sums[taste], rng.random() * sums[taste][-1], side="right")
            drawn[int(index if taste == groups else members[taste][index])] = None
        features.append(sorted(list(drawn)[:first]))
        labels.append(sorted(list(drawn)[first:]))
    pattern = Pattern.from_lists(features)
    matrix = CSR(*pattern, np.ones(len(pattern.indices), np.float32))
    return Split(matrix, Pattern.from_lists(labels), items, items)
