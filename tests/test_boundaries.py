"""Input from users that would lead kernels out of their arrays, and habits that PyTorch allows."""

from functools import partial

import numpy as np
import pytest
import torch
from helpers.layers import D, N
from helpers.samplers import full_sampler, uniform_sampler

from slide import (
    CSR,
    DWTA,
    ActiveLoss,
    ActiveSet,
    Pattern,
    SampledLinear,
    SimHash,
    SparseInputLinear,
    active_linear,
)
from slide.functional import active_linear_loss
from slide.sparse import check_labels


def ints(*values):
    return np.array(values, np.int32)


MALFORMED = [
    (Pattern(np.array([0, 3, 50]), ints(1, 2, 3)), "must rise from 0 to their number, 3"),
    (Pattern(np.array([1, 2, 3]), ints(1, 2, 3)), "must rise from 0"),
    (Pattern(np.array([0, 3, 2]), ints(1, 2)), "must rise from 0"),
    (Pattern(np.array([0, 1, 2]), ints(1, 40)), r"must lie in \[0, 40\)"),
    (Pattern(np.array([0, 1, 2]), ints(1, -1)), r"must lie in \[0, 40\)"),
]


@pytest.mark.parametrize(("pattern", "message"), MALFORMED)
def test_labels(pattern, message):
    with pytest.raises(ValueError, match=message):
        uniform_sampler(8, 40, active=10).select(torch.zeros(2, 8), pattern)


@pytest.mark.parametrize(
    "call", [SparseInputLinear(40, 8), DWTA(40, 1, 2).sparse_codes, SimHash(40, 3, 2).sparse_codes]
)
def test_features(call):
    features = CSR(np.array([0, 1, 2]), ints(1, 40), np.ones(2, np.float32))
    with pytest.raises(ValueError, match=r"must lie in \[0, 40\)"):
        call(features)


def test_active_ids():
    active = ActiveSet(10, ints(1, 12))
    with pytest.raises(ValueError, match=r"active ids must lie in \[0, 10\)"):
        active_linear(torch.zeros(2, 4), torch.zeros(10, 4), None, active)


@pytest.mark.parametrize(
    ("indptr", "error", "message"),
    [
        (np.array([0, 1, 3]), ValueError, "must rise from 0 to their number of ids, 2"),
        (np.array([1, 1, 2]), ValueError, "must rise from 0"),
        (np.array([0, 3, 2]), ValueError, "must rise from 0"),
        (np.array([0, 2]), ValueError, "1 active sets do not fit 2 samples"),
        (ints(0, 1, 2), TypeError, "indptr of active sets must be int64, not int32"),
    ],
)
def test_bounds_of_active_sets(indptr, error, message):
    active = ActiveSet(10, ints(1, 2), indptr, Pattern.from_lists([[0], []]))
    with pytest.raises(error, match=message):
        active_linear(torch.zeros(2, 4), torch.zeros(10, 4), None, active)
    if len(indptr) == 3:  # A loss sees as many samples as there are sets.
        with pytest.raises(error, match=message):
            ActiveLoss("bce")(torch.zeros(2), active)


@pytest.mark.parametrize("indptr", [None, np.array([0, 1, 3])])
@pytest.mark.parametrize(
    ("targets", "log_weights", "error", "message"),
    [
        ([[0], [3]], None, ValueError, r"targets must lie in \[0, 3\), and row 1 has 3"),
        ([[0], [-1]], None, ValueError, r"targets must lie in \[0, 3\)"),
        ([[0], [0], []], None, ValueError, "3 rows of targets do not fit 2 inputs"),
        (Pattern(np.array([0, 1, 3]), ints(0, 1)), None, ValueError, "must rise from 0"),
        (Pattern(np.array([0, 1, 2]), np.zeros(2)), None, TypeError, "int32 indices, not"),
        ([[0], [1]], np.zeros(2), ValueError, r"log_weights \(2,\) do not fit ids \(3,\)"),
        ([[0], [1]], np.array([0, 0.5, 0.5]), ValueError, r"must be 0 at targets, .* not 0.5"),
    ],
)
def test_targets_and_weights_of_active_sets(indptr, targets, log_weights, error, message):
    targets = Pattern.from_lists(targets) if isinstance(targets, list) else targets
    active, loss = ActiveSet(10, ints(1, 2, 3), indptr, targets, log_weights), ActiveLoss("bce")
    with pytest.raises(error, match=message):
        loss(torch.zeros((2, 3) if indptr is None else 3), active)
    if indptr is None:
        with pytest.raises(error, match=message):
            active_linear_loss(torch.zeros(2, 4), torch.zeros(10, 4), None, active, "bce")


def test_targets_and_scores_within_the_samples_own_sets():
    loss, targets = ActiveLoss("bce"), Pattern.from_lists([[1], [1]])
    active = ActiveSet(10, ints(1, 2, 3), np.array([0, 1, 3]), targets)
    with pytest.raises(ValueError, match="a target at position 1 is outside of a set of 1 ids"):
        loss(torch.zeros(3), active)
    for indptr, shape in ((np.array([0, 2, 3]), (2,)), (None, (2, 4)), (None, (2,))):
        active = ActiveSet(10, ints(1, 2, 3), indptr, Pattern.from_lists([[1], []]))
        with pytest.raises(ValueError, match=r"scores \(.*\) do not fit an active set"):
            loss(torch.zeros(shape), active)


@pytest.mark.parametrize("family", [SimHash(64, 3, 2), DWTA(64, 2, 2)])
def test_vectors_too_narrow_to_hash(family):
    with pytest.raises(ValueError, match=r"vectors must be \(n, 64\), not \(5, 60\)"):
        family.codes(torch.zeros(5, 60))


# A label that a sample has twice would count twice in the loss.


@pytest.mark.parametrize("sampler", [full_sampler, partial(uniform_sampler, active=20)])
def test_layers_refuse_repeated_labels(sampler):
    layer, labels = SampledLinear(D, N, sampler(D, N)), Pattern.from_lists([[3], [5, 9, 5]])
    with pytest.raises(ValueError, match=r"labels of a row must be distinct; row 1 has 5 twice"):
        layer.loss(torch.randn(2, D), labels, ActiveLoss("bce"))


def test_labels_are_distinct_as_sets_say():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(300):
        lists = [rng.integers(0, 12, rng.integers(0, 5)).tolist() for _ in range(4)]
        distinct = all(len(set(row)) == len(row) for row in lists)
        try:
            check_labels("labels", Pattern.from_lists(lists), 4, 12)
            found.append(distinct)
        except ValueError:
            found.append(not distinct)
    assert all(found)
