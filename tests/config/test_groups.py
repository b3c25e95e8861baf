"""Each choice of each group composes and trains; a new file in conf/ is covered by itself."""

import importlib
import re

import pytest
from helpers import datafiles, job
from omegaconf import OmegaConf

from slide.config.recipe import check_used

GROUPS = sorted(path.name for path in job.CONF.iterdir() if path.is_dir())
CHOICES = [(group, path.stem) for group in GROUPS for path in sorted(job.CONF.glob(f"{group}/*"))]
# Rooms whose names a configuration may use.
PUBLIC = ("", ".data", ".ranking", ".sampling", ".training")


def small(folder, group, choice):
    """Overrides that let any choice train in a moment."""
    more = ["trainer.max_steps=2", *([f"sampler={choice}"] if group == "sampler" else [])]
    if group != "sampler" or choice in ("lsh", "slide2020"):
        more += ["hash.num_tables=2"]
        published = group == "recipe" or choice == "slide2020"
        more += [f"hash.hashes_per_table={2 if published else 'null'}"]
    more += ["ranker=none"] if group == "loss" else []
    more += ["sampler.active=all"] if (group, choice) == ("sampler", "full") else []
    known = job.raw("dataset", choice if group == "dataset" else "synthetic")
    overrides = (re.match(r"(dataset\.)?(\w+)", override) for override in job.tiny(folder, *more))
    return [match.string for match in overrides if not match[1] or match[2] in known]


def give_files(folder, choice):
    """Overrides for a data set of files, before which it says that these are missing."""
    config = OmegaConf.to_container(job.raw("dataset", choice))
    files = folder / "files"
    overrides = [f"dataset.root={files}", *(["dataset.fetch=null"] if "fetch" in config else [])]
    message = job.failure(f"dataset={choice}", *small(folder, "dataset", choice), *overrides)
    assert re.search(rf"{files}/\S+ is missing", message)
    assert config["hint"] in message
    assert not list(folder.iterdir())
    files.mkdir()
    datafiles.write_inputs(files, job.make_data(folder, **job.WITH_HELD), config)
    return overrides


def test_all_groups_were_found():
    assert {"dataset", "hash", "sampler", "schedule", "recipe", "loss"} <= set(GROUPS)
    assert ("sampler", "faiss") in CHOICES


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_each_choice_trains(tmp_path, group, choice, capsys):
    overrides = small(tmp_path, group, choice)
    if group == "dataset" and "root" in job.raw(group, choice):
        overrides += give_files(tmp_path, choice)
    job.main(f"{group}={choice}", *overrides)
    assert job.checkpoint(tmp_path / "run")["step"] == 2
    noted = OmegaConf.load(tmp_path / "run/config.yaml")
    if group == "dataset":
        assert noted.dataset.name == choice, "a recipe and a run folder go by this name"
    elif group != "recipe":
        shared = OmegaConf.load(job.CONF / "train.yaml").get(group, {})
        assert noted[group].keys() == shared.keys() | job.raw(group, choice).keys() - {"look_up"}


@pytest.mark.parametrize("format", ["svmlight", "npz"])
def test_own_files_of_other_formats(tmp_path, format):
    readme = (job.ROOT / "datasets/xmc/README.md").read_text().replace("\\\n", "")
    (command,) = re.findall(rf"python train.py (.*dataset.format={format}.*)", readme)
    overrides = [f"dataset.root={tmp_path}" if "root" in o else o for o in command.split()]
    config = {key[8:]: value for key, _, value in (o.partition("=") for o in overrides)}
    first = {key: int(value) for key, value in config.items() if key.startswith("first_")}
    data = job.make_data(tmp_path, **job.WITH_HELD)
    datafiles.write_rows(tmp_path, data, config | first)
    job.main(*overrides, *small(tmp_path, "dataset", "xmc"))
    assert job.checkpoint(tmp_path / "run")["step"] == 2


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_each_file_begins_with_its_command(group, choice):
    first = (job.CONF / group / f"{choice}.yaml").read_text().splitlines()[:2]
    commands = [line for line in first if line.startswith("# python train.py")]
    assert commands, "no command in the first lines"
    words = commands[0].split()[3:]
    assert all("=" in word for word in words)
    check_used(job.compose(*words), [word.partition("=")[0] for word in words])


@pytest.mark.parametrize("path", sorted(job.CONF.rglob("*.yaml")), ids=lambda path: path.stem)
def test_targets_are_public_names(path):
    for target in re.findall(r"_target_: (\S+)", path.read_text()):
        room, _, name = target.rpartition(".")
        assert room.removeprefix("slide") in PUBLIC, target
        assert hasattr(importlib.import_module(room), name), target
