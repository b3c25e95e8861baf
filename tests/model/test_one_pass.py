"""With what a model learns on: as the run or classifier that made it, also from its folder."""

import numpy as np
import pytest
import torch

import slide
from slide import SlideClassifier
from slide.model import Model, load
from slide.model.folder import MODEL_FOLDER
from slide.training import DivergenceError
from slide.utils.tensor_folder import read_folder, read_tensors, write_folder

pytestmark = pytest.mark.usefixtures("one_thread")
TRAINING = {"dropout": 0.3, "input_dropout": 0.1, "precision": "bfloat16"}


def training_of(network):
    return {
        "dropout": network.dropout,
        "input_dropout": network.input_dropout,
        "precision": network.output.precision,
    }


def learnt(model):
    return model.partial_fit(np.eye(6), [[0, 1]] * 6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_the_network_is_trained_as_before(tmp_path, dtype):
    network = slide.SlideNetwork(6, [8], 5, slide.FullSampler, **TRAINING)
    Model(network).save(tmp_path / "m", dtype)
    load(tmp_path / "m").save(tmp_path / "again", dtype)
    for model in (load(tmp_path / "again"), load(tmp_path / "m").restricted(range(4))):
        assert training_of(model.network) == TRAINING
        assert training_of(learnt(model).network) == TRAINING


def test_a_folder_that_does_not_say_how_it_was_trained(tmp_path):
    Model(slide.SlideNetwork(6, [8], 5, slide.FullSampler, **TRAINING)).save(tmp_path / "m")
    content = read_folder(MODEL_FOLDER, tmp_path / "m")
    del content["files"]
    for name in TRAINING:
        del content["network"][name]
    tensors = read_tensors(tmp_path / "m", "network")
    write_folder(MODEL_FOLDER, tmp_path / "old", content, {"network": tensors})
    plain = {"dropout": 0.0, "input_dropout": 0.0, "precision": "float32"}
    assert training_of(learnt(load(tmp_path / "old")).network) == plain


@pytest.mark.parametrize("settings", [{}, {"optimizer": {"lr": 1.0, "eps": 1e-6, "rowwise": True}}])
def test_options_of_the_optimizer_are_those_of_the_settings(settings):
    network = slide.SlideNetwork(6, [8], 5, slide.FullSampler)
    group = learnt(Model(network, settings=settings)).optimizer.param_groups[0]
    expected = (1e-6, True) if settings else (1e-8, False)
    assert (group["lr"], group["eps"], group["rowwise"]) == (0.002, *expected)


@pytest.mark.parametrize("whole", [True, False])
def test_a_classifier_keeps_its_optimizer(tmp_path, whole):
    """At a constant rate from the start, a mean of gradients helps."""
    X, y = np.eye(6)[[0, 1, 2, 3] * 5], ["a", "b", "c", "d"] * 5
    model = SlideClassifier(hidden=8, epochs=1, ranker=None, random_state=0)
    if whole:
        model.fit(X, y)
    model.partial_fit(X, y, classes=list("abcd"))
    model.save(tmp_path / "m")
    for own in (model.model_, load(tmp_path / "m").partial_fit(X, y)):
        betas = {group["betas"] for group in own.optimizer.param_groups}
        assert betas == {(0.0, 0.99) if whole else (0.9, 0.999)}
        assert own.network.dropout == 0.3
        assert own.passes == 1


def test_a_pass_ends_where_the_loss_is_not_finite():
    """The steps before it have left finite weights, and that step is not made."""
    torch.manual_seed(0)
    model = Model(slide.SlideNetwork(6, [8], 5, slide.FullSampler))
    with pytest.raises(DivergenceError, match=r"loss is (nan|inf) after \d+ steps .* lower lr"):
        model.partial_fit(np.eye(6), [[0, 1]] * 6, lr=1e25, rows_in_step=1)
    assert all(bool(p.isfinite().all()) for p in model.network.parameters())
    assert not model.network.training
