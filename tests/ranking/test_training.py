"""Which labels a network takes for likely, and classifiers trained against them."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from helpers import job
from helpers.matrices import to_dense
from helpers.samplers import lsh_sampler
from slide.ranking.training import fit_ranker, likely_labels

from slide import FullSampler, LinearRanker, SimHash, SlideNetwork
from slide.data import Split
from slide.sparse import CSR, Pattern

pytestmark = pytest.mark.usefixtures("one_thread")
ROWS = 300  # More than a batch.


@pytest.fixture
def split(tmp_path):
    return job.make_data(tmp_path, train_samples=ROWS).train


@pytest.fixture
def full_precision(monkeypatch):
    monkeypatch.setattr("slide.ranking.training.has_bfloat16", lambda: False)


def make_network(outputs=80, bias=True, sampler=FullSampler, hidden=8):
    network = SlideNetwork(60, [hidden], outputs, sampler, dropout=0.5)
    torch.nn.init.normal_(network.output.bias)
    if not bias:
        network.output.bias = None
    return network.train()


def naive_scores(network, split):
    """All scores by plain matrix products, with nothing dropped."""
    features = to_dense(split.features, split.num_features)
    hidden = torch.relu(features @ network.first.weight + network.first.bias)
    scores = hidden @ network.output.weight.T
    if network.output.bias is not None:
        scores += network.output.bias
    return scores.detach().numpy()


def rows_of(pattern):
    return [pattern.indices[b:e] for b, e in zip(pattern.indptr, pattern.indptr[1:], strict=False)]


@pytest.mark.parametrize("count", [1, 5, 15])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.usefixtures("full_precision")
def test_few_labels_are_the_best_ones(split, count, bias):
    network = make_network(bias=bias)
    found = likely_labels(network, split, count, "exact")
    assert found.num_rows == ROWS
    assert found.indices.dtype == np.int32
    for own, scores in zip(rows_of(found), naive_scores(network, split), strict=True):
        np.testing.assert_array_equal(own, np.sort(np.argsort(-scores)[:count]))


@pytest.mark.usefixtures("full_precision")
def test_all_labels_where_there_are_no_more(split):
    found = likely_labels(make_network(outputs=5), split, 15, "exact")
    assert all(own.tolist() == [0, 1, 2, 3, 4] for own in rows_of(found))


@pytest.mark.usefixtures("full_precision")
def test_many_labels_are_the_best_and_about_as_many(split):
    split, count, sizes = split.slice(0, 20), 80, []
    for _ in range(20):
        network = make_network(outputs=2000)
        found = rows_of(likely_labels(network, split, count, "exact"))
        for own, scores in zip(found, naive_scores(network, split), strict=True):
            # Nothing between them is missing.
            np.testing.assert_array_equal(own, np.sort(np.argsort(-scores)[: len(own)]))
            sizes.append(len(own))
    # The rank of the 8th best of each tenth is about 80, with a deviation of a third of it; that
    # of all rows of a network is much the same.
    assert 0.75 * count < np.mean(sizes) < 1.25 * count
    assert min(sizes) > count / 8
    assert max(sizes) <= 2 * count


def test_rounded_scores_give_nearly_the_best(split, monkeypatch):
    monkeypatch.setattr("slide.ranking.training.has_bfloat16", lambda: True)
    network = make_network()
    found = likely_labels(network, split, 10, "exact")
    shares = []
    for own, scores in zip(rows_of(found), naive_scores(network, split), strict=True):
        assert len(own) >= 10, "equal scores only add to them"
        shares.append(np.isin(np.argsort(-scores)[:10], own).mean())
    assert np.mean(shares) > 0.95
    assert network.output.weight.dtype == torch.float32


@pytest.mark.parametrize("among", [None, np.arange(0, 80, 2)])
@pytest.mark.usefixtures("full_precision")
def test_main_axes_give_nearly_the_best(split, monkeypatch, among):
    monkeypatch.setattr("slide.ranking.training._BLOCK", 7)
    network, places = make_network(hidden=16), np.arange(80) if among is None else among
    with torch.no_grad():  # Rows that lie near a space of four dimensions.
        network.output.weight.mul_(torch.tensor([1.0] * 4 + [0.01] * 12))
        network.output.bias *= 0.1
    shares = {}
    for axes in (16, 4, 2):
        monkeypatch.setattr("slide.ranking.training._AXES", axes)
        found = rows_of(likely_labels(network, split, 10, "exact", among))
        pairs = zip(found, naive_scores(network, split)[:, places], strict=True)
        best = [np.isin(places[np.argsort(-s)[:10]], own).mean() for own, s in pairs]
        shares[axes] = np.mean(best)
    assert shares[16] == 1
    assert shares[4] > 0.9
    assert shares[2] < shares[4] - 0.05


def with_label(labels, label, row):
    """The rows with one label taken out of all and given to one."""
    lists = [[i for i in own if i != label] for own in rows_of(labels)]
    lists[row].append(label)
    return Pattern.from_lists(lists)


def tables(**options):
    family = partial(SimHash, hashes_per_table=4, num_tables=3)
    return partial(lsh_sampler, active=32, family=family, **options)


@pytest.mark.parametrize("count", [3, 1000])
def test_by_lsh_the_best_in_the_buckets(split, count):
    network = make_network(sampler=tables())
    found = likely_labels(network, split, count, "lsh")
    with torch.no_grad():
        candidates = network.eval().output.sampler.candidates(network.encode(split.features))
    every = naive_scores(network, split)
    sizes = []
    for own, near, scores in zip(rows_of(found), rows_of(candidates), every, strict=True):
        near = np.unique(near)
        best = near[np.argsort(-scores[near], kind="stable")][:count]
        assert sorted(own) == sorted(best)
        sizes.append(len(near))
    assert 3 < np.mean(sizes) < 60


@pytest.mark.parametrize("count", [3, 1000])
@pytest.mark.parametrize("search", ["exact", "lsh"])
@pytest.mark.usefixtures("full_precision")
def test_among_some_labels(split, search, count):
    network, among = make_network(sampler=tables()), np.arange(0, 80, 3)
    found = likely_labels(network, split, count, search, among)
    every = likely_labels(network, split, 80, search)
    pairs = zip(rows_of(found), rows_of(every), naive_scores(network, split), strict=True)
    for own, all_found, scores in pairs:
        near = np.intersect1d(all_found, among)
        best = near[np.argsort(-scores[near], kind="stable")][:count]
        assert sorted(own) == sorted(best)


@pytest.mark.usefixtures("full_precision")
def test_of_equal_labels_not_more_than_twice_as_many(split):
    network = make_network()
    with torch.no_grad():
        network.output.weight[:60] = network.output.bias[:60] = 0
        network.output.weight[60:] = torch.randn(20, 8)
        network.output.bias[60:] = -100
    found = likely_labels(network, split, 15, "exact")
    assert (np.diff(found.indptr) == 15).all()
    assert all(len(np.unique(own)) == 15 and own.max() < 60 for own in rows_of(found))
    assert all((np.diff(own) > 0).all() for own in rows_of(found))


@pytest.mark.parametrize("training", [True, False])
def test_the_network_keeps_its_mode(split, training, monkeypatch):
    network = make_network().train(training)
    likely_labels(network, split, 5, "exact")
    assert [m.training for m in network.modules()] == [training] * len(list(network.modules()))
    monkeypatch.setattr(network, "encode", None)
    with pytest.raises(TypeError):
        likely_labels(network, split, 5, "exact")
    assert network.training == network.output.training == training


@pytest.mark.parametrize("search", ["exact", "lsh"])
def test_rows_without_features_or_labels(search):
    features = CSR(np.array([0, 0, 1, 1]), np.array([7], np.int32), np.ones(1, np.float32))
    split = Split(features, Pattern.from_lists([[], [3], [1]]), 60, 80)
    network = make_network(sampler=tables())
    found = likely_labels(network, split, 5, search)
    assert found.num_rows == 3
    fit_ranker(ranker := LinearRanker(depth=5), network, split, search)
    assert ranker.scores(features, np.full((3, 1), 3))[:, 0].argmax() == 1
    none = likely_labels(network, split.slice(0, 0), 5, search)
    assert (none.num_rows, len(none.indices)) == (0, 0)


@pytest.mark.parametrize("search", ["exact", "lsh"])
def test_a_ranker_is_trained_against_the_likely_labels(split, search):
    network = make_network(sampler=tables())
    # The last label occurs once.
    split = replace(split, labels=with_label(split.labels, 79, row=3))
    fit_ranker(ranker := LinearRanker(depth=7), network, split, search)
    counts = np.bincount(split.labels.indices, minlength=80)
    several = np.flatnonzero(counts > 1)
    assert counts[79] == 1
    candidates = likely_labels(network, split, 7, search, several)
    assert np.isin(candidates.indices, several).all()
    assert len(candidates.indices) > ROWS
    expected = LinearRanker().fit(split.features, split.labels, candidates, 60, 80)
    for found, own in zip(ranker.weights, expected.weights, strict=True):
        np.testing.assert_array_equal(found, own)
    assert len(ranker.weights.values)


@pytest.mark.compiled_only
def test_a_ranker_helps(tmp_path):
    sizes = {"train_samples": 2000, "test_samples": 300, "num_features": 300, "nonzeros": 20}
    data = job.make_data(tmp_path, **sizes)
    trainer = job.make_trainer(
        *(tmp_path, data, job.ActiveLoss("squared_hinge")), ranker=LinearRanker(depth=40)
    )
    summary = trainer.fit()
    assert summary["p_at_1"] > summary["network_p_at_1"] + 0.02
