"""Configurations of data sets that are fetched: whether they agree with readers and READMEs."""

import re
from inspect import signature

import pytest
from helpers import job
from omegaconf import OmegaConf

import slide.data
from slide.data.fetching import parse_mirrors
from slide.data.sources.mnist import IDX_FILES

CONFIGS = {
    path.stem: OmegaConf.to_object(OmegaConf.create({"dataset": job.raw("dataset", path.stem)}))[
        "dataset"
    ]
    for path in sorted((job.CONF / "dataset").glob("*.yaml"))
}
FETCHED = [name for name, config in CONFIGS.items() if "mirrors" in (config.get("fetch") or {})]
REPOSITORY = [name for name in FETCHED if CONFIGS[name]["_target_"] == "slide.data.xmc"]
COUNTS = {
    "train rows": "train_samples",
    "test rows": "test_samples",
    "features": "num_features",
    "labels": "num_labels",
}


def readme(name):
    return (job.ROOT / "datasets" / name / "README.md").read_text()


def mirrors(name):
    return parse_mirrors(CONFIGS[name]["fetch"]["mirrors"])


def wanted(name):
    """The files that the reader of a set asks for."""
    config = CONFIGS[name]
    if config["_target_"] == "slide.data.mnist":
        return [file for pair in IDX_FILES.values() for file in pair]
    keys = ("file", "train_file", "train_labels_file", "test_file", "test_labels_file")
    return [config[key] for key in keys if config.get(key)]


@pytest.mark.parametrize("name", FETCHED)
def test_each_mirror_has_the_files_that_are_read(name):
    assert CONFIGS[name]["fetch"]["_target_"] == "slide.data.download"
    assert mirrors(name)
    for mirror in mirrors(name):
        saved = [save for remote in mirror for save in remote.saves]
        assert sorted(save.removesuffix(".gz") for save in saved) == sorted(wanted(name))


@pytest.mark.parametrize("name", REPOSITORY)
def test_readme_and_configuration_agree(name):
    config, text = CONFIGS[name], readme(name)
    assert config["name"] == name
    assert config["root"] == f"datasets/{name}"
    head, _, row = re.findall(r"^\|(.*)\|$", text, re.MULTILINE)
    table = dict(zip(head.split("|"), row.split("|"), strict=True))
    table = {key.strip(): value.strip() for key, value in table.items()}
    for column, key in COUNTS.items():
        assert table[column] == f"{config[key]:,}"
    assert 1 < float(table["labels a row"]) < 100
    for mirror in mirrors(name):
        for remote in mirror:
            assert f"<{remote.url}>" in text
            if remote.hash:
                assert remote.hash.partition(":")[2] in text
    assert "icence" in text
    for file in (config["train_file"], config["test_file"]):
        assert f"`{file}`" in text


@pytest.mark.parametrize("path", sorted((job.ROOT / "conf" / "dataset").glob("*.yaml")))
def test_every_configuration_opens_with_its_command_and_fits_its_function(path):
    assert path.read_text().startswith(f"# python train.py dataset={path.stem}")
    assert readme(path.stem).startswith(f"# {path.stem}\n")
    options = dict(CONFIGS[path.stem])
    package, _, name = options.pop("_target_").rpartition(".")
    assert package == "slide.data"
    assert set(options) <= set(signature(getattr(slide.data, name)).parameters)
    assert options["name"] == path.stem
