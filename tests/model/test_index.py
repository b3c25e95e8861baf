"""Search among the candidates of the index that a model was trained with."""

from functools import partial

import numpy as np
import pytest
import torch
from helpers import job
from helpers.answers import assert_same

import slide
from slide.model import Model, load
from slide.sampling import fixed, lsh_proposer

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


@pytest.mark.parametrize("family", FAMILIES)
def test_tables_answer_as_before(data, family, tmp_path, monkeypatch):
    monkeypatch.setattr(lsh_proposer, "HEAD", 4)  # Else there would be no ranges of rows.
    shape = {"hashes_per_table": 3, "num_tables": 2, "probes": 1}
    network = trained(data, partial(slide.LSHProposer, family=FAMILIES[family], **shape))
    proposer, model = network.output.sampler.proposer, Model(network)
    assert not torch.equal(proposer.mean_input, torch.zeros(8))
    model.save(tmp_path / "m")
    # What inputs have determined is kept, and all else follows from the weights, as in a first
    # rebuild.
    proposer.project_by(**proposer.projection())
    proposer.rebuilds = 0
    network.output.sampler.forget_index()
    expected = model.predict(data.test.features, k=5, search="sampler")
    for opened in (load(tmp_path / "m"), load(tmp_path / "m")):
        found = opened.predict(data.test.features, k=5, search="sampler")
        assert_same(found, expected)
    own = opened.network.output.sampler.proposer
    assert {name: getattr(own, name) for name in shape} == shape
    for name, kept in proposer.projection().items():
        assert torch.equal(own.projection()[name], kept)
    np.testing.assert_array_equal(own.codes, proposer.codes)
    exact = opened.predict(data.test.features, k=5)
    assert (exact.labels != found.labels).any(), "the index finds everything: this tests nothing"
    opened.save(tmp_path / "again")
    found = load(tmp_path / "again").predict(data.test.features, k=5, search="sampler")
    np.testing.assert_array_equal(found.labels, expected.labels)


def test_an_index_of_rows_is_built_again(data, tmp_path):
    network = trained(data, partial(slide.IndexProposer, best=9))
    Model(network).save(tmp_path / "m")
    assert not (tmp_path / "m/index.safetensors").exists()
    opened = load(tmp_path / "m")
    found = opened.predict(data.test.features, k=5, search="sampler")
    exact = opened.predict(data.test.features, k=5)
    np.testing.assert_array_equal(found.labels, exact.labels)
    load(tmp_path / "m").save(tmp_path / "again")  # Nothing has been searched.
    again = load(tmp_path / "again").predict(data.test.features, k=5, search="sampler")
    np.testing.assert_array_equal(again.labels, exact.labels)


def test_tables_that_are_not_built_are_built_to_be_saved(data, tmp_path):
    model = Model(trained(data, partial(slide.LSHProposer, family=FAMILIES["simhash"])))
    model.save(tmp_path / "first")
    for changed in (model, load(tmp_path / "first")):
        changed.add_labels(2)
        changed.remove_labels([3])
        assert not changed.network.output.sampler.state_dict()["built"]
        changed.save(tmp_path / "m")
        expected = changed.predict(data.test.features, k=5, search="sampler")
        found = load(tmp_path / "m").predict(data.test.features, k=5, search="sampler")
        np.testing.assert_array_equal(found.labels, expected.labels)


class Mine(slide.LSHProposer):
    """Written by a user."""


@pytest.mark.parametrize(
    ("proposer", "options"),
    [(None, {}), (Mine, {}), (slide.LSHProposer, {"active": 80})],
    ids=["uniform", "another", "all"],
)
def test_no_index(data, proposer, options, tmp_path):
    Model(trained(data, proposer, **options)).save(tmp_path / "m")
    opened = load(tmp_path / "m")
    with pytest.raises(ValueError, match="search=sampler needs a sampler with an index"):
        opened.predict(data.test.features, search="sampler")
