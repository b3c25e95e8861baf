"""Input from users that would lead kernels out of their arrays, and habits that PyTorch allows."""

import time
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers.layers import D, N
from helpers.samplers import full_sampler, lsh_sampler, published_sampler, uniform_sampler

from slide import (
    CSR,
    DWTA,
    ActiveLoss,
    ActiveSet,
    Pattern,
    SampledLinear,
    SimHash,
    SlideNetwork,
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
@pytest.mark.parametrize("mode", ["shared", "per_sample"])
def test_labels(pattern, message, mode):
    sampler = uniform_sampler(8, 40, active=10, mode=mode)
    with pytest.raises(ValueError, match=message):
        sampler.select(torch.zeros(2, 8), pattern)


@pytest.mark.parametrize(("pattern", "message"), MALFORMED)
def test_features(pattern, message):
    features = CSR(*pattern, np.ones(len(pattern.indices), np.float32))
    with pytest.raises(ValueError, match=message):
        SparseInputLinear(40, 8)(features)
    with pytest.raises(ValueError, match=message):
        DWTA(40, 1, 2).sparse_codes(features)
    with pytest.raises(ValueError, match=message):
        SimHash(40, 3, 2).sparse_codes(features)


def test_wrong_dtypes():
    sampler = uniform_sampler(8, 40, active=10)
    with pytest.raises(TypeError, match="int64 indptr and int32 indices"):
        sampler.select(torch.zeros(1, 8), Pattern(np.array([0, 1]), np.array([1])))


def test_active_ids():
    active = ActiveSet(10, ints(1, 12))
    with pytest.raises(ValueError, match=r"active ids must lie in \[0, 10\)"):
        active_linear(torch.zeros(2, 4), torch.zeros(10, 4), None, active)


@pytest.mark.parametrize(
    ("indptr", "error", "message"),
    [
        (np.array([0, 1, 3]), ValueError, "must rise from 0 to their number of ids, 2"),
        (np.array([0, 1, 1]), ValueError, "must rise from 0"),
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


def test_prediction_depends_neither_on_draws_nor_on_the_batch():
    torch.manual_seed(0)

    def sampler(inputs, outputs):
        return lsh_sampler(inputs, outputs, active=8)

    first = partial(published_sampler, hashes_per_table=2, num_tables=4, fill=0, active=8)
    network = SlideNetwork(30, [24, 20], 50, sampler, [first, sampler])
    features = CSR(
        np.arange(0, 13, 3), np.arange(12, dtype=np.int32), np.linspace(1, 2, 12, dtype=np.float32)
    )
    first = CSR(np.array([0, 3]), features.indices[:3], features.values[:3])
    scores, ids = network.predict(features, 5)
    again, _ = network.predict(features, 5)
    alone, alone_ids = network.predict(first, 5)
    assert torch.equal(scores, again)
    assert torch.allclose(scores[:1], alone)
    assert torch.equal(ids[:1], alone_ids)
    assert [layer.sampler.selections for layer in network.layers()] == [0, 0, 0]


def test_the_way_of_choosing_may_change():
    """Scratch is handed back clean, so that one sampler can choose in both modes in turn."""
    sampler = uniform_sampler(6, 30, active=10)
    layer, labels = SampledLinear(6, 30, sampler), Pattern.from_lists([[1, 2], [2, 3]])
    for mode in ("shared", "per_sample", "shared", "per_sample"):
        sampler.mode = mode
        result = layer(torch.randn(2, 6), labels)
        result.values.sum().backward()
        pending = layer.weight.row_gradients.pop()
        first = getattr(pending, "first", None)  # By the reference an id may occur again.
        ids = pending.ids if first is None else pending.ids[first]
        assert sorted(int(i) for i in ids) == sorted(set(result.active.ids.tolist()))


@pytest.mark.parametrize("mode", ["shared", "per_sample"])
@pytest.mark.parametrize("candidate_share", [0.5, 1.0])
def test_stratified_sets_stand_for_all_outputs(mode, candidate_share):
    """Also where labels and looked-up ids could fill the set."""
    sampler = lsh_sampler(
        6, 200, active=6, mode=mode, weighting="stratified", candidate_share=candidate_share
    )
    sampler.update(torch.randn(200, 6), None, torch.randn(2, 6))
    labels = Pattern.from_lists([[1, 2, 3, 4, 5, 6, 7], [8]])
    active = sampler.select(torch.randn(2, 6), labels)
    weights = np.exp(active.log_weights)
    bounds = [0, len(weights)] if active.indptr is None else active.indptr
    for begin, end in pairwise(bounds):
        assert weights[begin:end].sum() == pytest.approx(200, rel=1e-5)


# A label that a sample has twice would count twice in the loss.


KINDS = {
    "full": full_sampler,
    "uniform": lambda d, n: uniform_sampler(d, n, active=20),
    "lsh": lambda d, n: lsh_sampler(d, n, active=20),
    "per sample": lambda d, n: lsh_sampler(d, n, active=20, mode="per_sample"),
}
REPEATED = [[[3], [5, 9, 5]], [[7, 7], []], [[], [1, 2, 2]], [[*range(N), 0], [1]]]


@pytest.mark.parametrize("sampler", KINDS)
@pytest.mark.parametrize("lists", REPEATED)
def test_layers_refuse_repeated_labels(sampler, lists):
    layer = SampledLinear(D, N, KINDS[sampler](D, N))
    labels = Pattern.from_lists(lists)
    with pytest.raises(ValueError, match=r"labels of a row must be distinct; row \d has \d twice"):
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


def test_looking_for_repeated_labels_takes_little_of_a_step():
    rng = np.random.default_rng(0)
    ids = np.stack([rng.choice(100_000, 8, replace=False) for _ in range(512)]).astype(np.int32)
    labels = Pattern(8 * np.arange(513), ids.ravel())
    seconds = []
    for _ in range(50):
        begin = time.perf_counter()
        check_labels("labels", labels, 512, 100_000)
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) < 2e-3
