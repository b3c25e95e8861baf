"""Rows whose scores are no finite numbers: an error that names the row, and no empty answer."""

import json

import numpy as np
import pytest
import torch
from helpers import job
from helpers.commands import slide_predict
from helpers.serving import serving_model

from slide import FullSampler, Model, SlideNetwork
from slide.data import holdout
from slide.predict import command
from slide.ranking import EnsembleRanker

pytestmark = pytest.mark.usefixtures("one_thread")
FEATURES = 30
LARGE = {"indices": list(range(FEATURES)), "values": [3.3e38] * FEATURES}


def make_model(least=None):
    """A model; with a ``least`` weight of 0, scores overflow to inf and not to NaN."""
    torch.manual_seed(0)
    network = SlideNetwork(FEATURES, [8], 12, FullSampler)
    if least is not None:
        for parameter in network.parameters():
            parameter.data.abs_()
    return Model(network)


def rows(count, *large):
    found = np.full((count, FEATURES), 0.5, np.float32)
    found[list(large)] = 3.3e38
    return found


@pytest.mark.parametrize("search", ["exact", "index"])
@pytest.mark.parametrize("least", [None, 0])
def test_models_name_the_row(least, search):
    model = make_model(least)
    with pytest.raises(ValueError, match="the values of row 1100 are too large: its scores are"):
        model.predict(rows(1200, 1100, 1150), 2, search)
    assert (model.predict_ids(rows(9), 2).labels >= 0).all()


def test_weights_that_are_nan():
    model = make_model()
    torch.nn.init.constant_(model.network.output.weight, torch.nan)
    with pytest.raises(ValueError, match="row 0 are too large: its scores are not finite"):
        model.predict(rows(1))


def test_models_with_a_ranker(tmp_path):
    data = job.make_data(tmp_path)
    torch.manual_seed(0)
    network = job.make_network(data)
    train, held = holdout(data.train, 0.2, seed=0)
    model = Model(network, EnsembleRanker().fit(network, train, held))
    rows = np.full((3, 60), 0.5, np.float32)
    assert (model.predict(rows, 2).labels[:, 0] >= 0).all()
    rows[2] = 3.3e38
    with pytest.raises(ValueError, match="row 2 are too large"):
        model.predict(rows)


@pytest.mark.parametrize("least", [None, 0])
def test_servers_refuse_the_request(least):
    with serving_model(make_model(least)) as client:
        answer = client.post(json={"rows": [{"indices": [3]}, LARGE]})
        assert answer.status_code == 422
        assert answer.json()["error"].startswith("the values of row 1 are too large")
        assert client.post(json={"rows": [{"indices": [3]}]}).status_code == 200


@pytest.mark.parametrize("least", [None, 0])
def test_slide_predict_names_the_file_and_the_row(least, tmp_path):
    make_model(least).save(tmp_path / "model")
    values = dict.fromkeys(map(str, range(FEATURES)), 3.3e38)
    lines = [json.dumps({"features": {}}) + "\n"] * 1030 + [json.dumps({"features": values})]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(lines))
    words = [str(tmp_path / "model"), str(file), "--threads", "1", "-o", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as stopped:
        command.main(words)
    told = f"error: {file}: the values of row 1030 are too large: its scores are not finite"
    assert str(stopped.value.code) == f"{told} (rows are counted from 0)"
    assert not (tmp_path / "out").exists()
    file.write_text(lines[0])
    assert json.loads(slide_predict(tmp_path / "model", file))["labels"]
