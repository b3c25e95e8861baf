"""Recipes: what they set, and what wins over them."""

import re

import pytest
from helpers import job
from omegaconf import OmegaConf

from slide.config import build_network, fill_in

RECIPES = sorted(path.stem for path in job.CONF.glob("recipe/*.yaml"))


def test_the_published_setting():
    config = job.compose("recipe=slide2020", "dataset=amazon670k")
    assert config.network.hidden == [128]
    assert not config.network.hidden_active
    assert config.network.dropout == 0
    assert config.network.prior_bias is False
    assert config.hash.family._target_ == "slide.DWTA"
    assert (config.hash.hashes_per_table, config.hash.num_tables) == (6, 50)
    assert config.hash.bin_size == 8
    assert config.hash.packing == "released"
    assert config.sampler.proposer._target_ == "slide.sampling.PublishedLSHProposer"
    proposer = config.sampler.proposer
    assert (proposer.bucket_capacity, proposer.bucket_policy) == (128, "fifo")
    assert proposer.fill == 1000
    assert (config.sampler.mode, config.sampler.active) == ("per_sample", 1000)
    assert (config.sampler.candidate_share, config.sampler.weighting) == (None, "none")
    assert config.sampler.rebuild == {
        "_target_": "slide.sampling.fixed",
        "_partial_": True,
        "every": 6400,
    }
    redraw = config.sampler.proposer.redraw
    assert (redraw.first, redraw.every) == (6400, 128_000)
    assert config.loss._args_ == ["softmax"]
    assert config.optimizer.lr == 1e-4
    assert config.optimizer.betas == [0.9, 0.999]
    assert config.optimizer.every_row
    assert config.trainer.batch_size == 128
    assert config.dataset.num_labels == 670_091


def test_first_weights_of_the_published_setting():
    config = job.compose("recipe=slide2020", "dataset=amazon670k")
    fill_in(config, 1000, 2000)
    network = build_network(config, 3000, 2000)
    for layer in network.layers():
        assert layer.weight.std().item() == pytest.approx(0.01, rel=0.02)
        assert layer.bias.std().item() == pytest.approx(0.01, rel=0.2)


def test_a_key_on_the_command_line_wins_over_a_recipe():
    config = job.compose(
        "recipe=slide2020", "optimizer.lr=0.5", "hash.num_tables=7", "hash=simhash"
    )
    assert config.optimizer.lr == 0.5
    assert config.hash.family._target_ == "slide.SimHash"
    assert config.sampler.proposer.num_tables == 7
    assert config.hash.hashes_per_table == 6


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_keys_of_a_recipe_are_taken(recipe):
    config = job.compose(f"recipe={recipe}", "dataset=debian")
    for group, values in job.raw("recipe", recipe).items():
        for key in values if group != "defaults" else ():
            assert config[group][key] == values[key], (group, key)
    for group, choice in overridden(recipe):
        assert kinds(config.get(group)) == kinds(job.raw(group, choice)), group
    for sampler in ("full", "uniform", "faiss"):
        job.compose(f"recipe={recipe}", f"sampler={sampler}")


def kinds(config):
    """What a configuration builds."""
    return re.findall(r"_(?:target|args)_:\n? *(?:- )?(\S+)", OmegaConf.to_yaml(config or {}))


def overridden(recipe):
    """Group and choice of each ``override`` among a recipe's defaults."""
    for entry in OmegaConf.load(job.CONF / "recipe" / f"{recipe}.yaml").get("defaults", []):
        for name, choice in entry.items():
            yield name.removeprefix("override /"), choice


def test_without_a_recipe_the_files_hold_what_is_used():
    config = OmegaConf.to_container(job.compose())
    expected = OmegaConf.to_container(OmegaConf.load(job.CONF / "train.yaml"))
    chosen = [entry for entry in expected.pop("defaults") if isinstance(entry, dict)]
    assert {"recipe": None} in chosen
    del expected["hydra"]
    for ((group, choice),) in (entry.items() for entry in chosen):
        if choice and not group.startswith("override"):
            expected[group] = expected.get(group, {}) | OmegaConf.to_container(
                job.raw(group, choice)
            )
    assert config == expected


# What `python train.py` uses, and what the recipe sets.
DEFAULTS = {
    "network.hidden": None,
    "network.dropout": 0.3,
    "network.precision": "auto",
    "network.init_scale": 0.2,
    "network.output_scale": None,
    "optimizer.input_rate": 4.0,
    "optimizer.lr": 0.002,
    "trainer.epochs": "auto",
    "transform.l2_norm": True,
    "sampler.candidate_share": 0.25,
}
PUBLISHED = {
    "network.hidden": [128],
    "network.dropout": 0.0,
    "network.precision": "float32",
    "network.init_scale": 0.113137,
    "network.output_scale": 0.195959,
    "optimizer.input_rate": 1.0,
    "optimizer.lr": 0.0001,
    "trainer.epochs": 5,
    "transform.l2_norm": False,
    "sampler.candidate_share": None,
}


@pytest.mark.parametrize(("words", "expected"), [([], DEFAULTS), (["recipe=slide2020"], PUBLISHED)])
def test_what_each_recipe_sets(words, expected):
    config = job.compose(*words)
    assert {key: OmegaConf.select(config, key) for key in expected} == expected
    assert bool(config.get("ranker")) == (not words)


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_full_sampler_is_full_with_any_recipe(recipe):
    config = job.compose(f"recipe={recipe}", "sampler=full")
    fill_in(config, 1000, 80)
    assert config.sampler.active == "all"


@pytest.mark.parametrize("recipe", [[], ["recipe=slide2020"]])
def test_any_recipe_with_or_without_a_ranker(recipe):
    without = job.compose(*recipe, "ranker=none")
    assert not without.get("ranker")
    ranked = job.compose(*recipe, "ranker=ensemble", "ranker.depth=7")
    assert ranked.ranker._target_ == "slide.ranking.EnsembleRanker"
    assert ranked.ranker.depth == 7
