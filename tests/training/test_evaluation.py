"""Precision on a split against dense scores, and metrics against values by hand."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from helpers import job
from helpers.matrices import to_dense
from helpers.samplers import published_sampler, uniform_sampler

from slide import FullSampler, SimHash
from slide.data import Split, holdout, transform
from slide.ranking import EnsembleRanker, Ranked
from slide.sparse import CSR, Pattern, hits
from slide.training.evaluation import (
    calibration_error,
    chance_calibration_error,
    check_search,
    choose_samples,
    evaluate,
    inverse_propensities,
    learnt_nothing,
    majority_precision,
    ndcg_at_k,
    precision_at_k,
    predict_split,
    psp_at_k,
    recall_at_k,
    reciprocal_ranks,
    scores_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")

# Four samples with 2, 0, 1 and 4 labels.
LABELS = Pattern(np.array([0, 2, 2, 3, 7]), np.array([3, 1, 5, 0, 2, 4, 6], np.int32))
PREDICTED = np.array([[1, 2, 3], [0, 1, 2], [4, 5, -1], [6, 4, 0]])
INVERSE = np.arange(1.0, 8.0)
METRICS = [precision_at_k, ndcg_at_k, partial(psp_at_k, inverse=INVERSE)]


def gain(*ranks):
    return sum(1 / math.log2(r + 1) for r in ranks)


NDCG = [gain(1, 3) / gain(1, 2), 0, gain(2) / gain(1), 1]


@pytest.mark.parametrize(
    ("metric", "k", "expected"),
    [
        (precision_at_k, 1, 2 / 4),
        (precision_at_k, 3, (2 + 0 + 1 + 3) / 12),
        (recall_at_k, 1, (1 / 2 + 0 + 0 + 1 / 4) / 4),
        (recall_at_k, 3, (1 + 0 + 1 + 3 / 4) / 4),
        (ndcg_at_k, 1, (1 + 0 + 0 + 1) / 4),
        (ndcg_at_k, 3, np.mean(NDCG)),
        (METRICS[2], 1, (2 + 7) / (4 + 6 + 7)),
        (METRICS[2], 3, ((2 + 4) + 0 + 6 + (7 + 5 + 1)) / ((4 + 2) + 0 + 6 + (7 + 5 + 3))),
    ],
)
def test_metrics_by_hand(metric, k, expected):
    assert metric(PREDICTED, LABELS, k) == pytest.approx(expected)


def test_ranks_of_labels_leave_other_labels_of_the_sample_out():
    """Each label alone, with the others taken out of the answers."""
    expected = []
    for answers, labels in zip(
        PREDICTED.tolist(), np.split(LABELS.indices, [2, 2, 3]), strict=True
    ):
        for label in labels.tolist():
            left = [n for n in answers if n == label or n not in labels]
            expected.append(1 / (left.index(label) + 1) if label in left else 0)
    found = reciprocal_ranks(PREDICTED, LABELS)
    assert sorted(found) == pytest.approx(sorted(expected))
    assert {0, 0.5, 1} <= set(expected)


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("other", set()),
        ("graph", {"mrr", "hits_at_1", "hits_at_3", "hits_at_10"}),
        ("items", {"recall_at_20", "ndcg_at_20"}),
    ],
)
def test_graphs_and_recommenders_have_scores_of_their_own(data, kind, names):
    train, held = holdout(replace(data.train, kind=kind), 0.3, 0)
    network = job.make_network(data, FullSampler)
    ranker = EnsembleRanker().fit(network, train, held)
    found = predict_split(network, data.test, "exact", ranker)
    assert found.ids.shape[1] == (20 if names else 5)
    scores = scores_of(found, data.test, np.ones(data.num_labels), ranker)
    plain = {f"{each}_at_{k}" for each in ("p", "ndcg", "psp") for k in (1, 3, 5)}
    own = {n for n in scores if not n.startswith(("network_", "calibration", "chance_"))}
    assert own == plain | names
    assert {f"network_{name}" for name in names} < set(scores)
    if kind == "graph":
        assert scores["mrr"] == pytest.approx(reciprocal_ranks(found.ids, data.test.labels).mean())
        assert scores["hits_at_1"] < scores["mrr"] < scores["hits_at_10"] < 1


def test_inverse_propensities():
    train = Pattern(np.array([0, 2, 3]), np.array([1, 0, 1], np.int32))
    c = (math.log(2) - 1) * 2.5**0.55
    expected = [1 + c * (n + 1.5) ** -0.55 for n in (1, 2, 0)]
    np.testing.assert_allclose(inverse_propensities(train, 3), expected)
    other = inverse_propensities(train, 3, a=0.6, b=2.6)
    np.testing.assert_allclose(other[0], 1 + (math.log(2) - 1) * 3.6**0.6 * 3.6**-0.6)


@pytest.mark.parametrize(("metric", "k"), [*zip(METRICS, (0, 4, 1.5), strict=True)])
def test_there_are_as_many_predictions_as_count(metric, k):
    with pytest.raises(ValueError, match=rf"^k must be a whole number in \[1, 3\], .* not {k}$"):
        metric(PREDICTED, LABELS, k)
    with pytest.raises(ValueError, match="there are no rows"):
        metric(PREDICTED[:0], LABELS.slice(0, 0), 1)


def test_rows_must_match():
    with pytest.raises(ValueError, match="3 predictions do not fit 4 rows"):
        hits(PREDICTED[:3], LABELS)


def test_the_calibration_error_of_the_first_predictions_stands_beside_that_of_five():
    """The first predictions are right in half of the samples, the others never."""
    ids = np.array([[0, 1, 2, 3, 4], [5, 1, 2, 3, 4]])
    found = Ranked(np.array([[0.8, 0.1, 0.1, 0.1, 0.1]] * 2), ids, ids)
    split = Split(CSR(np.zeros(3), np.empty(0), np.empty(0)), Pattern.from_lists([[0], [0]]), 1, 7)
    scores = scores_of(found, split, INVERSE, EnsembleRanker())
    assert scores["calibration_error_at_1"] == pytest.approx(0.3)
    assert scores["calibration_error"] == pytest.approx((0.3 + 4 * 0.1) / 5)
    assert calibration_error(found.scores, ids, split.labels) == scores["calibration_error"]
    ranker = EnsembleRanker(objective="psp")
    assert not any("calibration" in name for name in scores_of(found, split, INVERSE, ranker))


def test_right_probabilities_have_the_calibration_error_of_chance():
    rng, rows = np.random.default_rng(0), 1000
    scores, ids = rng.beta(2, 4, (rows, 1)), np.zeros((rows, 1), int)
    ids[::4] = -1
    errors = []
    for _ in range(100):
        right = rng.random(rows) < scores[:, 0]
        labels = Pattern(np.append(0, np.cumsum(right)), np.zeros(right.sum(), np.int32))
        errors.append(calibration_error(scores, ids, labels))
    chance = chance_calibration_error(scores, ids)
    assert chance == pytest.approx(np.mean(errors), rel=0.1)
    split = Split(CSR(np.zeros(rows + 1), np.empty(0), np.empty(0)), labels, 1, 7)
    found = scores_of(Ranked.of(5, scores, ids), split, INVERSE, EnsembleRanker())
    assert found["chance_calibration_error_at_1"] == chance


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
        choose_samples(changed, 0.1, 0, "items")
    assert choose_samples(changed, 0.1, 0)[0].kind == "auto"
    assert choose_samples(same, 0.1, 0, "items")[0].kind == "items"


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


def test_predictions_over_several_batches_have_no_dropout(data, monkeypatch):
    monkeypatch.setattr("slide.training.evaluation._BATCH", 64)
    shape = data.num_features, [8], data.num_labels
    network = job.SlideNetwork(*shape, FullSampler, dropout=0.9).train()
    expected = dense_scores(network, data.test).topk(5, dim=1).indices.numpy()
    np.testing.assert_array_equal(predict_split(network, data.test, "exact").ids, expected)


def test_fewer_outputs_than_answers():
    rows = CSR(np.arange(4), np.zeros(3, np.int32), np.ones(3, np.float32))
    labels = Pattern(np.array([0, 1, 2, 2]), np.array([0, 1], np.int32))
    network = job.SlideNetwork(2, [4], 2, FullSampler)
    with torch.no_grad():
        network.output.weight.zero_()
        network.output.bias.copy_(torch.tensor([1.0, 0.0]))
    split = Split(rows, labels, 2, 2)
    assert predict_split(network, split, "exact").ids.tolist() == [[0, 1, -1, -1, -1]] * 3
    found = evaluate(network, split, np.ones(2))
    # A sample without labels counts as a miss.
    assert found["p_at_1"] == pytest.approx(1 / 3)
    assert found["p_at_5"] == pytest.approx(2 / 3 / 5)


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


def test_majority_precision(data):
    counts = np.bincount(data.train.labels.indices)
    hits = [counts.argmax() in labels for labels in label_sets(data.test)]
    assert majority_precision(data.train, data.test) == pytest.approx(np.mean(hits))
    assert 0 < np.mean(hits) < 1


@pytest.mark.parametrize(
    ("rows", "first", "others", "expected"),
    [
        (100, 0, 0, True),  # They are the most frequent labels.
        (100, 1, 0, True),  # So few may be chance.
        (100, 8, 0, False),
        (100, 0, 8, False),  # The further answers are better.
        (100, -8, 0, True),
        (9, 0, 0, True),
        (8, 0, 0, False),  # They tell nothing.
    ],
)
def test_answers_no_better_than_the_most_frequent_labels(rows, first, others, expected):
    """``first`` more rows have a right first answer, ``others`` more a right second one."""
    rows += 1
    frequent, ids = np.tile([1, 2, 3], (rows, 1)), np.tile([1, 2, 3], (rows, 1))
    truth = [[1 + (b % 2)] for b in range(rows)]
    for at, more, label in ((0, abs(first), 4), (1, others, 5)):
        for b in range(10, 10 + 2 * more, 2):
            truth[b + (at == 1)] = [label]
            ids[b + (at == 1), at] = label if first >= 0 else 9
    found = learnt_nothing(ids, frequent, Pattern.from_lists(truth))
    assert found == expected


def test_search_by_index_needs_an_index(data):
    network = job.make_network(data, partial(uniform_sampler, active=32))
    with pytest.raises(ValueError, match="evaluation=sampler needs a sampler with an index; this"):
        check_search(network.output.sampler, "sampler")
    for search in ("exact", "index"):
        check_search(network.output.sampler, search)
    with pytest.raises(ValueError, match=r"evaluation must be one of .* sampler, not 'fast'"):
        check_search(network.output.sampler, "fast")


def test_no_samples_are_an_error(data):
    with pytest.raises(ValueError, match="no rows to evaluate"):
        evaluate(job.make_network(data), data.test.slice(0, 0), np.ones(data.num_labels))
