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


@pytest.mark.parametrize(
    ("labels", "expected"),
    [(1, 64), (256, 64), (259, 64), (260, 65), (4000, 1000), (8192, 2048), (670_091, 2048)],
)
def test_active_outputs(labels, expected):
    assert rules.active_outputs(labels) == expected


@pytest.mark.parametrize(("labels", "scale"), [(1, 1.0), (100_000, 1.0), (100_001, 0.1)])
def test_output_scale(labels, scale):
    assert rules.output_scale(labels, shared=True) == scale
    assert rules.output_scale(labels, shared=False) == 1


def test_impossible_sizes_are_refused():
    with pytest.raises(ValueError, match="num_rows must be a whole number of at least 0, not -1"):
        rules.batch_size(-1)
    with pytest.raises(ValueError, match="num_labels must be a whole number of at least 1, not 0"):
        rules.active_outputs(0)
