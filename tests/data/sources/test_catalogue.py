"""Configurations of data sets that are fetched: whether they agree with readers and READMEs."""

import bz2
import re
from functools import partial
from inspect import signature
from urllib.parse import urlsplit

import numpy as np
import pytest
from helpers import datafiles, job
from helpers import server as servers
from helpers.archives import as_tar, as_zip
from hydra.utils import instantiate
from omegaconf import OmegaConf

import slide.data
from slide.data.fetching import download, parse_mirrors
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


@pytest.mark.parametrize("name", FETCHED)
def test_addresses(name):
    urls = [remote.url for mirror in mirrors(name) for remote in mirror]
    assert len(set(urls)) == len(urls)
    for url in urls:
        parts = urlsplit(url)
        assert parts.hostname
        assert "." in parts.hostname
        if parts.hostname == "drive.google.com":
            assert re.fullmatch(
                r"export=download&id=[\w-]{25,}(&resourcekey=0-[\w-]{22})?", parts.query
            )
        else:
            assert not parts.query
    plain = ["drive.google.com" not in url for url in urls]
    assert plain == sorted(plain, reverse=True), "Drive comes last"


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


@pytest.mark.parametrize("name", REPOSITORY)
def test_propensities(name):
    """Those of Jain et al. 2016, as the scripts of AnnexML have them too."""
    expected = [0.55, 1.5]
    if name == "wikilshtc325k":
        expected = [0.5, 0.4]
    elif name in ("amazon670k", "amazon3m", "lf_amazontitles131k"):
        expected = [0.6, 2.6]
    assert CONFIGS[name]["propensity"] == expected


def pack(remote, files):
    """What a server would have at an address, and the kind of hash that it has."""
    (source, *_), names = remote.saves.values(), list(remote.saves)
    if source is None:
        return files[names[0]]
    if remote.url.endswith(".bz2"):
        return bz2.compress(files[names[0]])
    inside = {}
    if isinstance(source, dict):
        # All rows in one file, and two lists of their numbers: here the test rows come first.
        parts = [files[name].splitlines() for name in ("test.txt", "train.txt")]
        sizes = [len(part) - 1 for part in parts]
        header = b" ".join([b"%d" % sum(sizes), *parts[0][0].split()[1:]])
        inside[source["member"]] = b"\n".join([header, *parts[0][1:], *parts[1][1:]]) + b"\n"
        test, train = range(1, sizes[0] + 1), range(sizes[0] + 1, sum(sizes) + 1)
        for name, rows in (("train.txt", train), ("test.txt", test)):
            inside[remote.saves[name]["rows"]] = b"".join(b"%d 1\n" % row for row in rows)
    else:
        inside = {member: files[name] for name, member in remote.saves.items()}
    return as_tar(inside, "w:gz") if remote.url.endswith(".tar.gz") else as_zip(inside)


@pytest.mark.parametrize("name", REPOSITORY)
def test_each_set_is_fetched_from_its_last_mirror(name, tmp_path):
    """Where all others answer 404; the rows are generated, so their hashes are not compared."""
    data = job.make_data(tmp_path)
    made = tmp_path / "made"
    made.mkdir()
    datafiles.write_inputs(made, data, CONFIGS[name])
    files = {path.name: path.read_bytes() for path in made.iterdir()}
    with servers.serving() as server:
        routed = []
        for i, mirror in enumerate(mirrors(name)):
            last = i == len(mirrors(name)) - 1
            routed.append([])
            for remote in mirror:
                path = f"/{i}/{urlsplit(remote.url).path.rpartition('/')[2]}"
                url = server.add(path, pack(remote, files), status=200 if last else 404)
                routed[-1].append({"url": url, "saves": dict(remote.saves)})
        config = CONFIGS[name] | {
            **{key: job.SIZES[key] for key in COUNTS.values()},
            "root": str(tmp_path / "root"),
            "cache": str(tmp_path / "cache"),
            "fetch": partial(download, mirrors=routed),
        }
        opened = instantiate(config)
    for found, expected in ((opened.train, data.train), (opened.test, data.test)):
        assert np.array_equal(found.labels.indices, expected.labels.indices)
        assert np.array_equal(found.features.indptr, expected.features.indptr)
        np.testing.assert_allclose(found.features.values, expected.features.values, rtol=1e-6)
    kept = {p.name for p in (tmp_path / "root").iterdir() if not p.name.startswith(".")}
    assert kept == set(files)


@pytest.mark.parametrize("path", sorted((job.ROOT / "conf" / "dataset").glob("*.yaml")))
def test_every_configuration_opens_with_its_command_and_fits_its_function(path):
    assert path.read_text().startswith(f"# python train.py dataset={path.stem}")
    assert readme(path.stem).startswith(f"# {path.stem}\n")
    options = dict(CONFIGS[path.stem])
    package, _, name = options.pop("_target_").rpartition(".")
    assert package == "slide.data"
    assert set(options) <= set(signature(getattr(slide.data, name)).parameters)
    assert options["name"] == path.stem
