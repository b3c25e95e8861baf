"""A network and an optimizer from a configuration, and settings that follow from the data."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from helpers import job

from slide import FullSampler
from slide.config import build, build_network, build_optimizer, fill_in
from slide.config.build import build_samplers, check_settings, check_used, proposer_class

PER_SAMPLE = "sampler.mode=per_sample"


@pytest.mark.parametrize("choice", ["lsh", "uniform", "full"])
def test_all_outputs_with_any_sampler(choice):
    config = job.compose(f"sampler={choice}", "sampler.active=all")
    fill_in(config, 1000, 80)
    network = build_network(config, 1000, 80)
    assert isinstance(network.output.sampler, FullSampler)


@pytest.mark.parametrize(
    ("words", "yes"),
    [
        (["sampler=uniform"], False),
        (["sampler=recent"], False),
        (["sampler=index"], True),
        (["sampler=index", "sampler.proposer._target_=slide.sampling.IndexProposer"], True),
    ],
)
def test_what_a_proposer_needs(words, yes):
    """By its class, however it is named."""
    kind = proposer_class(job.compose(*words))
    assert getattr(kind, "cpu_only", False) is getattr(kind, "holds_vectors", False) is yes


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
    config = job.compose("trainer.batch_size=7", "sampler.active=9")
    fill_in(config, 40_000, 20_000)
    assert (config.trainer.batch_size, config.sampler.active) == (7, 9)


@pytest.mark.parametrize(
    ("words", "proposer"),
    [
        ([], None),
        (["sampler.active=128"], None),
        (["sampler=lsh"], "slide.LSHProposer"),
        (["sampler.mode=per_sample"], "slide.RecentProposer"),
        (["sampler.mode=per_sample", "trainer.evaluation=sampler"], "slide.LSHProposer"),
        (["sampler.mode=per_sample", "sampler=lsh"], "slide.LSHProposer"),
        (["sampler=recent"], "slide.RecentProposer"),
        (["sampler=index"], "slide.IndexProposer"),
        (["network.hidden=[8,8]", "network.hidden_active=[null,4]"], "slide.LSHProposer"),
        (["trainer.evaluation=sampler"], "slide.LSHProposer"),
        (["trainer.evaluation=index"], None),
        (["network.hidden=[8]", "network.hidden_active=[null]"], None),
        (["recipe=slide2020", "sampler.mode=shared"], "slide.PublishedLSHProposer"),
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
        ("auto", ["sampler.candidate_share=0.1", PER_SAMPLE], None),
        ("slide2020", ["hash.probes=3"], "probes would .* the published method has nothing of it"),
        ("uniform", ["hash=dwta"], "hash would have no effect: outputs are drawn uniformly; "),
        ("uniform", ["hash.num_tables=4"], "hash.num_tables would have no effect: outputs are "),
        ("uniform", ["schedule=fixed"], "schedule would have no effect: outputs are drawn unif"),
        ("full", ["hash=dwta"], "hash would have no effect: all outputs are computed; choose s"),
        ("index", ["hash=dwta"], "hash would have no effect: candidates do not come from hash "),
        ("full", ["sampler.active=500"], "sampler.active would have no effect: all outputs are"),
        ("full", ["sampler.mode=foo"], "sampler.mode would have no effect: all outputs are "),
        ("full", ["sampler.active=all"], None),
        (
            "lsh",
            ["sampler.active=all", "hash.num_tables=64"],
            "hash.num_tables .*: sampler.active=all",
        ),
        ("auto", ["sampler.active=all", "sampler.weighting=none"], "weighting .*give it a number"),
        ("recent", ["schedule=fixed"], "schedule would have no effect: no index is built; choose "),
        ("index", ["schedule.redraw_every=9"], "redraw_every .*: candidates do not come from hash"),
        (
            "index",
            ["schedule=fixed", "schedule.redraw_first=9"],
            "redraw_first .*: candidates do not come from hash",
        ),
        ("index", ["schedule=fixed", "schedule.every=9", "sampler.candidate_share=0.9"], None),
        ("lsh", ["hash=dwta"], None),
        ("lsh", ["schedule=fixed"], "schedule would have no effect: sampler=lsh measures when its"),
        ("lsh", ["schedule.redraw_every=9"], "redraw_every .*: sampler=lsh measures when"),
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
    check_used(job.compose("recipe=slide2020", "trainer.epochs=auto"), ["recipe"])
    with pytest.raises(ValueError, match=rf"{given[0]} would .*: trainer.epochs=auto chooses the"):
        check_used(job.compose(word), given)


@pytest.mark.parametrize("word", ["sampler.mode=foo", "sampler.weighting=foo"])
def test_names_are_checked_where_all_outputs_are_computed(word):
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
        (["sampler=full", "network.hidden_active=[null,null]"], True),
        (["sampler=full", "network.hidden_active=[null,8]"], False),
        (["sampler=uniform", "network.hidden_active=[8,8]"], True),
        (["sampler=lsh", "network.hidden_active=[null,8]"], True),
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


@pytest.mark.parametrize(
    ("words", "growth"),
    [
        (["sampler=index"], 0.3),
        (["sampler=index", "schedule.growth=0.7"], 0.7),
        (["sampler=slide2020"], 0.7),
    ],
)
def test_rebuilds_that_take_little_time_come_more_often(words, growth):
    config = job.compose(*words)
    fill_in(config, 40_000, 200_000)
    sampler = build_network(config, 1000, 3000).output.sampler
    schedule = sampler.rebuild_due
    assert schedule.keywords["growth"] == growth


def test_schedules_are_plain_functions():
    """Hydra's partials check their function at each call, and a step calls the schedules."""
    config = job.compose("sampler=slide2020")
    fill_in(config, 1000, 4000)
    sampler, _ = build_samplers(config)
    schedules = sampler.keywords["rebuild"], sampler.keywords["proposer"].keywords["redraw"]
    assert [type(schedule) for schedule in (sampler, *schedules)] == [partial] * 3
    assert schedules[0](6_400) == 1
