"""Search among the candidates of the index that a model was trained with."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from helpers import job
from helpers.answers import assert_same

import slide
from slide.model import Model, load
from slide.model.folder import MODEL_FOLDER
from slide.sampling import fixed, sketch
from slide.utils.tensor_folder import Written, read_folder, write_folder

pytestmark = pytest.mark.usefixtures("one_thread")
FAMILIES = {"simhash": slide.SimHash, "dwta": partial(slide.DWTA, bin_size=4)}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return job.make_data(tmp_path_factory.mktemp("data"))


def trained(data, proposer, **options):
    """A network after some steps, with its index."""
    torch.manual_seed(0)
    rebuild = partial(fixed, every=16)
    options = {"active": 20, "rebuild": rebuild, "seed": 5, **options}
    sampler = partial(slide.ActiveSampler, proposer=proposer, **options)
    network = slide.SlideNetwork(60, [8], 80, sampler)
    optimizer = slide.RowSparseAdam(network.parameters(), lr=0.02)
    for _ in range(6):
        hidden = network.encode(data.test.features)
        mean, _ = network.output.loss(hidden, data.test.labels, slide.ActiveLoss("bce"))
        optimizer.zero_grad()
        mean.backward()
        optimizer.step()
    return network


def as_opened(network):
    """Let an index be as in a first rebuild, but for what inputs have determined."""
    index = network.output.sampler.proposer
    assert not torch.equal(index.projection.mean_input, torch.zeros(8))
    index.projection.take(**index.projection.tensors())
    index.rebuilds = 0
    network.output.sampler.forget_index()


def kind_of(folder):
    """What ``model.json`` says of the index."""
    return json.loads((folder / "model.json").read_text())["index"]


@pytest.mark.parametrize("family", FAMILIES)
def test_tables_answer_as_before(data, family, tmp_path):
    shape = {"hashes_per_table": 3, "num_tables": 2, "probes": 1}
    network = trained(data, partial(slide.LSHProposer, family=FAMILIES[family], **shape))
    proposer, model = network.output.sampler.proposer, Model(network)
    model.save(tmp_path / "m")
    options = {} if family == "simhash" else {"bin_size": 4}
    assert kind_of(tmp_path / "m") == {
        **{"proposer": "tables", "seed": 5, "family": family, "options": options},
        **shape,
    }
    opened = assert_answers_as_before(data, network, tmp_path / "m")
    own = opened.network.output.sampler.proposer
    assert {name: getattr(own, name) for name in shape} == shape
    assert isinstance(own.hash, FAMILIES[family] if family == "simhash" else slide.DWTA)
    np.testing.assert_array_equal(own.codes, proposer.codes)


def test_sketches_answer_as_before(data, tmp_path, monkeypatch):
    monkeypatch.setattr(sketch, "HEAD", 20)  # Else each input would scan all rows.
    network = trained(data, partial(slide.SketchProposer, best=9))
    Model(network).save(tmp_path / "m")
    assert kind_of(tmp_path / "m") == {"proposer": "sketch", "seed": 5}
    opened = assert_answers_as_before(data, network, tmp_path / "m")
    own = opened.network.output.sampler.proposer
    np.testing.assert_array_equal(own.sketches, network.output.sampler.proposer.sketches)


def assert_answers_as_before(data, network, folder):
    """Compare search=sampler of a saved model with that of a network; returns the opened model."""
    as_opened(network)
    expected = Model(network).predict(data.test.features, k=5, search="sampler")
    for opened in (load(folder), load(folder)):
        found = opened.predict(data.test.features, k=5, search="sampler")
        assert_same(found, expected)
    own, given = (each.output.sampler.proposer for each in (opened.network, network))
    for name, kept in given.projection.tensors().items():
        assert torch.equal(own.projection.tensors()[name], kept)
    exact = opened.predict(data.test.features, k=5)
    assert (exact.labels != found.labels).any(), "the index finds everything: this tests nothing"
    again = folder.parent / "again"
    opened.save(again)
    assert kind_of(again) == kind_of(folder)
    found = load(again).predict(data.test.features, k=5, search="sampler")
    np.testing.assert_array_equal(found.labels, expected.labels)
    return opened


NOTHING = {"hashes_per_table": None, "num_tables": None, "probes": None}


def by_an_earlier_slide(folder, index):
    """Let a folder be one of slide 0.1.0 with another index."""
    content = read_folder(MODEL_FOLDER, folder)
    content["index"] = index
    files = content.pop("files")
    there = [Written(name, **each) for name, each in files.items()]
    write_folder(MODEL_FOLDER, folder, content, {}, there)
    assert kind_of(folder) == index


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [
        ({}, "sketch"),
        ({"hashes_per_table": 3}, "tables"),
        ({"num_tables": 2}, "tables"),
        ({"probes": 1}, "tables"),
        ({"hashes_per_table": 3, "num_tables": 2, "probes": 0}, "tables"),
    ],
    ids=str,
)
def test_the_index_of_an_earlier_slide(data, tmp_path, monkeypatch, sizes, kind):
    """One class had tables where a size of them was given, and sketches elsewhere."""
    monkeypatch.setattr(sketch, "HEAD", 20)
    proposer = slide.SketchProposer if kind == "sketch" else partial(slide.LSHProposer, **sizes)
    network = trained(data, proposer)
    folder = tmp_path / "m"
    Model(network).save(folder)
    earlier = {"proposer": "lsh", **NOTHING, **sizes, "seed": 5, "family": "simhash", "options": {}}
    by_an_earlier_slide(folder, earlier)
    as_opened(network)
    expected = Model(network).predict(data.test.features, k=5, search="sampler")
    opened = load(folder)
    assert_same(opened.predict(data.test.features, k=5, search="sampler"), expected)
    opened.save(tmp_path / "again")
    assert kind_of(tmp_path / "again")["proposer"] == kind


def test_lists_of_rows_of_an_earlier_slide(data, tmp_path):
    """They are no index that is searched by name, and all else is there."""
    network = trained(data, None)
    Model(network).save(tmp_path / "m")
    before = load(tmp_path / "m").predict(data.test.features, k=5)
    index = {"proposer": "index", "best": 8, "most_seen": 4096, "seed": 0}
    by_an_earlier_slide(tmp_path / "m", index)
    opened = load(tmp_path / "m")
    for search in ("exact", "index"):
        found = opened.predict(data.test.features, k=5, search=search)
        np.testing.assert_array_equal(found.labels, before.labels)
    with pytest.raises(ValueError, match="search=sampler needs a sampler with an index"):
        opened.predict(data.test.features, search="sampler")
    opened.save(tmp_path / "again")
    assert kind_of(tmp_path / "again") is None


def test_an_index_of_another_kind(data, tmp_path):
    Model(trained(data, None)).save(tmp_path / "m")
    by_an_earlier_slide(tmp_path / "m", {"proposer": "trees", "seed": 0})
    told = "proposer must be one of tables, sketch, lsh, index, not 'trees'"
    with pytest.raises(ValueError, match=rf"model\.json is damaged: {told}"):
        load(tmp_path / "m")


@pytest.mark.parametrize("proposer", [slide.LSHProposer, slide.SketchProposer])
def test_an_index_that_is_not_built_is_built_to_be_saved(data, tmp_path, proposer):
    model = Model(trained(data, proposer))
    model.save(tmp_path / "first")
    for changed in (model, load(tmp_path / "first")):
        changed.add_labels(2)
        changed.remove_labels([3])
        assert not changed.network.output.sampler.state_dict()["built"]
        changed.save(tmp_path / "m")
        as_opened(changed.network)
        expected = changed.predict(data.test.features, k=5, search="sampler")
        found = load(tmp_path / "m").predict(data.test.features, k=5, search="sampler")
        np.testing.assert_array_equal(found.labels, expected.labels)


class Mine(slide.LSHProposer):
    """Written by a user."""


def mine(*sizes, **more):
    """A family that a user wrote."""
    return slide.SimHash(*sizes, **more)


@pytest.mark.parametrize(
    ("proposer", "options"),
    [
        (None, {}),
        (Mine, {}),
        (slide.LSHProposer, {"active": 80}),
        (slide.SketchProposer, {"active": 80}),
        (partial(slide.FaissProposer, factory="Flat"), {}),
        (partial(slide.LSHProposer, family=mine), {}),
    ],
    ids=["uniform", "another", "all", "all sketches", "faiss", "another family"],
)
def test_no_index(data, proposer, options, tmp_path):
    Model(trained(data, proposer, **options)).save(tmp_path / "m")
    opened = load(tmp_path / "m")
    with pytest.raises(ValueError, match="search=sampler needs a sampler with an index"):
        opened.predict(data.test.features, search="sampler")
