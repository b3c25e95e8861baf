"""Runs that find out how long to train, on held-out training rows."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from helpers import job

from slide import FullSampler
from slide.data import SparseDataset, Split, kind_of
from slide.ranking import EnsembleRanker
from slide.sparse import CSR, Pattern
from slide.training import plan
from slide.training.evaluation import precision_at_k
from slide.training.validation import HeldRows

pytestmark = pytest.mark.usefixtures("one_thread")
AUTO = ["trainer.epochs=auto", "runtime.deterministic=true", "trainer.log_every=1"]


@pytest.fixture
def two_epochs(monkeypatch):
    """Evaluations after each epoch of 8 steps, the second of which ends the stable phase."""
    monkeypatch.setattr(plan, "FEWEST_STEPS", 8)
    monkeypatch.setattr(plan, "LEAST_GAIN", 100.0)


@pytest.mark.parametrize("stops", [(14,), (20,), (5, 13, 17, 23)])
def test_an_interrupted_run_ends_as_an_uninterrupted_one(tmp_path, monkeypatch, two_epochs, stops):
    for run in "ab":
        (tmp_path / run).mkdir()
    arguments = [*AUTO, "trainer.checkpoint_every=6", "network.input_dropout=0.2"]
    arguments += ["network.dropout=0.3", "schedule=fixed", "schedule.every=32"]
    job.main(*job.tiny(tmp_path / "a", *arguments))
    job.stop_at(monkeypatch, *stops)
    words = job.tiny(tmp_path / "b", *arguments)
    for stop in stops:
        assert f"after step {stop}" in job.failure(*words)
        torch.manual_seed(123)
        words = [f"resume={tmp_path}/b/run"]
    job.main(*words)
    expected, found = (job.checkpoint(tmp_path / f"{run}/run") for run in "ab")
    assert expected["plan"]["steps"] == [8, 16]
    assert (expected["plan"]["decay_from"], expected["plan"]["total"]) == (16, 24)
    assert expected["step"] == 24
    job.assert_same(found, expected)
    rates = [
        [line["train/learning_rate"] for line in job.lines(tmp_path / run / "run", "train/loss")]
        for run in "ab"
    ]
    assert rates[0] == rates[1]
    assert rates[0][-1] < 0.2 * max(rates[0])
    for run in "ab":
        assert job.steps(tmp_path / run / "run", "held/precision") == [8, 16]


def test_by_default_a_tiny_run_is_short(tmp_path, capsys):
    job.main(*job.tiny(tmp_path, "trainer.epochs=auto"))
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["steps"] <= 20 * 8
    said = capsys.readouterr()
    assert "the rate falls until step" in said.err
    assert said.out.startswith("P@1 ")


def test_limits_may_change_when_a_run_is_resumed(tmp_path, monkeypatch, capsys):
    job.stop_at(monkeypatch, 9)
    job.failure(*job.tiny(tmp_path, *AUTO, "trainer.checkpoint_every=1"))
    job.main(f"resume={tmp_path}/run", "trainer.max_epochs=3")
    assert job.checkpoint(tmp_path / "run")["step"] == 24
    rates = [line["train/learning_rate"] for line in job.lines(tmp_path / "run", "train/loss")]
    assert rates[16:] == sorted(rates[16:], reverse=True)
    capsys.readouterr()
    job.main(f"resume={tmp_path}/run", "trainer.max_epochs=9")
    assert job.checkpoint(tmp_path / "run")["step"] == 24, "the rate has fallen"
    said = capsys.readouterr().err
    assert "the rate falls until step 24; higher limits come too late" in said
    assert "the training of this run has ended" in said


@pytest.mark.parametrize(("before", "after"), [("auto", "3"), ("3", "auto")])
def test_a_resumed_run_keeps_its_way_to_end(tmp_path, before, after):
    job.main(*job.tiny(tmp_path, f"trainer.epochs={before}", "trainer.max_steps=2"))
    message = job.failure(f"resume={tmp_path}/run", f"trainer.epochs={after}")
    assert message == (
        f"error: trainer.epochs={after}: a resumed run keeps trainer.epochs={before}; "
        "start a new one instead"
    )


@pytest.mark.parametrize(
    ("options", "ranker", "sizes"),
    [
        ({"epochs": 2}, None, (150, None, 40)),
        ({"epochs": 2}, EnsembleRanker(), (120, 30, 40)),
        ({"epochs": "auto"}, None, (120, 30, 40)),
        ({"epochs": "auto", "holdout": 0.25}, None, (90, 22, 38)),
        ({"epochs": 2, "holdout": 0.25}, None, (112, None, 38)),
    ],
)
def test_rows_are_held_out_if_something_is_chosen(tmp_path, options, ranker, sizes):
    data = job.make_data(tmp_path, **job.WITH_HELD)
    trainer = job.make_trainer(tmp_path, data, ranker=ranker, **options)
    trainer.monitor.close()
    splits = trainer.train_split, trainer.held_split, trainer.eval_split
    assert tuple(split and len(split) for split in splits) == sizes
    assert trainer.total_steps == (None if options["epochs"] == "auto" else 2 * -(-sizes[0] // 16))
    used = [split.features.values for split in splits if split is not None]
    if "holdout" in options:
        total = data.train.features.values.sum(dtype=float)
        assert sum(part.sum(dtype=float) for part in used) == pytest.approx(total)


def test_the_held_rows_reach_the_end(tmp_path, monkeypatch):
    seen = []
    whole = EnsembleRanker.fit

    def fit(self, network, train, held, inverse, search, every):
        seen.append((train, held, every))
        return whole(self, network, train, held, inverse, search, every)

    monkeypatch.setattr(EnsembleRanker, "fit", fit)
    data = job.make_data(tmp_path, **job.WITH_HELD)
    options = {"epochs": "auto", "max_steps": 2, "ranker": EnsembleRanker()}
    trainer = job.make_trainer(tmp_path, data, **options)
    trainer.fit()
    assert seen == [(trainer.train_split, trainer.held_split, data.train)]


def graph_data(rows=60):
    """Rows of two features, all different, each with five labels; held-out pairs repeat them."""
    rng = np.random.default_rng(0)
    pattern = Pattern.from_lists([[row // 10, 20 + row % 10] for row in range(rows)])
    labels = Pattern.from_lists([rng.permutation(12)[:5].tolist() for _ in range(rows)])
    split = Split(CSR(*pattern, np.ones(2 * rows, np.float32)), labels, 30, 12)
    return SparseDataset("graph", split, split, 30, 12)


def test_the_kind_is_that_of_all_rows(tmp_path, monkeypatch):
    """Where two of six copies of rows are held out, the others look like a graph."""
    rows = 1100
    numbers = [*range(rows - 6), *range(rows - 12, rows - 6)]
    pattern = Pattern.from_lists([[row % 30, 30 + row // 30, 67] for row in numbers])
    labels = Pattern.from_lists([[row % 12, 12] for row in numbers])
    split = Split(CSR(*pattern, np.ones(3 * rows, np.float32)), labels, 68, 13)
    data = SparseDataset("nearly", split, split, 68, 13)
    assert kind_of(split) == "other"
    first, last = np.arange(rows - 2), np.arange(rows - 2, rows)
    assert kind_of(split.take(first)) == "graph"
    parts = split.take(first), split.take(last)
    monkeypatch.setattr("slide.training.trainer.validation_split", lambda *_: parts)
    network = job.make_network(data, FullSampler)
    trainer = job.make_trainer(tmp_path, data, network=network, epochs="auto")
    trainer.monitor.close()
    assert trainer.held_rows.known is None


def test_known_labels_are_left_out_of_predictions(tmp_path):
    data = graph_data()
    torch.manual_seed(0)
    network = job.make_network(data, FullSampler)
    trainer = job.make_trainer(tmp_path, data, network=network, epochs="auto")
    trainer.monitor.close()
    train, held = trainer.train_split, trainer.held_split
    of = {tuple(row): set() for row in train.features.indices.reshape(-1, 2).tolist()}
    for split, use in ((train, True), (held, False)):
        for row in range(len(split)):
            part = split.take(np.array([row]))
            name = tuple(part.features.indices.tolist())
            of.setdefault(name, set()).update(part.labels.indices.tolist() if use else ())
    scores = network(held.features).to_dense().detach().numpy()
    best = np.full((len(held), 5), -1)
    for row, name in enumerate(held.features.indices.reshape(-1, 2).tolist()):
        left = [label for label in np.argsort(-scores[row]) if label not in of[tuple(name)]]
        best[row] = left[:5]
    expected = np.mean([precision_at_k(best, held.labels, k) for k in (1, 3, 5)])
    rows = HeldRows(train, held, "graph")
    assert rows.known is not None
    assert rows.precision(network) == pytest.approx(expected)
    network.train()
    assert rows.precision(network) == pytest.approx(expected)
    assert network.training


def test_other_rows_are_judged_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setattr("slide.training.validation._BATCH", 7)
    monkeypatch.setattr("slide.training.validation._ROWS", 11)
    data = job.make_data(tmp_path)
    network = job.make_network(data, partial(FullSampler))
    rows = HeldRows(data.train, data.test, "other")
    assert rows.known is None
    assert len(rows.split) == 11
    best = network.predict(rows.split.features, 5)[1].numpy()
    expected = np.mean([precision_at_k(best, rows.split.labels, k) for k in (1, 3, 5)])
    assert rows.precision(network) == pytest.approx(expected)


@pytest.mark.parametrize("num_labels", [2, 4, 9])
def test_the_baseline_names_the_most_frequent_labels(num_labels):
    rng = np.random.default_rng(0)
    labels = np.minimum(rng.geometric(0.4, 90) - 1, num_labels - 1)
    features = CSR(*Pattern.from_lists([[row] for row in range(90)]), np.ones(90, np.float32))
    split = Split(features, Pattern.from_lists(labels[:, None].tolist()), 90, num_labels)
    held = HeldRows(split, split, "other")
    order = np.argsort(-np.bincount(labels, minlength=num_labels), kind="stable")
    # As many answers as there are labels are always right.
    places = [k for k in (1, 3, 5) if k < num_labels]
    expected = np.mean([np.isin(labels, order[:k]).mean() / k for k in places])
    assert held.places == places
    assert held.baseline == pytest.approx(expected)


def test_known_labels_are_left_out_of_the_baseline():
    rows = [[0, 5], [0, 6], [1, 5], [0, 5], [1, 6]]
    pattern, labels = Pattern.from_lists(rows), [[2], [2], [2], [0], [2]]
    split = Split(CSR(*pattern, np.ones(10, np.float32)), Pattern.from_lists(labels), 7, 4)
    held = HeldRows(split.take(np.arange(3)), split.take(np.arange(3, 5)), "graph")
    # 0 comes next after 2, which is known for the first row; it is right for the other one.
    assert held.places == [1, 3]
    assert held.baseline == pytest.approx(np.mean([1.0, 2 / 6]))
