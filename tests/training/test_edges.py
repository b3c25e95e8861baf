"""Runs on data of one row, one feature or one label, and with labels that training never sees."""

import numpy as np
import pytest
import torch
from helpers import job

from slide import FullSampler, SlideNetwork
from slide.data import SparseDataset, Split
from slide.nn import ActiveLoss
from slide.ranking import EnsembleRanker
from slide.sampling import ActiveSampler
from slide.sparse import CSR, Pattern

pytestmark = pytest.mark.usefixtures("one_thread")


def make_split(rows, labels, features, outputs):
    """Rows of ones at some features."""
    pattern = Pattern.from_lists(rows)
    values = np.ones(len(pattern.indices), np.float32)
    return Split(CSR(*pattern, values), Pattern.from_lists(labels), features, outputs)


def make_data(train, test, features, outputs):
    splits = [make_split(*part, features, outputs) for part in (train, test)]
    return SparseDataset("edges", *splits, features, outputs)


def fit(folder, data, ranker=None, sampler=FullSampler, hidden=4, **options):
    network = SlideNetwork(data.num_features, [hidden], data.num_labels, sampler)
    options = {"epochs": 2, "batch_size": 4, **options}
    trainer = job.make_trainer(folder, data, ActiveLoss("bce"), network=network, **options)
    trainer.ranker = ranker
    summary = trainer.fit()
    assert all(torch.isfinite(each).all() for each in network.parameters())
    return trainer, summary


def test_one_row_one_feature_one_label(tmp_path):
    data = make_data(([[0]], [[0]]), ([[0]], [[0]]), 1, 1)
    trainer, summary = fit(tmp_path, data)
    assert trainer.step == 2
    # Of the places after the first, the metric knows that there is nothing to find.
    assert summary["p_at_1"] == 1
    assert trainer.answers.ids.tolist() == [[0, -1, -1, -1, -1]]


@pytest.mark.parametrize("mode", ["shared", "per_sample"])
def test_the_last_batch_is_short_and_all_rows_are_learnt_from(tmp_path, mode):
    rows = [[i] for i in range(9)]
    data = make_data((rows, rows), (rows, rows), 9, 9)

    def sampler(inputs, outputs):
        return ActiveSampler(inputs, outputs, active=4, mode=mode)

    torch.manual_seed(0)
    start = SlideNetwork(9, [32], 9, sampler).first.weight.detach().clone()
    torch.manual_seed(0)
    trainer, _ = fit(tmp_path, data, sampler=sampler, hidden=32)
    assert trainer.step == 6
    assert trainer.counters.samples == 18
    # A feature that one row has moves if that row was in a batch.
    moved = (trainer.network.first.weight != start).any(1)
    assert moved.tolist() == [True] * 9


def test_rows_without_labels_or_features(tmp_path):
    data = make_data(([[], [1], [0], []], [[1], [], [0], []]), ([[], [1]], [[0], []]), 2, 2)
    _, summary = fit(tmp_path, data)
    assert 0 <= summary["p_at_1"] <= 0.5


@pytest.mark.parametrize("ranked", [False, True])
def test_labels_that_training_never_sees(tmp_path, ranked):
    """They can be answers, and never right ones of a re-ranker; scores stay finite."""
    rng = np.random.default_rng(0)
    rows = [rng.choice(20, 4, replace=False).tolist() for _ in range(60)]
    labels = [[row[0] % 5] for row in rows]
    test = rows[:10], [[5 + i % 3] for i in range(10)]
    data = make_data((rows, labels), test, 20, 8)
    ranker = EnsembleRanker(depth=8, voted=5, associated=5, negatives=4) if ranked else None
    trainer, summary = fit(tmp_path, data, ranker)
    assert np.isfinite([v for k, v in summary.items() if "_at_" in k]).all()
    assert np.isfinite(trainer.inverse).all()
    assert np.isfinite(trainer.answers.scores[trainer.answers.ids >= 0]).all()
