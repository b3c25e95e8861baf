"""Settings that follow from the size of the data."""

import pytest

from slide.utils import sizes as rules


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        *((0, 64), (128 * 128 - 1, 64), (128 * 128, 128), (128 * 256 - 1, 128)),
        *((128 * 256, 256), (128 * 512, 512), (10**9, 512)),
    ],
)
def test_batch_size(rows, expected):
    assert rules.batch_size(rows) == expected


MOST_ACTIVE = {"per_sample": 128, "grouped": 192, "shared": 2048}


@pytest.mark.parametrize("mode", MOST_ACTIVE)
def test_active_outputs(mode):
    """A quarter of all labels, but 64 at least, and at most what a mode needs."""
    most = MOST_ACTIVE[mode]
    for labels, expected in (
        *((1, 64), (256, 64), (259, 64), (260, 65), (4 * 127, 127)),
        *((4 * most - 1, most - 1), (4 * most, most), (670_091, most)),
    ):
        assert rules.active_outputs(labels, mode) == expected


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="num_rows must be a whole number of at least 0, not -1"):
        rules.batch_size(-1)
    with pytest.raises(ValueError, match="num_labels must be a whole number of at least 1, not 0"):
        rules.active_outputs(0, "grouped")
