"""Precision over a split against dense scores; search in tables."""

from functools import partial

import numpy as np
import pytest
import torch
from helpers import job
from helpers.matrices import to_dense
from helpers.samplers import lsh_sampler, published_sampler, uniform_sampler

from slide import FullSampler, SimHash
from slide.data import Split, holdout, transform
from slide.ranking import EnsembleRanker
from slide.sparse import CSR, Pattern
from slide.training.evaluation import (
    check_search,
    choose_rows,
    evaluate,
    inverse_propensities,
    majority_precision,
    predict_split,
)

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def data(tmp_path):
    return job.make_data(tmp_path, test_samples=300)


def tables(hashes_per_table=4, num_tables=3, **options):
    shape = {"hashes_per_table": hashes_per_table, "num_tables": num_tables}
    return partial(published_sampler, active=32, family=SimHash, fill=0, **shape, **options)


def dense_scores(network, split):
    """All scores by plain matrix products."""
    first, output = network.first, network.output
    features = to_dense(split.features, split.num_features)
    hidden = torch.relu(features @ first.weight + first.bias)
    return (hidden @ output.weight.T + output.bias).detach()


def label_sets(split):
    bounds = split.labels.indptr
    return [
        set(split.labels.indices[bounds[i] : bounds[i + 1]].tolist()) for i in range(len(split))
    ]


@pytest.mark.parametrize("step", [{"min_label_count": 2}, {"hashed_features": 20}])
def test_items_that_have_two_numbers_are_refused(data, step):
    changed, same = transform(data, **step), transform(data, l2_norm=True)
    with pytest.raises(ValueError, match="kind=items needs items with one number"):
        choose_rows(changed, 0.1, 0, "items")
    assert choose_rows(changed, 0.1, 0)[0].kind == "auto"
    assert choose_rows(same, 0.1, 0, "items")[0].kind == "items"


@pytest.mark.parametrize("sampler", [FullSampler, tables()])
def test_precision_equals_that_of_dense_scores(data, sampler):
    network = job.make_network(data, sampler)
    torch.nn.init.normal_(network.output.bias)
    network.train()
    inverse = inverse_propensities(data.train.labels, data.num_labels)
    found = evaluate(network, data.test, inverse)
    best = dense_scores(network, data.test).topk(5, dim=1).indices.tolist()
    for k in (1, 3, 5):
        hits = [
            sum(label in labels for label in row[:k])
            for row, labels in zip(best, label_sets(data.test), strict=True)
        ]
        assert found[f"p_at_{k}"] == pytest.approx(np.mean(hits) / k, abs=1e-12)
    assert found["p_at_1"] == found["ndcg_at_1"]
    assert set(found) == {f"{name}_at_{k}" for name in ("p", "ndcg", "psp") for k in (1, 3, 5)}
    assert network.training, "the mode is put back"


def test_predictions_stand_at_their_rows_over_several_batches(data, monkeypatch):
    monkeypatch.setattr("slide.training.evaluation._BATCH", 64)
    network = job.make_network(data, FullSampler)
    expected = dense_scores(network, data.test).topk(5, dim=1).indices.numpy()
    np.testing.assert_array_equal(predict_split(network, data.test, "exact").ids, expected)


def test_dropout_is_off(data):
    network = job.SlideNetwork(data.num_features, [8], data.num_labels, FullSampler, dropout=0.9)
    network.train()
    expected = dense_scores(network, data.test).topk(5, dim=1).indices.numpy()
    np.testing.assert_array_equal(predict_split(network, data.test, "exact").ids, expected)


def test_fewer_outputs_than_places():
    rows = CSR(np.arange(4), np.zeros(3, np.int32), np.ones(3, np.float32))
    labels = Pattern(np.array([0, 1, 2, 2]), np.array([0, 1], np.int32))
    network = job.SlideNetwork(2, [4], 2, FullSampler)
    with torch.no_grad():
        network.output.weight.zero_()
        network.output.bias.copy_(torch.tensor([1.0, 0.0]))
    split = Split(rows, labels, 2, 2)
    assert predict_split(network, split, "exact").ids.tolist() == [[0, 1, -1, -1, -1]] * 3
    found = evaluate(network, split, np.ones(2))
    # A row without labels counts as a miss.
    assert found["p_at_1"] == pytest.approx(1 / 3)
    assert found["p_at_5"] == pytest.approx(2 / 3 / 5)


def test_tables_find_ids_in_buckets_only(data):
    network = job.make_network(data, tables(hashes_per_table=5, num_tables=2))
    answers = predict_split(network, data.test, "sampler")
    found = answers.ids
    assert not answers.scores[found < 0].any()
    hidden = network.encode(data.test.features)
    candidates = network.output.sampler.candidates(hidden)
    scores = dense_scores(network, data.test)
    sizes = []
    for b, row in enumerate(found):
        own = np.unique(candidates.indices[candidates.indptr[b] : candidates.indptr[b + 1]])
        best = own[np.argsort(-scores[b].numpy()[own], kind="stable")][:5]
        np.testing.assert_array_equal(row, [*best, *[-1] * (5 - len(best))])
        sizes.append(len(own))
    assert np.mean(sizes) < 40, "half of the outputs are in no bucket of a row"


def test_tables_become_exact_as_buckets_hold_all(data):
    agreement = []
    for hashes, count in ((6, 2), (3, 4), (1, 16)):
        torch.manual_seed(0)  # The same network each time.
        network = job.make_network(data, tables(hashes, count, bucket_capacity=1000))
        exact = predict_split(network, data.test, "exact").ids
        agreement.append((predict_split(network, data.test, "sampler").ids == exact).mean())
    assert agreement[0] < agreement[1] < agreement[2]
    assert agreement[2] > 0.99


def test_lsh_with_all_outputs_active_is_exact(data):
    network = job.make_network(data, partial(lsh_sampler, active=1000))
    np.testing.assert_array_equal(
        predict_split(network, data.test, "sampler").ids,
        predict_split(network, data.test, "exact").ids,
    )


@pytest.mark.parametrize("search", ["exact", "index", "sampler"])
def test_a_ranker_has_the_last_word(data, search):
    network, (train, held) = job.make_network(data, tables()), holdout(data.train, 0.3, 0)
    ranker = EnsembleRanker(depth=8).fit(network, train, held, search=search)
    found, alone = (predict_split(network, data.test, search, each) for each in (ranker, None))
    expected = ranker.rank(network, data.test.features, 5, search)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.network_ids, alone.ids)
    inverse = inverse_propensities(data.train.labels, data.num_labels)
    scores = evaluate(network, data.test, inverse, search, ranker)
    for name, ids in (("p_at_1", found.ids), ("network_p_at_1", alone.ids)):
        hits = [row[0] in labels for row, labels in zip(ids, label_sets(data.test), strict=True)]
        assert scores[name] == pytest.approx(np.mean(hits), abs=1e-12)
    assert 0 < scores["calibration_error"] < 1
    ranker.objective = "psp"
    assert "calibration_error" not in evaluate(network, data.test, inverse, search, ranker)


def test_majority_precision(data):
    counts = np.zeros(data.num_labels, int)
    for labels in label_sets(data.train):
        for label in labels:
            counts[label] += 1
    hits = [counts.argmax() in labels for labels in label_sets(data.test)]
    assert majority_precision(data.train, data.test) == pytest.approx(np.mean(hits))
    assert 0 < np.mean(hits) < 1


@pytest.mark.parametrize("sampler", [FullSampler, partial(uniform_sampler, active=32)])
def test_search_by_index_needs_an_index(data, sampler):
    network = job.make_network(data, sampler)
    with pytest.raises(
        ValueError, match=r"evaluation=sampler needs a sampler with an index; this .*"
    ):
        check_search(network, "sampler")
    for search in ("exact", "index"):
        check_search(network, search)
    with pytest.raises(
        ValueError, match="evaluation must be one of exact, index, sampler, not 'fast'"
    ):
        check_search(network, "fast")


def test_no_rows_are_an_error(data):
    with pytest.raises(ValueError, match="no rows to evaluate"):
        evaluate(job.make_network(data), data.test.slice(0, 0), np.ones(data.num_labels))
