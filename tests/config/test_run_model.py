"""The folder of a run is a model: it answers raw rows as the run did."""

import json

import numpy as np
import pytest
from helpers import job

import slide
from slide.data import transform
from slide.training.evaluation import precision_at_k

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = {"tf_idf": True, "l2_norm": True, "hashed_features": 50, "min_label_count": 2}
OVERRIDES = [f"transform.{key}={str(value).lower()}" for key, value in STEPS.items()]


@pytest.mark.parametrize("ranker", ["ensemble", "none"])
def test_the_model_has_the_precision_of_the_run(tmp_path, ranker):
    """On raw rows; scores of a run are about the labels that its transform left."""
    job.main(*job.tiny(tmp_path, *OVERRIDES, f"ranker={ranker}"))
    raw = job.make_data(tmp_path, **job.WITH_HELD)
    (steps,) = transform(raw, **STEPS).steps
    model = slide.load(tmp_path / "run")
    assert (model.num_features, model.num_labels) == (raw.num_features, raw.num_labels)
    assert model.settings["network"]["hidden"] == [8]
    assert "${" not in json.dumps(model.settings)
    ids, _ = model.predict(raw.test.features, k=5)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    numbers = np.full(raw.num_labels, -1)
    numbers[steps.label_ids] = np.arange(len(steps.label_ids))
    found = precision_at_k(numbers[ids], steps.labels(raw.test.labels), 5)
    assert found == pytest.approx(summary["p_at_5"], abs=1e-6)
    assert (model.ranker is None) == (ranker == "none")


def test_a_run_that_has_not_ended_is_no_model(tmp_path, monkeypatch):
    job.stop_at(monkeypatch, 3)
    job.failure(*job.tiny(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"the run has not ended, resume=.*run goes on"):
        slide.load(tmp_path / "run")
    job.main(f"resume={tmp_path}/run")
    assert slide.load(tmp_path / "run").num_labels == 80
