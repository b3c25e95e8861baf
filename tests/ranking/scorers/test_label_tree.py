"""The tree of labels, against plain clusters, rows of each node, and sums along paths."""

import numpy as np
import pytest
from helpers.matrices import make_csr, make_pattern, to_dense

from slide.ops.label_clusters import halve_nodes
from slide.ranking import base_scorer as base
from slide.ranking.scorers.label_tree import LabelTree
from slide.ranking.scorers.linear import LinearClassifiers
from slide.sparse import CSR, Pattern

FEATURES, LABELS, ROWS = 20, 23, 60


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    labels = make_pattern(rng, [2] * ROWS, LABELS - 2)  # The last two have no row.
    return make_csr(rng, [5] * ROWS, FEATURES), labels


def learnt(rows):
    return LabelTree(cluster=3, beam=64).fit(rows[0], rows[1], FEATURES, LABELS)


@pytest.fixture
def model(rows):
    return learnt(rows)


def path(model, label):
    """The classifiers of the nodes above a label."""
    leaf, height = int(model.leaf[label]), model.height
    return [2**level - 2 + (leaf >> (height - level)) for level in range(1, height + 1)]


def naive_scores(model, features):
    """Log-probabilities of all labels, and of their clusters."""
    dense = to_dense(features, FEATURES).numpy()

    def logs(classifiers):
        scores = dense @ to_dense(classifiers.weights, FEATURES).numpy().T - 1
        return -(np.maximum(1 - scores, 0) ** 2)

    nodes, labels = logs(model.nodes), logs(model.labels)
    clusters = np.full((len(dense), LABELS), -4.0 * model.height)
    for label in np.flatnonzero(model.leaf >= 0):
        clusters[:, label] = nodes[:, path(model, label)].sum(1)
    return labels + clusters, clusters


def test_clusters_are_balanced_and_hold_each_label_with_rows(rows, model):
    assert model.height == 3
    has_rows = np.bincount(rows[1].indices, minlength=LABELS) > 0
    np.testing.assert_array_equal(model.leaf >= 0, has_rows)
    counts = np.bincount(model.leaf[has_rows], minlength=8)
    assert counts.max() <= 3
    assert counts.max() - counts.min() <= 1


def test_labels_with_the_same_features_are_in_one_cluster():
    groups = np.random.default_rng(0).permutation(np.arange(32) % 4)
    columns = np.column_stack([groups, 4 + groups // 2]).astype(np.int32)  # Two pairs of groups.
    features = CSR(np.arange(0, 65, 2), columns.ravel(), np.ones(64, np.float32))
    labels = Pattern(np.arange(33), np.arange(32, dtype=np.int32))
    model = LabelTree(cluster=8).fit(features, labels, 6, 32)
    for group in range(4):
        assert len(set(model.leaf[groups == group])) == 1


def test_classifiers_learn_from_the_rows_of_the_parent(rows, model):
    features, labels = rows
    weights, alone = model.nodes.weights, LinearClassifiers(2.0, max_iter=5)
    for level in range(1, model.height + 1):
        for place in range(2**level):
            node = 2**level - 2 + place
            lists = []
            for b in range(ROWS):
                own = model.leaf[labels.indices[labels.indptr[b] : labels.indptr[b + 1]]]
                own = own >> (model.height - level)
                lists.append((place in own, place // 2 in own // 2))
            positives = Pattern.from_lists([[0] if here else [] for here, _ in lists])
            negatives = Pattern.from_lists([[0] if above else [] for _, above in lists])
            alone.fit(features, positives, negatives, FEATURES, 1)
            assert alone.weights is not None
            part = slice(weights.indptr[node], weights.indptr[node + 1])
            np.testing.assert_array_equal(weights.indices[part], alone.weights.indices)
            np.testing.assert_allclose(weights.values[part], alone.weights.values)


def test_scores_are_sums_along_the_path(rows, model):
    ids = np.tile(np.arange(-1, LABELS), (ROWS, 1))
    found, expected = model.scores(rows[0], ids), naive_scores(model, rows[0])
    for own, sums in zip(found, expected, strict=True):
        np.testing.assert_allclose(own[:, 1:], sums, rtol=1e-4, atol=1e-4)
    few = model.scores(rows[0], ids[:, 4:5])  # More nodes than labels.
    for own, sums in zip(few, expected, strict=True):
        np.testing.assert_allclose(own[:, 0], sums[:, 3], rtol=1e-4, atol=1e-4)
    assert (found[0][:, -2:] == model.nothing).all()


def test_a_wide_beam_finds_the_best_labels(rows, model):
    scores = np.where(model.leaf >= 0, naive_scores(model, rows[0])[0], -np.inf)
    best = model.best(rows[0], 5)
    np.testing.assert_allclose(
        np.take_along_axis(scores, best, 1), -np.sort(-scores, 1)[:, :5], rtol=1e-4, atol=1e-4
    )
    without = model.best(rows[0], 5, Pattern.from_lists(best[:, :2].tolist()))
    np.testing.assert_array_equal(without[:, :3], best[:, 2:])
    assert (model.best(rows[0], LABELS)[:, -1] == -1).all()


def test_it_proposes_no_more_than_all_labels(rows):
    model = LabelTree(proposed=10**9).fit(rows[0], rows[1], FEATURES, LABELS)
    queries = base.Queries(rows[0], None, None, "exact", 1, np.ones(LABELS))  # type: ignore
    assert model.propose(queries).ids.shape == (ROWS, LABELS)


def test_halves_of_nodes_lose_no_row(rows):
    members = np.arange(ROWS)
    halve_nodes(
        rows[0], members, np.array([0, 31, 32, 32, ROWS]), 8, np.zeros((2, 2, FEATURES), "f4")
    )
    assert sorted(members[:31]) == list(range(31))
    assert sorted(members) == list(range(ROWS))


def test_there_may_be_no_rows():
    nothing = CSR(np.zeros(1, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
    model = LabelTree().fit(nothing, Pattern.from_lists([]), 3, 4)
    row = CSR(np.array([0, 1]), np.array([2], np.int32), np.ones(1, np.float32))
    assert (model.best(row, 2) == -1).all()
    assert (model.scores(row, np.arange(4)[None])[0] == model.nothing).all()
