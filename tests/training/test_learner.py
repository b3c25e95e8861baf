"""What a step says of its active set."""

import json

import pytest
import torch
from helpers import job

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_log_says_how_many_outputs_no_step_has_changed(tmp_path):
    """What a run says before its ninth step is what another one finds after eight."""
    found = []
    for steps in (8, 9):
        (tmp_path / str(steps)).mkdir()
        data = job.make_data(tmp_path, num_labels=400)  # So few that all are looked at.
        torch.manual_seed(0)
        folder = tmp_path / str(steps)
        trainer = job.make_trainer(folder, data, recall_every=9, max_steps=steps)
        trainer.fit()
        weight = trainer.network.output.weight
        moments = trainer.learner.optimizer.state[weight]["exp_avg_sq"]
        found.append(1 - len(moments.nonzero()[:, 0].unique()) / 400)
    lines = (tmp_path / "9/run/metrics.jsonl").read_text().splitlines()
    name = "selection/never_updated"
    said = [scalars[name] for scalars in map(json.loads, lines) if name in scalars]
    assert said == [pytest.approx(found[0])]
    assert 0 < found[0] < 1
