"""Runs use the constants of their data set, and its transformed rows."""

import json
from dataclasses import replace

import numpy as np
from helpers import job

from slide.data import transform
from slide.training.evaluation import evaluate, inverse_propensities


def test_a_run_uses_the_constants_of_its_set(tmp_path):
    data = replace(job.make_data(tmp_path), propensity=(0.6, 2.6))
    trainer = job.make_trainer(tmp_path, data)
    expected = inverse_propensities(data.train.labels, data.num_labels, 0.6, 2.6)
    np.testing.assert_array_equal(trainer.inverse, expected)
    assert (expected != inverse_propensities(data.train.labels, data.num_labels)).any()
    summary = trainer.fit()
    inverse = summary["psp_at_1"], summary["psp_at_3"], summary["psp_at_5"]
    again = evaluate(trainer.network, data.test, expected)
    assert inverse == tuple(round(again[f"psp_at_{k}"], 6) for k in (1, 3, 5))
    (line,) = job.lines(tmp_path / "run", "eval/psp_at_1")
    assert {"eval/psp_at_3", "eval/psp_at_5"} <= set(line)


def test_a_run_trains_on_the_transformed_set_and_a_resumed_one_keeps_it(tmp_path):
    words = ["transform.hashed_features=30", "transform.min_label_count=2"]
    job.main(*job.tiny(tmp_path, *words, "trainer.max_steps=1"))
    run = tmp_path / "run"
    summary = json.loads((run / "summary.json").read_text())
    data = job.make_data(tmp_path, **job.WITH_HELD)
    expected = transform(data, hashed_features=30, min_label_count=2)
    assert (summary["features"], summary["labels"]) == (30, expected.num_labels)
    assert expected.num_labels < job.SIZES["num_labels"]
    job.main(f"resume={run}", "trainer.max_steps=2")
    assert json.loads((run / "summary.json").read_text())["steps"] == 2
    message = job.failure(f"resume={run}", "transform.hashed_features=20")
    assert "a resumed run keeps its transform.hashed_features" in message
