"""A network and an optimizer from a configuration, and settings that follow from the data."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from helpers import job

from slide import FullSampler
from slide.config import build, build_network, build_optimizer, fill_in
from slide.config.build import check_settings, check_used

PER_SAMPLE = "sampler.mode=per_sample"


def test_all_outputs_with_any_sampler():
    config = job.compose("sampler=lsh", "sampler.active=all")
    fill_in(config, 1000, 80)
    network = build_network(config, 1000, 80)
    assert isinstance(network.output.sampler, FullSampler)


def test_null_settings_follow_from_the_data():
    config = job.compose("sampler.mode=per_sample")
    fill_in(config, 40_000, 20_000)
    assert (config.trainer.batch_size, config.sampler.active) == (256, 2048)
    assert config.network.output_scale == 1
    for sampler, scale in (("lsh", 0.1), ("full", 0.1), ("lsh", 1)):
        mode = "per_sample" if scale == 1 else "shared"
        config = job.compose(f"sampler={sampler}", f"sampler.mode={mode}")
        fill_in(config, 40_000, 200_000)
        assert config.network.output_scale == scale
    config = job.compose("sampler=full", "sampler.mode=per_sample")
    fill_in(config, 40_000, 200_000)
    assert (config.sampler.active, config.network.output_scale) == ("all", 0.1)


@pytest.mark.parametrize(
    ("words", "proposer"),
    [
        ([], None),
        (["sampler=lsh"], "slide.LSHProposer"),
        (["sampler.mode=per_sample"], "slide.RecentProposer"),
        (["sampler.mode=per_sample", "trainer.evaluation=sampler"], "slide.LSHProposer"),
        (["sampler=index"], "slide.IndexProposer"),
        (["network.hidden=[8,8]", "network.hidden_active=[null,4]"], "slide.LSHProposer"),
        (["trainer.evaluation=index"], None),
        (["network.hidden=[8]", "network.hidden_active=[null]"], None),
        (["recipe=slide2020"], "slide.PublishedLSHProposer"),
        (["recipe=slide2020", "sampler=uniform"], None),
    ],
)
def test_outputs_are_looked_up_where_it_pays(words, proposer):
    config = job.compose(*words)
    fill_in(config, 40_000, 200_000)
    found = config.sampler.get("proposer")
    assert (found and found._target_.replace("slide.sampling.", "slide.")) == proposer
    sampler = build_network(config, 1000, 3000).output.sampler
    assert (sampler.proposer and f"slide.{type(sampler.proposer).__name__}") == proposer


@pytest.mark.parametrize(
    ("sampler", "words", "message"),
    [
        ("auto", ["hash.num_tables=4"], "for a set that the batch shares; add sampler=lsh$"),
        ("auto", ["sampler.candidate_share=0.9"], "_share would have no effect: outputs are drawn"),
        ("auto", ["schedule.first=9", PER_SAMPLE], "labels of recent samples; add sampler=index$"),
        ("auto", ["sampler.proposer.best=3", PER_SAMPLE], "would have .* labels of recent samples"),
        ("slide2020", ["hash.probes=3"], "probes would .* the published method has nothing of it"),
        ("uniform", ["hash=dwta"], "hash would have no effect: outputs are drawn uniformly; "),
        ("full", ["hash=dwta"], "hash would have no effect: all outputs are computed; choose s"),
        ("index", ["hash=dwta"], "hash would have no effect: candidates do not come from hash "),
        ("full", ["sampler.active=500"], "sampler.active would have no effect: all outputs are"),
        ("full", ["sampler.active=all"], None),
        (
            "lsh",
            ["sampler.active=all", "hash.num_tables=64"],
            "hash.num_tables .*: sampler.active=all",
        ),
        ("auto", ["sampler.active=all", "sampler.weighting=none"], "weighting .*give it a number"),
        ("recent", ["schedule=fixed"], "schedule would have no effect: no index is built; choose "),
        (
            "index",
            ["schedule=fixed", "schedule.redraw_first=9"],
            "redraw_first .*: candidates do not come from hash",
        ),
        ("index", ["schedule=fixed", "schedule.every=9", "sampler.candidate_share=0.9"], None),
        ("lsh", ["hash=dwta"], None),
        ("lsh", ["schedule=fixed"], "schedule would have no effect: sampler=lsh measures when its"),
        ("auto", ["trainer.evaluation=sampler", "schedule.first=9"], "first .*: sampler=lsh meas"),
    ],
)
def test_settings_that_a_sampler_does_not_use(sampler, words, message):
    config = job.compose(f"sampler={sampler}", *words)
    given = [word.partition("=")[0] for word in ["sampler=x", *words]]
    if message is None:
        check_used(config, given)
        return
    with pytest.raises(ValueError, match=message):
        check_used(config, given)


@pytest.mark.parametrize("word", ["lr_schedule=constant", "lr_schedule.warmup=0.1"])
def test_a_schedule_of_rates_needs_a_number_of_epochs(word):
    given = [word.partition("=")[0]]
    check_used(job.compose(word, "trainer.epochs=6"), given)
    with pytest.raises(ValueError, match=rf"{given[0]} would .*: trainer.epochs=auto chooses the"):
        check_used(job.compose(word), given)


def test_names_are_checked_where_all_outputs_are_computed():
    for word in ("sampler.mode=foo", "sampler.weighting=foo"):
        with pytest.raises(ValueError, match=r"\w+ must be one of .*, not 'foo'"):
            check_settings(job.compose("sampler=full", word))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sampler=index"], "IndexProposer searches on the CPU; with runtime.device=cuda use samp"),
        (["trainer.evaluation=index"], "use trainer.evaluation=exact"),
        ([], None),
    ],
)
def test_what_searches_on_the_cpu(monkeypatch, words, said):
    monkeypatch.setattr(build, "run_device", lambda _: torch.device("cuda"))
    with pytest.raises(ValueError, match=said) if said else nullcontext():
        check_settings(job.compose(*words))


def test_settings_of_the_network_reach_it():
    scales = ["network.hidden=[512]", "network.init_scale=0.01", "network.output_scale=0.5"]
    rates = ["optimizer.input_rate=3", "optimizer.lr=0.5"]
    config = job.compose(*scales, *rates, "sampler=uniform", "sampler.active=32")
    network = build_network(config, 1000, 80)
    assert network.first.weight.detach().std() * 512**0.5 == pytest.approx(0.01, rel=0.05)
    assert network.output.weight.abs().max().item() == pytest.approx(0.5 / 512**0.5, rel=0.01)
    rest, first = build_optimizer(config, network).param_groups
    assert (rest["lr"], first["lr"]) == (0.5, 1.5)
    assert first["params"][0] is network.first.weight


@pytest.mark.parametrize(
    ("words", "fits"),
    [
        (["sampler=index", "network.hidden_active=[null,8]"], True),
        (["sampler=index", "network.hidden_active=[8,null]"], False),
        (["sampler=full", "network.hidden_active=[null,8]"], False),
        (["sampler=uniform", "network.hidden_active=[8,8]"], True),
        (["sampler=lsh", "network.hidden_active=[8,8]"], False),
        (["sampler=slide2020", "hash.hashes_per_table=2", "network.hidden_active=[8,8]"], True),
    ],
)
def test_samplers_of_hidden_layers(words, fits):
    config = job.compose("network.hidden=[16,16]", *words)
    fill_in(config, 1000, 80)
    if fits:
        build_network(config, 60, 80)
        return
    with pytest.raises(ValueError, match=r"hidden_active=\[.*\] needs sampler=lsh or sampler=unif"):
        build_network(config, 60, 80)


def test_rebuilds_that_take_little_time_come_more_often():
    growths = {("sampler=index",): 0.3, ("sampler=index", "schedule.growth=0.7"): 0.7}
    for words, growth in (growths | {("sampler=slide2020",): 0.7}).items():
        config = job.compose(*words)
        fill_in(config, 40_000, 200_000)
        schedule = build_network(config, 1000, 3000).output.sampler.rebuild_due
        assert schedule.keywords["growth"] == growth
        # Hydra's partials check their function at each call, and a step calls the schedules.
        assert type(schedule) is partial
