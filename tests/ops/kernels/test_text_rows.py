"""Rows as text and rows of data sources, against looped twins."""

import math

import numpy as np
import pytest
from helpers import naive_numbers as naive
from helpers import naive_text
from helpers.matrices import make_csr, make_pattern
from helpers.naive import rows_of

from slide.ops.kernels import text_rows as formatting
from slide.ops.kernels import text_rows as kernels
from slide.ops.kernels.sources import draw_features, draw_labels, subsample_words
from slide.sparse import CSR, Pattern
from slide.utils.random_keys import random_key

EXTREMES = [0.0, -0.0, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38, 1.0, 1e5, 1e6]


def formatted(features, labels, *first):
    entries = len(features.indices), len(labels.indices), features.num_rows
    sizes = formatting.FEATURE_BYTES, formatting.LABEL_BYTES, formatting.ROW_BYTES
    out = np.zeros(np.dot(entries, sizes), np.uint8)
    end = formatting.format_rows(*features, *labels, *first, out)
    assert not out[end:].any(), "bytes beyond the end"
    return out[:end].tobytes()


@pytest.mark.parametrize("first", [(0, 0), (1, 0), (2**31 - 1, 7)])
@pytest.mark.parametrize("seed", range(3))
def test_rows_as_text(seed, first):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 8, 40)
    counts[:3] = 0
    features = make_csr(rng, counts, 50)
    labels = make_pattern(rng, rng.integers(0, 4, 40), 30)
    found = formatted(features, labels, *first)
    assert found == naive_text.format_rows(features, labels, *first)


@pytest.mark.parametrize("seed", range(3))
def test_values_of_all_sizes_as_text(seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2**32, 700, np.uint32).view(np.float32)
    values = np.concatenate([values[np.isfinite(values)], np.array(EXTREMES, np.float32)])
    short = (rng.integers(-(10**6), 10**6, 300) / 10.0 ** rng.integers(0, 9, 300)).astype("f4")
    values = np.concatenate([values, short])
    features = CSR(np.array([0, len(values)]), np.arange(len(values), dtype=np.int32), values)
    labels = Pattern.from_lists([[2**31 - 1]])
    found = formatted(features, labels, 0, 0)
    words, twins = found.split(), naive_text.format_rows(features, labels, 0, 0).split()
    assert words == twins


@pytest.mark.parametrize("first", [0, 10**10])
def test_subsampled_words(first):
    rng = np.random.default_rng(first % 7)
    words = rng.integers(-1, 20, 500, np.int32)
    keep = rng.random(20) * 1.2
    key = random_key(3)
    out = np.empty_like(words)
    kept = out[: subsample_words(words, first, key, keep, out)].tolist()
    assert kept == naive_text.subsample_words(words, first, key, keep)
    assert 0 < len(kept) < 500


def make_labels(rng, rows, num_clusters, num_labels):
    """Random arguments of `draw_labels`."""
    first = rng.integers(0, num_labels, rows)
    sizes = [len(range(f % num_clusters, num_labels, num_clusters)) for f in first.tolist()]
    indptr = np.concatenate([[0], np.cumsum(rng.integers(1, np.minimum(sizes, 6) + 1))])
    steps = rng.integers(-9, 10, indptr[-1])
    return first, steps, num_clusters, num_labels, indptr


@pytest.mark.parametrize(("num_clusters", "num_labels"), [(1, 1), (1, 7), (3, 20), (8, 50)])
def test_drawn_labels(num_clusters, num_labels):
    rng = np.random.default_rng(num_labels)
    arguments = make_labels(rng, 60, num_clusters, num_labels)
    indptr = arguments[-1]
    ranks = np.empty(indptr[-1], np.int32)
    draw_labels(*arguments, ranks)
    assert rows_of(indptr, ranks) == naive_text.draw_labels(*arguments)


@pytest.mark.parametrize("noise", [0.0, 0.4, 0.99])
@pytest.mark.parametrize("num_features", [4, 60])
def test_drawn_features(num_features, noise):
    rng = np.random.default_rng(num_features)
    arguments = make_labels(rng, 60, 3, 20)
    labels = naive_text.draw_labels(*arguments)
    label_indptr = arguments[-1]
    indptr = np.concatenate([[0], np.cumsum(rng.integers(1, min(num_features, 15) + 1, 60))])
    total = indptr[-1]
    given = (
        rng.integers(0, num_features, (20, 5), np.int32),
        rng.random(total),
        rng.integers(0, 5, total, np.uint8),
        rng.integers(0, num_features, total, np.int32),
        noise,
        (0.5 + rng.random(num_features)).astype(np.float32),
        rng.permutation(num_features).astype(np.int32),
    )
    places = np.full(num_features, -1, np.int64)
    indices, values = np.empty(total, np.int32), np.empty(total, np.float32)
    flat = np.concatenate(labels).astype(np.int32)
    draw_features(label_indptr, flat, *given, places, indptr, indices, values)
    assert (places == -1).all(), "the scratch is handed back clean"
    expected = naive_text.draw_features(labels, *given, indptr)
    assert rows_of(indptr, indices) == [[column for column, _ in row] for row in expected]
    weights = [weight for row in expected for _, weight in row]
    np.testing.assert_allclose(values, weights, rtol=1e-5)


INDICES = ["0", "7", "0012", "-0", "-3", "2147483648", "9" * 12, "", "-", "x", "12x", "-5,6", "+1"]
NUMBERS = [
    *("0", "1", "-1", "+2.5", ".5", "5.", "0.1", "123456789.125", "1e3", "1E-3", "-2.5e+10"),
    *("0e5", "3e22", "1e-22", "00.250", "1.5x", "7:8", "", ".", "-", "e5", "1e", "1e+", "--1"),
]


def as_bytes(text):
    """With the line feed that ends each line of a file."""
    return np.frombuffer(f"{text}\n".encode(), np.uint8)


@pytest.mark.parametrize("text", INDICES)
def test_read_index(text):
    assert kernels.read_index(as_bytes(text), 0) == naive.read_index(text)


@pytest.mark.parametrize("text", NUMBERS)
def test_read_number(text):
    value, end, valid = kernels.read_number(as_bytes(text), 0)
    expected = naive.read_number(text)
    assert valid == (expected is not None)
    if expected is not None:
        assert (value, end) == expected


def test_random_numbers():
    rng = np.random.default_rng(0)
    for _ in range(300):
        text = f"{rng.standard_normal() * 10.0 ** rng.integers(-6, 7):.{rng.integers(0, 9)}f}"
        value, end, valid = kernels.read_number(as_bytes(text), 0)
        assert valid
        assert end == len(text)
        assert math.isclose(value, float(text), rel_tol=2**-52)
