"""A network and an optimizer from a configuration, and settings that follow from the data."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from helpers import job

from slide import DWTA, ActiveLoss, FullSampler, SimHash
from slide.config import build_network, build_optimizer, fill_in, read_config, recipe
from slide.config.recipe import check_settings, check_used
from slide.sampling import (
    FaissProposer,
    LSHProposer,
    PublishedLSHProposer,
    RecentProposer,
    SketchProposer,
    backoff,
    by_updates,
    fixed,
)
from slide.sampling.sampler import MODES
from slide.sparse import Pattern

PER_SAMPLE = "sampler.mode=per_sample"


def test_all_outputs_with_any_sampler():
    config = job.compose("sampler=lsh", "sampler.active=all")
    fill_in(config, 1000, 80)
    network = build_network(config, 1000, 80)
    assert isinstance(network.output.sampler, FullSampler)


@pytest.mark.parametrize(
    ("words", "labels", "active"),
    [
        ([], 20_000, 192),
        ([], 600, 150),
        ([], 300, 75),
        ([], 100, 64),
        ([PER_SAMPLE], 200_000, 128),
        (["sampler.mode=shared"], 200_000, 2048),
        (["sampler.mode=shared"], 4000, 1000),
        (["sampler=uniform", "sampler.active=50"], 20_000, 50),
        (["sampler=full", "sampler.active=50"], 20_000, "all"),
    ],
)
def test_null_settings_follow_from_the_data(words, labels, active):
    config = job.compose(*words)
    fill_in(config, 40_000, labels)
    assert (config.trainer.batch_size, config.sampler.active) == (256, active)
    assert config.network.output_scale == 1


@pytest.mark.parametrize(
    ("words", "proposer"),
    [
        ([], LSHProposer),
        (["sampler=auto"], LSHProposer),
        (["sampler=lsh"], LSHProposer),
        (["sampler=sketch"], SketchProposer),
        (["sampler=faiss"], FaissProposer),
        (["sampler=recent"], RecentProposer),
        (["sampler=uniform"], None),
        (["network.hidden=[8,8]", "network.hidden_active=[null,4]"], LSHProposer),
        (["trainer.evaluation=index"], LSHProposer),
        (["recipe=slide2020"], PublishedLSHProposer),
        (["recipe=slide2020", "sampler=uniform"], None),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_how_outputs_are_chosen(words, proposer, mode):
    config = job.compose(*words, f"sampler.mode={mode}")
    fill_in(config, 40_000, 200_000)
    sampler = build_network(config, 1000, 3000).output.sampler
    assert type(sampler.proposer) is (proposer or type(None))
    active = {"shared": 2048, "grouped": 192, "per_sample": 128}[mode]
    recipe = "recipe=slide2020" in words
    assert (sampler.mode, sampler.active) == (mode, 1000 if recipe else active)


def test_the_keys_of_a_sampler_reach_it():
    words = ["sampler.group_size=5", "sampler.lookups=3", "hash.K=7", "hash.L=3", "hash.probes=2"]
    words += ["sampler.proposer.best=9", "seed=4", "sampler.candidate_share=0.4"]
    sampler = built("sampler=auto", *words)
    assert (sampler.group_size, sampler.lookups, sampler.candidate_share) == (5, 3, 0.4)
    lsh = sampler.proposer
    assert lsh.sizes() == {"directions": 120, "num_tables": 3, "hashes_per_table": 7}
    assert (lsh.probes, lsh.best, lsh.seed) == (2, 9, 4)
    assert isinstance(lsh.hash, SimHash)
    assert isinstance(built("hash=dwta").proposer.hash, DWTA)
    assert built("sampler=sketch", "sampler.proposer.best=9").proposer.best == 9
    assert built("sampler=sketch").proposer.best == 16
    faiss = built("sampler=faiss").proposer
    assert (faiss.factory, faiss.best) == ("Flat", 16)
    faiss = built("sampler=faiss", "sampler.proposer.factory=Flat").proposer
    faiss.rebuild(torch.eye(3000, 512), None)
    assert faiss.candidates(torch.eye(512)[7:8]).indices[0] == 7


def built(*words):
    """The sampler of 3000 outputs."""
    config = job.compose(*words)
    fill_in(config, 40_000, 3000)
    return build_network(config, 1000, 3000).output.sampler


def test_auto_is_another_name_of_the_default():
    """Earlier versions had it as their default, and then it chose among samplers."""
    for words in (["sampler=auto"], ["sampler=auto", PER_SAMPLE, "trainer.evaluation=sampler"]):
        config, others = job.compose(*words), job.compose(*words[1:])
        assert config.sampler == others.sampler


@pytest.mark.parametrize(
    ("sampler", "words", "message"),
    [
        ("lsh", ["sampler.candidate_share=0.9", "schedule.per_output=4", "hash=dwta"], None),
        ("auto", ["hash.num_tables=4", "schedule=fixed", "schedule.every=9"], None),
        ("lsh", ["schedule.redraw_every=9"], "redraw_every .*: each rebuild draws new hash func"),
        ("slide2020", ["hash.probes=3"], "probes would .* the published method has nothing of it"),
        ("slide2020", ["schedule=fixed", "schedule.redraw_every=9"], None),
        ("uniform", ["hash=dwta"], "hash would have no effect: outputs are drawn uniformly; "),
        (
            "uniform",
            ["schedule=fixed"],
            "schedule would .*: outputs are drawn .*; choose sampler=l",
        ),
        ("uniform", ["sampler.lookups=2"], "lookups would have no effect: outputs are drawn unif"),
        ("uniform", ["sampler.group_size=2"], None),
        ("uniform", ["sampler.candidate_share=0.9"], "_share would have no effect: outputs are dr"),
        ("full", ["hash=dwta"], "hash would have no effect: all outputs are computed; choose s"),
        ("full", ["sampler.active=500"], "sampler.active would have no effect: all outputs are"),
        ("full", ["sampler.active=all"], None),
        ("full", ["sampler.group_size=2"], "group_size would have no effect: all outputs are comp"),
        (
            "lsh",
            ["sampler.active=all", "hash.num_tables=64"],
            "hash.num_tables .*: sampler.active=all",
        ),
        ("auto", ["sampler.active=all", "sampler.weighting=none"], "weighting .*give it a number"),
        ("lsh", ["sampler.active=all", "sampler.lookups=2"], "lookups .*: sampler.active=all comp"),
        ("recent", ["schedule=fixed"], "schedule would have no effect: no index is built; choose "),
        ("recent", ["hash.num_tables=3"], "num_tables would have no effect: no index is built; "),
        ("sketch", ["hash.num_tables=3"], "candidates do not come from hash tables; choose samp"),
        ("sketch", ["schedule=fixed", "schedule.every=9", "sampler.candidate_share=0.9"], None),
        ("faiss", ["hash=dwta"], "hash would have no effect: candidates do not come from hash "),
        (
            "faiss",
            ["schedule=fixed", "schedule.redraw_first=9"],
            "redraw_first .*: candidates do not come from hash",
        ),
        ("faiss", ["schedule.early=9", "sampler.lookups=2", "sampler.group_size=3"], None),
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


@pytest.mark.parametrize("mode", ["per_sample", "shared"])
@pytest.mark.parametrize("word", ["sampler.group_size=16", "sampler.lookups=4"])
def test_settings_of_groups_need_groups(tmp_path, mode, word):
    """Also where they name the defaults."""
    words = job.tiny(tmp_path, word, f"sampler.mode={mode}")
    key = word.partition("=")[0]
    said = f"error: {key} would have no effect: sampler.mode={mode}"
    assert job.failure(*words) == said
    assert not list(tmp_path.iterdir())
    check_used(job.compose(word), [key])


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
        (
            ["sampler=faiss"],
            "FaissProposer searches on the CPU; with .*=cuda use sampler=lsh, sketch, recent or u",
        ),
        (["sampler=sketch"], None),
        (["trainer.evaluation=index"], "use trainer.evaluation=exact"),
        ([], None),
    ],
)
def test_what_searches_on_the_cpu(monkeypatch, words, said):
    monkeypatch.setattr(recipe, "run_device", lambda _: torch.device("cuda"))
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
        (["sampler=sketch", "network.hidden_active=[null,8]"], True),
        (["sampler=sketch", "network.hidden_active=[8,null]"], False),
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


@pytest.mark.parametrize(
    ("words", "schedule", "numbers"),
    [
        ([], by_updates, {"per_output": 2.0, "at_least": 16, "early": 8}),
        (
            [f"schedule.{key}={n}" for key, n in (("per_output", 4), ("early", 3))],
            by_updates,
            {"per_output": 4, "at_least": 16, "early": 3},
        ),
        (["schedule.at_least=2"], by_updates, {"per_output": 2.0, "at_least": 2, "early": 8}),
        (["schedule=backoff"], backoff, {"first": 6400, "growth": 0.7}),
        (["schedule=fixed", "schedule.every=9"], fixed, {"every": 9}),
    ],
)
@pytest.mark.parametrize("sampler", ["lsh", "sketch", "faiss", "slide2020"])
def test_schedules(sampler, words, schedule, numbers):
    found = built(f"sampler={sampler}", *words).rebuild_due
    assert (found.func, found.keywords) == (schedule, numbers)
    # Hydra's partials check their function at each call, and a step calls the schedules.
    assert type(found) is partial


def test_a_rebuild_by_updates():
    """By a run: after 8 steps, and when steps have computed twice as many outputs as there are."""
    config = job.compose("network.hidden=[8]", "sampler.active=40", "schedule.per_output=1.5")
    fill_in(config, 40_000, 3000)
    layer = build_network(config, 60, 3000).output
    labels = Pattern.from_lists([[b] for b in range(64)])
    computed, steps, due = 0, 0, []
    for step in range(80):
        if not due or (len(due) == 1 and steps == 8) or (computed >= 4500 and steps >= 16):
            due.append(step)
            computed = steps = 0
        before = layer.sampler.rebuilds
        active = layer.loss(torch.rand(64, 8), labels, ActiveLoss("squared_hinge"))[1]
        assert layer.sampler.rebuilds - before == (due[-1] == step)
        computed, steps = computed + active.computed, steps + 1
    assert len(due) > 3
    assert due[1] == 8


def test_the_first_layer_averages_over_an_epoch():
    config = read_config(["optimizer.betas=[0.5,0.9]", "trainer.batch_size=10"])
    fill_in(config, 1000, 80)
    network = build_network(config, 60, 80)
    rest, first = build_optimizer(config, network).param_groups
    assert (rest["betas"], rest["rowwise"]) == ((0.5, 0.9), False)
    assert (first["betas"], first["rowwise"]) == ((0.5, 0.99), True)
    config = read_config(["recipe=slide2020"])
    fill_in(config, 10**6, 80)
    rest, first = build_optimizer(config, network).param_groups
    assert (first["betas"], first["rowwise"]) == (rest["betas"], rest["rowwise"])


def test_wider_outputs_have_narrower_layers():
    widths = []
    for labels in (100_000, 100_001, 3_000_001):
        config = read_config([])
        fill_in(config, 1000, labels)
        widths += config.network.hidden
    assert widths == [512, 256, 128]
