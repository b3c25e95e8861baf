"""Files without a header, as scikit-learn reads and writes them."""

from itertools import pairwise

import numpy as np
import pytest
from helpers.naive_rows import read
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from slide.data.row_files import VARIANTS


def as_rows(features, labels):
    """The rows of scikit-learn as lists of labels, and of pairs of column and value."""
    bounds = features.indptr
    pairs = [
        list(
            zip(features.indices[a:b].tolist(), features.data[a:b].astype(np.float32), strict=True)
        )
        for a, b in pairwise(bounds)
    ]
    return [([int(x) for x in own], part) for own, part in zip(labels, pairs, strict=True)]


@pytest.mark.parametrize("seed", range(8))
def test_written_by_hand(tmp_path, seed):
    """Values in many forms, labels, comments and empty ends of lines."""
    rng, lines = np.random.default_rng(seed), []
    forms = ("{:g}", "{:.3f}", "{:e}", "{:.9g}", "{:+.2f}")
    for _ in range(40):
        columns = np.sort(rng.choice(np.arange(1, 60), rng.integers(1, 8), replace=False))
        labels = ",".join(str(x) for x in np.sort(rng.choice(30, rng.integers(1, 4), False)))
        values = [
            forms[rng.integers(len(forms))].format(x)
            for x in rng.standard_normal(len(columns)) * 10.0 ** rng.integers(-9, 9)
        ]
        row = " ".join(f"{c}:{v}" for c, v in zip(columns, values, strict=True))
        lines.append(f"{labels} {row}{rng.choice(['', ' ', ' # a note', '  '])}")
    path = tmp_path / "rows.txt"
    path.write_text("\n".join(lines) + "\n")
    expected = as_rows(*load_svmlight_file(str(path), multilabel=True, zero_based=False))
    found, skipped = read(path, VARIANTS["svmlight"])
    assert skipped == 0
    assert [own for own, _ in found] == [own for own, _ in expected]
    for (_, ours), (_, theirs) in zip(found, expected, strict=True):
        assert [c for c, _ in ours] == [c for c, _ in theirs]
        np.testing.assert_allclose([v for _, v in ours], [v for _, v in theirs], rtol=1e-6)


@pytest.mark.parametrize("multilabel", [False, True])
def test_written_by_scikit_learn(tmp_path, multilabel):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((30, 20)) * (rng.random((30, 20)) < 0.3)
    y = rng.integers(0, 2, (30, 9)) if multilabel else rng.integers(0, 9, 30)
    path = tmp_path / "rows.txt"
    dump_svmlight_file(x, y, str(path), zero_based=False, multilabel=multilabel)
    found, _ = read(path, VARIANTS["svmlight"])
    wanted = [np.flatnonzero(row).tolist() if multilabel else [int(row)] for row in y]
    assert [own for own, _ in found] == wanted
    for (_, ours), row in zip(found, x, strict=True):
        dense = np.zeros(20, np.float32)
        dense[[c for c, _ in ours]] = [v for _, v in ours]
        np.testing.assert_allclose(dense, row, rtol=1e-6)
