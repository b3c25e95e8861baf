"""Rows as text, and rows of generated data."""

import numpy as np
import pytest
from helpers.matrices import make_pattern, rows_of

from slide.ops import text_rows as kernels
from slide.ops.sources import draw_features, draw_labels
from slide.sparse import Pattern


def cluster_arguments(rng, rows, num_clusters, num_labels):
    """Random arguments of `draw_labels`."""
    first = rng.integers(0, num_labels, rows)
    sizes = [len(range(f % num_clusters, num_labels, num_clusters)) for f in first.tolist()]
    indptr = np.concatenate([[0], np.cumsum(rng.integers(1, np.minimum(sizes, 6) + 1))])
    return first, rng.integers(-9, 10, indptr[-1]), num_clusters, num_labels, indptr


@pytest.mark.parametrize(("num_clusters", "num_labels"), [(1, 1), (1, 7), (3, 20), (8, 50)])
def test_drawn_labels(num_clusters, num_labels):
    rng = np.random.default_rng(num_labels)
    first, steps, *_, indptr = arguments = cluster_arguments(rng, 60, num_clusters, num_labels)
    ranks = np.empty(indptr[-1], np.int32)
    draw_labels(*arguments, ranks)
    for row, found in enumerate(rows_of(Pattern(indptr, ranks))):
        # The cluster's labels, from the most to the least popular one.
        cluster = list(range(int(first[row]) % num_clusters, num_labels, num_clusters))
        own = [int(first[row])]
        for step in steps[indptr[row] + 1 : indptr[row + 1]]:
            at = min(abs(cluster.index(own[0]) + int(step)), len(cluster) - 1)
            while cluster[at] in own:
                at = (at + 1) % len(cluster)
            own.append(cluster[at])
        assert found == own


@pytest.mark.parametrize("noise", [0.0, 0.4, 0.99])
@pytest.mark.parametrize("num_features", [4, 60])
def test_drawn_features(num_features, noise):
    """A feature that a row has already counts again, if it is one of a label."""
    rng = np.random.default_rng(num_features)
    labels = make_pattern(rng, rng.integers(1, 4, 60), 20)
    indptr = np.concatenate([[0], np.cumsum(rng.integers(1, min(num_features, 15) + 1, 60))])
    total = indptr[-1]
    prototypes, pick = rng.integers(0, num_features, (20, 5), np.int32), rng.random(total)
    slot, common = rng.integers(0, 5, total, np.uint8), rng.integers(0, num_features, total, "i4")
    idf = (0.5 + rng.random(num_features)).astype(np.float32)
    names, scratch = rng.permutation(num_features).astype(np.int32), np.full(num_features, -1)
    indices, values = np.empty(total, np.int32), np.empty(total, np.float32)
    given = *labels, prototypes, pick, slot, common, noise, idf, names
    draw_features(*given, scratch, indptr, indices, values)
    assert (scratch == -1).all(), "the scratch is handed back clean"
    for own, begin, end in zip(rows_of(labels), indptr[:-1], indptr[1:], strict=True):
        counts = {}
        for k in range(begin, end):
            rank = int(common[k])
            if pick[k] >= noise:
                which = min(int((pick[k] - noise) / (1 - noise) * len(own)), len(own) - 1)
                wanted = int(prototypes[own[which], slot[k]])
                counts[wanted] = counts.get(wanted, 0) + 1
                if counts[wanted] == 1:
                    continue
            while rank in counts:
                rank = (rank + 1) % num_features
            counts[rank] = 1
        ranks = list(counts)
        assert indices[begin:end].tolist() == names[ranks].tolist()
        weights = (1 + np.log(list(counts.values()))) * idf[ranks]
        np.testing.assert_allclose(values[begin:end], weights / np.linalg.norm(weights), rtol=1e-5)


def as_bytes(text):
    """With the line feed that ends each line of a file."""
    return np.frombuffer(f"{text}\n".encode(), np.uint8)


@pytest.mark.parametrize(
    ("text", "value", "end"),
    [
        *(("0", 0, 1), ("7", 7, 1), ("0012", 12, 4), ("-0", 0, 2), ("-3", -1, 2), ("", -2, 0)),
        *(("2147483648", 2**31, 10), ("9" * 12, 10**12 - 1, 12), ("-", -2, 1), ("x", -2, 0)),
        *(("12x", 12, 2), ("-5,6", -1, 2), ("+1", -2, 0)),
    ],
)
def test_read_index(text, value, end):
    """-1 is a negative number, -2 no number."""
    assert kernels.read_index(as_bytes(text), 0) == (value, end)
