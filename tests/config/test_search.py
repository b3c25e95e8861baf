"""Settings that races choose: what is tried, what wins, and what a user fixed."""

import json

import numpy as np
import pytest
from helpers import job
from omegaconf import OmegaConf

from slide.config import build, build_network, fill_in, read_config
from slide.config.search import choose_settings, race_steps, variants, with_value
from slide.training.race import Contender


class Runner(Contender):
    """Its precision is that of its settings."""

    def __init__(self, config, steps, precision):
        self.steps, self.precision = steps, precision(config)

    def run_to(self, step):
        return self.precision * step / self.steps


def choose(config, precision, given=()):
    return choose_settings(config, lambda each, steps: Runner(each, steps, precision), 10, given)


def test_the_best_value_of_each_key_is_taken(capsys):
    config = read_config(["search=quick"])

    def precision(config):
        name = config.loss._args_[0]
        rate = config.optimizer.input_rate if name == "softmax" else -config.optimizer.input_rate
        return {"softmax": 0.4, "squared_hinge": 0.3, "bce": 0.2}[name] + rate / 100

    found = choose(config, precision)
    assert found.loss._args_ == ["softmax"]
    assert found.optimizer.input_rate == 16.0
    assert found.network.dropout == config.network.dropout, "all are equal"
    said = capsys.readouterr().err
    assert "loss: softmax, 44.0 against 26.0 of squared_hinge after 10 steps" in said
    assert "optimizer.input_rate: 16.0, 56.0 against 44.0 of 4.0 after 10 steps" in said
    assert "network.dropout: 0.3, 56.0 against 56.0 of " in said
    assert [line.partition(":")[0] for line in found.search.chosen] == list(variants(config))
    assert all(line in said for line in found.search.chosen)
    assert config.loss._args_ == ["squared_hinge"], "the argument stays as it is"


def test_a_small_gain_does_not_count():
    config = read_config(["search=quick", "search.least_gain=0.1"])
    for gain, expected in ((1.05, 0.3), (1.15, 0.0)):
        found = choose(
            config, lambda each, gain=gain: 0.5 * (gain if not each.network.dropout else 1)
        )
        assert found.network.dropout == expected


def test_where_no_loss_is_finite_nothing_is_chosen():
    config = read_config(["search=quick"])
    assert choose(config, lambda _: -1).loss == config.loss
    assert choose(config, lambda each: 0.1 if each.loss != config.loss else -1).loss != config.loss


def test_what_a_user_fixed_stays():
    config = read_config(["search=quick"])
    found = choose(config, lambda each: 1 - each.network.dropout, given={"network.dropout"})
    config.search.chosen = found.search.chosen
    assert found == config
    assert "network.dropout" not in variants(config, {"network.dropout"})
    assert choose(read_config([]), lambda _: pytest.fail("no race")) == read_config([])


def test_a_group_with_a_key_that_a_user_fixed_stays():
    config = read_config(["search.tries=['loss=softmax,bce','sampler=full']"])
    assert list(variants(config, {"loss.hard_fraction"})) == ["sampler"]
    assert list(variants(config, {"sampler.active", "losses.x"})) == ["loss", "sampler"]
    assert list(variants(config, {"sampler.proposer.best"})) == ["loss"]
    config.search.tries = ["sampler.active=16,32"]
    assert not variants(config, {"sampler.active"})


@pytest.mark.parametrize("name", ["quick", "full"])
def test_all_values_of_the_searches_exist(name):
    config = read_config([f"search={name}"])
    found = variants(config)
    assert list(found) == [line.partition("=")[0] for line in config.search.tries]
    for key, others in found.items():
        assert others, key
        for each in others.values():
            assert OmegaConf.select(each, key) != OmegaConf.select(config, key)


def test_values_that_do_not_exist_are_named():
    config = read_config([])
    for key, value in (("loss", "hings"), ("network.width", "3"), ("los", "bce")):
        with pytest.raises(ValueError, match=f"there is no {key}={value}"):
            with_value(config, key, value)


@pytest.mark.parametrize("present", ["auto", "uniform", "lsh", "faiss", "full"])
def test_samplers_are_raced(present):
    config = read_config(["search.tries=['sampler=uniform,lsh,faiss,full']", f"sampler={present}"])
    config.sampler.weighting = "none"
    fill_in(config, 1000, 400)
    (others,) = variants(config).values()
    assert set(others) == {"uniform", "lsh", "faiss", "full"} - {
        "uniform" if present == "auto" else present
    }
    for name, other in others.items():
        fill_in(other, 1000, 400)
        sampler = build_network(other, 60, 400).output.sampler
        kind = type(getattr(sampler, "proposer", None)).__name__
        expected = {"lsh": "LSHProposer", "faiss": "FaissProposer"}.get(name, "NoneType")
        assert (kind, type(sampler).__name__ == "FullSampler") == (expected, name == "full")
        assert name == "full" or (sampler.active, sampler.weighting) == (100, "none")
    found = choose(config, lambda each: float(each.sampler.get("proposer") is not None))
    assert found.sampler.proposer is not None
    for value in ("auto", "best"):
        with pytest.raises(
            ValueError, match=f"there is no sampler={value}; take one of faiss, full"
        ):
            with_value(config, "sampler", value)


@pytest.mark.parametrize(
    "key", ["sampler.mode", "trainer.batch_size", "ranker.depth", "lr_schedule", "seed", "los"]
)
def test_what_a_race_does_not_compare_is_refused(key):
    with pytest.raises(ValueError, match=rf"search.tries: {key} cannot be raced: "):
        variants(read_config([f"search.tries=['{key}=1,2']"]))


def test_a_key_is_tried_by_one_line():
    twice = "search.tries=['optimizer.lr=0.1','optimizer.lr=0.2']"
    with pytest.raises(ValueError, match=r"two lines try optimizer\.lr: name all its values"):
        variants(read_config([twice]), {"optimizer.lr"})


def test_a_run_takes_the_sampler_that_won(tmp_path, capsys):
    more = ["search.tries=['sampler=full']", "search.least_gain=0", "ranker=none"]
    words = job.tiny(tmp_path, "sampler=auto", *more)
    words.remove("sampler=auto")  # What a user gives is not raced.
    job.main(*words)
    said = capsys.readouterr().err
    assert "sampler: " in said
    won = said.partition("sampler: ")[2].partition(",")[0]
    assert won in ("full", "uniform")
    saved = OmegaConf.load(tmp_path / "run/config.yaml").sampler
    assert (saved._target_ == "slide.FullSampler") == (won == "full")
    assert saved.active == ("all" if won == "full" else 32)


def test_races_and_training_learn_from_the_same_rows(tmp_path, monkeypatch):
    raced = []

    def choose(config, make, steps, given):
        raced.append(make(config, steps))
        return config

    monkeypatch.setattr(build, "choose_settings", choose)
    words = job.tiny(tmp_path, "search=quick", "trainer.seed=7", "dataset.holdout=0.3")
    with job.global_state_put_back():
        trainer = build.build_trainer(job.compose(*words))
    trainer.monitor.close()
    (contender,) = raced
    pairs = [(contender.held.split, trainer.held_split)]
    pairs += [(each.batches.split, trainer.train_split) for each in (contender, trainer)]
    for found, expected in pairs:
        assert expected is not None
        for one, other in zip(found.features, expected.features, strict=True):
            assert np.array_equal(one, other)
    orders = [each.batches.batch(0, 0).labels.indices for each in (contender, trainer)]
    assert np.array_equal(*orders)


def test_the_steps_of_a_race_have_a_limit():
    search = read_config(["search=quick"]).search
    assert race_steps(search, 100) == 100
    assert race_steps(search, 10_000) == 500
    assert race_steps(search, 1) == 2
    with pytest.raises(ValueError, match="epochs must be"):
        race_steps(read_config(["search.epochs=0"]).search, 10)


def test_a_run_notes_what_it_chose(tmp_path, capsys):
    more = ["search=quick", "search.tries=['network.dropout=0.0,0.9']", "search.least_gain=0"]
    job.main(*job.tiny(tmp_path, *more))
    said = capsys.readouterr().err
    saved = OmegaConf.load(tmp_path / "run/config.yaml")
    assert f"network.dropout: {saved.network.dropout}, " in said
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["search_seconds"] > 0
    first, *others = summary["choices"]
    assert first.startswith(f"network.dropout: {saved.network.dropout}, ")
    assert [each.partition(":")[0] for each in others] == ["features of the nearest rows"]
    assert all(f"{each}\n" in said for each in summary["choices"])
    job.main(f"resume={tmp_path}/run")
    assert json.loads((tmp_path / "run/summary.json").read_text())["choices"] == summary["choices"]
    capsys.readouterr()
    fixed = f"network.dropout={saved.network.dropout}"
    other = job.tiny(tmp_path, fixed, f"run_dir={tmp_path}/other")
    job.main(*other)
    scores = [
        json.loads((tmp_path / name / "summary.json").read_text())["p_at_1"]
        for name in ("run", "other")
    ]
    assert scores[0] == scores[1], "the races leave no trace in the draws"
    capsys.readouterr()
    job.main(*job.tiny(tmp_path, *more, "network.dropout=0.2", f"run_dir={tmp_path}/third"))
    assert "network.dropout" not in capsys.readouterr().err
