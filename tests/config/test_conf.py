"""Each choice of each group composes and trains; recipes, and what wins over them."""

import re
from itertools import zip_longest

import pytest
from helpers import datafiles, job
from omegaconf import OmegaConf

from slide.config import build_network, fill_in
from slide.config.recipe import check_used

GROUPS = sorted(path.name for path in job.CONF.iterdir() if path.is_dir())
CHOICES = [(group, path.stem) for group in GROUPS for path in sorted(job.CONF.glob(f"{group}/*"))]
OF_FILES = [c for g, c in CHOICES if g == "dataset" and {"root", "path"} & set(job.raw(g, c))]
# Read as dataset=xmc is; tests/data/sources/test_catalogue.py has what is their own.
AS_XMC = [c for c in OF_FILES if c != "xmc" and job.raw("dataset", c).get("format") == "xmc"]


def small(folder, group, choice):
    """Overrides that let any choice train in a moment."""
    sampler = choice if group == "sampler" else None
    more = ["trainer.max_steps=2", *([f"sampler={sampler}"] if sampler else [])]
    more += ["sampler.proposer.factory='IVF2,SQ8'"] if sampler == "faiss" else []
    if sampler in (None, "lsh", "slide2020"):
        more += ["hash.num_tables=2"]
        published = group == "recipe" or choice == "slide2020"
        more += [f"hash.hashes_per_table={2 if published else 'null'}"]
    more += ["ranker=none"] if group not in ("ranker", "recipe") else []
    more += ["sampler.active=all"] if (group, choice) == ("sampler", "full") else []
    known = job.raw("dataset", choice if group == "dataset" else "synthetic")
    overrides = (re.match(r"(dataset\.)?(\w+)", override) for override in job.tiny(folder, *more))
    return [match.string for match in overrides if not match[1] or match[2] in known]


def file_overrides(folder, choice):
    """Overrides for a data set of files, which lie in ``folder/files``."""
    config = job.raw("dataset", choice)
    place = f"dataset.path={folder}/files/rows.csv"
    place = place if "path" in config else f"dataset.root={folder}/files"
    return [place, *(["dataset.fetch=null"] if "fetch" in config else [])]


@pytest.mark.parametrize("choice", ["bibtex", "xmc", "table", "mnist"])
def test_missing_files_are_named_with_what_to_do(tmp_path, choice):
    words = [*small(tmp_path, "dataset", choice), *file_overrides(tmp_path, choice)]
    message = job.failure(f"dataset={choice}", *words)
    assert re.search(rf"{tmp_path}/files/\S+ is missing", message)
    assert job.raw("dataset", choice).hint in message
    assert not list(tmp_path.iterdir())


def test_sets_that_are_read_as_xmc_have_its_keys_and_a_hint_of_their_own():
    known = job.raw("dataset", "xmc")
    for found in (job.raw("dataset", choice) for choice in AS_XMC):
        assert found.keys() == known.keys()
        assert found.hint not in ("", known.hint)


# Of these groups, all other runs have the default one, and say which keys it has.
DEFAULTS = {"hash": "simhash", "loss": "squared_hinge", "network": "mlp", "optimizer": "adam"}
TRAINED = [c for c in CHOICES if c[1] not in AS_XMC and c not in DEFAULTS.items()]
# Choices of other groups are tried along with data sets.
ALONG = [c for c in TRAINED if c[0] in ("loss", "lr_schedule", "ranker")]
SETS = [c for c in TRAINED if c[0] == "dataset"]
OTHERS = [[c] for c in TRAINED if c not in ALONG + SETS]


@pytest.mark.parametrize("chosen", [*zip_longest(SETS, ALONG), *OTHERS], ids=str)
def test_each_choice_trains(tmp_path, chosen):
    chosen = dict(filter(None, chosen))
    (group, choice), *_ = chosen.items()
    overrides = small(tmp_path, group, choice)
    if group == "dataset" and choice in OF_FILES:
        overrides += file_overrides(tmp_path, choice)
        (tmp_path / "files").mkdir()
        config = OmegaConf.to_container(job.raw(group, choice))
        data = job.make_data(tmp_path, **job.WITH_HELD)
        datafiles.write_inputs(tmp_path / "files", data, config)
    job.main(*overrides, *(f"{name}={own}" for name, own in chosen.items()))
    assert job.checkpoint(tmp_path / "run")["step"] == 2
    noted = OmegaConf.load(tmp_path / "run/config.yaml")
    if group == "dataset":
        assert noted.dataset.name == choice, "a recipe and a run folder go by this name"
    for name, own in (DEFAULTS | chosen).items() if group != "recipe" else ():
        if name != "dataset":
            shared = OmegaConf.load(job.CONF / "train.yaml").get(name, {})
            assert noted[name].keys() == shared.keys() | job.raw(name, own).keys() - {"look_up"}


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_each_file_begins_with_its_command(group, choice):
    first = (job.CONF / group / f"{choice}.yaml").read_text().splitlines()[:2]
    commands = [line for line in first if line.startswith("# python train.py")]
    assert commands, "no command in the first lines"
    words = commands[0].split()[3:]
    assert all("=" in word for word in words)
    check_used(job.compose(*words), [word.partition("=")[0] for word in words])


RECIPES = sorted(path.stem for path in job.CONF.glob("recipe/*.yaml"))


def test_first_weights_of_the_published_setting():
    config = job.compose("recipe=slide2020", "dataset=amazon670k")
    fill_in(config, 1000, 2000)
    network = build_network(config, 3000, 2000)
    for layer in network.layers():
        assert layer.weight.std().item() == pytest.approx(0.01, rel=0.02)
        assert layer.bias.std().item() == pytest.approx(0.01, rel=0.2)


def test_a_key_on_the_command_line_wins_over_a_recipe():
    config = job.compose("recipe=slide2020", "hash.num_tables=7", "hash=simhash")
    assert config.hash.family._target_ == "slide.SimHash"
    assert config.sampler.proposer.num_tables == 7
    assert config.hash.hashes_per_table == 6


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_keys_of_a_recipe_are_taken(recipe):
    config = job.compose(f"recipe={recipe}", "dataset=debian")
    for group, values in job.raw("recipe", recipe).items():
        for key in values if group != "defaults" else ():
            assert config[group][key] == values[key], (group, key)
