"""Each choice of each group composes and trains; a new file in conf/ is covered by itself."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from helpers import datafiles, job
from omegaconf import OmegaConf

import train
from slide.files import read_tensors
from slide.sparse import CSR

GROUPS = sorted(path.name for path in job.CONF.iterdir() if path.is_dir() and path.name != "hydra")
CHOICES = [(group, path.stem) for group in GROUPS for path in sorted(job.CONF.glob(f"{group}/*"))]
# Keys that are no settings: what a file builds, and what it is called.
INTERNAL = {"_target_", "_partial_", "name", "hint"}
HELP = yaml.safe_load((job.CONF / "hydra/help/slide.yaml").read_text())["template"]


def raw(group, choice):
    return OmegaConf.load(job.CONF / group / f"{choice}.yaml")


def small(folder, group, choice):
    """Overrides that let any choice train in a moment."""
    # Not sampler.active, which a full sampler has not.
    more = ["trainer.max_steps=2", "selection.active=32", "hash.num_tables=2"]
    more += ["hash.hashes_per_table=2"] if group == "recipe" else []
    more += ["ranker=none"] if group == "loss" else []
    known = raw("dataset", choice if group == "dataset" else "synthetic")
    overrides = (re.match(r"(dataset\.)?(\w+)", override) for override in job.tiny(folder, *more))
    return [match.string for match in overrides if not match[1] or match[2] in known]


def give_files(folder, choice):
    """Overrides for a data set of files, before which it says that these are missing."""
    config = OmegaConf.to_container(raw("dataset", choice))
    files = folder / "files"
    overrides = [f"dataset.root={files}", *(["dataset.fetch=null"] if "fetch" in config else [])]
    message = job.failure(f"dataset={choice}", *small(folder, "dataset", choice), *overrides)
    assert re.search(rf"{files}/\S+ is missing", message)
    assert config["hint"] in message
    assert not list(folder.iterdir())
    files.mkdir()
    datafiles.write_inputs(files, job.make_data(folder), config)
    return overrides


def test_all_groups_were_found():
    assert {"dataset", "hash", "sampler", "schedule", "recipe", "loss"} <= set(GROUPS)
    assert ("sampler", "faiss") in CHOICES


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_each_choice_trains(tmp_path, group, choice, capsys):
    overrides = small(tmp_path, group, choice)
    if group == "dataset" and "root" in raw(group, choice):
        overrides += give_files(tmp_path, choice)
    job.main(f"{group}={choice}", *overrides)
    assert read_tensors(tmp_path / "run/checkpoint.pt")["step"] == 2
    noted = OmegaConf.load(tmp_path / "run/config.yaml")
    if group == "dataset":
        assert noted.dataset.name == choice, "a recipe and a run folder go by this name"
    elif group != "recipe":
        assert noted[group].keys() == raw(group, choice).keys()


@pytest.mark.parametrize("format", ["svmlight", "npz"])
def test_own_files_of_other_formats(tmp_path, format):
    readme = (job.ROOT / "datasets/xmc/README.md").read_text().replace("\\\n", "")
    (command,) = re.findall(rf"python train.py (.*dataset.format={format}.*)", readme)
    overrides = [f"dataset.root={tmp_path}" if "root" in o else o for o in command.split()]
    config = {key[8:]: value for key, _, value in (o.partition("=") for o in overrides)}
    first = {key: int(value) for key, value in config.items() if key.startswith("first_")}
    datafiles.write_rows(tmp_path, job.make_data(tmp_path), config | first)
    job.main(*overrides, *small(tmp_path, "dataset", "xmc"))
    assert read_tensors(tmp_path / "run/checkpoint.pt")["step"] == 2


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_each_file_begins_with_its_command(group, choice):
    first = (job.CONF / group / f"{choice}.yaml").read_text().splitlines()[:2]
    commands = [line for line in first if line.startswith("# python train.py")]
    assert commands, "no command in the first lines"
    words = commands[0].split()[3:]
    assert all("=" in word for word in words)
    job.compose(*words)


def test_the_published_setting():
    config = job.compose("recipe=slide2020", "dataset=amazon670k")
    assert config.network.hidden == [128]
    assert not config.network.hidden_active
    assert config.network.dropout == 0
    assert config.network.prior_bias is False
    assert config.hash.family._target_ == "slide.hashing.dwta.DWTA"
    assert (config.hash.hashes_per_table, config.hash.num_tables) == (6, 50)
    assert config.hash.bin_size == 8
    assert (config.hash.bucket_capacity, config.hash.bucket_policy) == (128, "fifo")
    assert (config.hash.norm, config.hash.center) == ("cosine", False)
    assert config.sampler._target_ == "slide.sampling.indexed_sampling.LSHSampler"
    assert (config.sampler.mode, config.sampler.active) == ("per_sample", 1000)
    assert (config.sampler.candidate_share, config.sampler.weighting) == (1.0, "none")
    assert config.sampler.rebuild == {
        "_target_": "slide.sampling.schedules.fixed",
        "_partial_": True,
        "every": 6400,
    }
    assert config.sampler.redraw.every == 128_000
    assert config.loss.name == "softmax"
    assert config.optimizer.lr == 1e-4
    assert config.optimizer.betas == [0.9, 0.999]
    assert not config.optimizer.correct_skipped
    assert config.trainer.batch_size == 128
    assert config.dataset.num_labels == 670_091


def test_a_key_on_the_command_line_wins_over_a_recipe():
    config = job.compose(
        "recipe=slide2020", "optimizer.lr=0.5", "hash.num_tables=7", "hash=simhash"
    )
    assert config.optimizer.lr == 0.5
    assert config.hash.family._target_ == "slide.hashing.simhash.SimHash"
    assert config.sampler.family.num_tables == 7
    assert config.hash.hashes_per_table == 6


@pytest.mark.parametrize("recipe", [choice for group, choice in CHOICES if group == "recipe"])
def test_the_keys_of_a_recipe_are_taken(recipe):
    config = job.compose(f"recipe={recipe}", "dataset=debian")
    for group, values in raw("recipe", recipe).items():
        for key in values if group != "defaults" else ():
            assert config[group][key] == values[key], (group, key)
    whole = job.compose(f"recipe={recipe}", "dataset=debian", return_hydra_config=True)
    assert whole.hydra.runtime.choices.items() >= dict(overridden(recipe)).items()
    for sampler in ("full", "uniform", "faiss"):
        job.compose(f"recipe={recipe}", f"sampler={sampler}")


def overridden(recipe):
    """Group and choice of each ``override`` among a recipe's defaults."""
    for entry in raw("recipe", recipe).get("defaults", []):
        for name, choice in entry.items():
            yield name.removeprefix("override /"), choice


def test_the_default_recipe_is_taken_by_itself():
    assert job.compose() == job.compose("recipe=default")
    assert job.compose() != job.compose("recipe=fast")


@pytest.mark.parametrize("recipe", ["default", "fast"])
def test_any_recipe_with_or_without_a_ranker(recipe):
    without = job.compose(f"recipe={recipe}", "ranker=none")
    assert not without.get("ranker")
    linear = job.compose(f"recipe={recipe}", "ranker=linear", "ranker.depth=7")
    assert linear.ranker._target_ == "slide.ranking.linear_ranker.LinearRanker"
    assert linear.ranker.depth == 7


def test_null_settings_follow_from_the_data():
    config = job.compose("sampler.mode=per_sample")
    train.fill_in(config, 40_000, 20_000)
    assert (config.trainer.batch_size, config.sampler.active) == (256, 2048)
    assert config.network.output_scale == 1
    for sampler, scale in (("lsh", 0.1), ("full", 0.1), ("lsh", 1)):
        mode = "per_sample" if scale == 1 else "shared"
        config = job.compose(f"sampler={sampler}", f"selection.mode={mode}")
        train.fill_in(config, 40_000, 200_000)
        assert config.network.output_scale == scale
    config = job.compose("trainer.batch_size=7", "selection.active=9")
    train.fill_in(config, 40_000, 20_000)
    assert (config.trainer.batch_size, config.sampler.active) == (7, 9)


def test_settings_of_the_network_reach_it():
    scales = ["network.init_scale=0.01", "network.output_scale=0.5"]
    config = job.compose(*scales, "network.input_rate=3", "optimizer.lr=0.5")
    config.selection.active = 32
    network = train.build_network(config, 1000, 80)
    assert network.first.weight.detach().std() * 512**0.5 == pytest.approx(0.01, rel=0.05)
    assert network.output.weight.abs().max().item() == pytest.approx(0.5 / 512**0.5, rel=0.01)
    rest, first = train.build_optimizer(config, network).param_groups
    assert (rest["lr"], first["lr"]) == (0.5, 1.5)
    assert first["params"][0] is network.first.weight


@pytest.mark.parametrize("mode", ["shared", "per_sample"])
def test_hidden_layers_with_active_sets(tmp_path, mode):
    shape = ["network.hidden=[64,32]", "network.hidden_active=[16,8]", f"sampler.mode={mode}"]
    job.main(*job.tiny(tmp_path, *shape, *job.SAMPLED))
    assert read_tensors(tmp_path / "run/checkpoint.pt")["step"] == 16


def test_the_second_set_follows_from_the_first_output():
    shape = ["network.hidden=[64,32]", "network.hidden_active=[16,8]", "sampler.mode=per_sample"]
    shape += ["network.dropout=0", "network.output_scale=1"]
    config = job.compose(*shape, "sampler.active=32", "sampler.candidate_share=1.0")
    rows = CSR(
        np.array([0, 3, 6]),
        np.array([1, 5, 9, 2, 30, 59], np.int32),
        np.array([1, 2, 1, 1, 1, 3], np.float32),
    )
    network = train.build_network(config, 60, 80)
    second = network.hidden[0]
    seen = []
    whole = second.sampler.select

    def select(queries, labels):
        seen.append((queries.detach().clone(), whole(queries, labels)))
        return seen[-1][1]

    second.sampler.select = select
    network.encode(rows)
    first_draw = network.first.sampler.selections, second.sampler.selections
    queries, chosen = seen[-1]
    # What the second layer looks up is the first layer's output: 16 of 64 neurons, no more.
    assert queries.shape == (2, 64)
    assert ((queries != 0).sum(1) <= 16).all()
    assert (queries != 0).any(1).all()
    assert [len(chosen.row(b)) for b in range(2)] == [8, 8]

    def again(change):
        """The second set where all draws are as before and only ``change`` has been made."""
        network.first.sampler.selections, second.sampler.selections = (n - 1 for n in first_draw)
        change()
        network.encode(rows)
        return seen[-1]

    same = again(lambda: None)
    assert torch.equal(same[0], queries)
    assert same[1].ids.tolist() == chosen.ids.tolist()
    other = again(lambda: network.first.weight.data.neg_())
    assert not torch.equal(other[0], queries)
    assert other[1].ids.tolist() != chosen.ids.tolist()


def settings_of(group, config):
    """The keys of a group that a user sets: not internal, and not taken from another group.

    The keys of ``selection`` are no settings but where the samplers take their defaults from.
    """
    for key in config:
        value = OmegaConf.to_container(config)[key]
        derived = isinstance(value, str) and re.match(r"\$\{(?!selection\.)", value)
        built = isinstance(value, dict)
        if key not in INTERNAL and not derived and not built and group != "recipe":
            yield f"{group}.{key}"


def keys_in_help():
    """``group.key`` of each line that explains some; ``.key`` goes with the group before it."""
    found = set()
    for line in HELP.splitlines():
        if begin := re.match(r"\s+(\w+)(\.\w+(?:, \.\w+)*)", line):
            found |= {begin[1] + key for key in begin[2].split(", ")}
    return found


def test_the_help_explains_all_keys():
    expected = {key for group, choice in CHOICES for key in settings_of(group, raw(group, choice))}
    config = OmegaConf.load(job.CONF / "train.yaml")
    for group in ("trainer", "runtime", "transform"):
        expected |= set(settings_of(group, config[group]))
    assert {"hash.norm", "trainer.holdout", "dataset.root"} <= expected
    assert expected - keys_in_help() == set()
    assert keys_in_help() - expected == set(), "the help explains keys that do not exist"
    for key in ("seed", "run_dir", "resume"):
        assert re.search(rf"^\s+{key} ", HELP, re.MULTILINE)


def test_the_help_lists_all_choices():
    for group in GROUPS:
        choices = {choice for other, choice in CHOICES if other == group}
        if len(choices) == 1:
            continue
        listed = re.search(rf"^\s+{group}\s+(\w+(?:\s+\|\s+\w+)+)$", HELP, re.MULTILINE)
        assert listed, f"{group} is not listed"
        names = re.split(r"\s+\|\s+", listed[1])
        assert len(names) == len(choices)
        assert set(names) == choices
        defaults = OmegaConf.load(job.CONF / "train.yaml").defaults
        default = next(entry[group] for entry in defaults if group in entry)
        assert names[0] == default
    assert Path(train.__file__).with_name("conf") == job.CONF
