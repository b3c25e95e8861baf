"""One rule says how labels are found: for models, classifiers and servers, as for runs."""

from contextlib import contextmanager

import numpy as np
import pytest
import scipy.sparse
from helpers import job
from helpers.serving import serving_model

import slide
from slide import runtime
from slide.config import fill_in
from slide.data import holdout
from slide.model import Model
from slide.ranking import EnsembleRanker

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def found_by(monkeypatch):
    """The searches that layers were asked for."""
    asked, top_k = [], slide.SampledLinear.top_k

    def noted(layer, x, k, search="exact"):
        asked.append(search)
        return top_k(layer, x, k, search)

    monkeypatch.setattr(slide.SampledLinear, "top_k", noted)
    return asked


@pytest.mark.parametrize("labels", [80, 20_000, 20_001])
@pytest.mark.parametrize("ranked", [False, True])
def test_models_search_as_their_runs_are_judged(labels, ranked, found_by):
    network = slide.SlideNetwork(60, [4], labels, slide.FullSampler)
    config = job.compose(f"ranker={'ensemble' if ranked else 'none'}")
    fill_in(config, 1000, labels)
    model = Model(network)
    model.ranker = object() if ranked else None
    assert model.search == config.trainer.evaluation
    assert model.search == ("index" if ranked and labels > 20_000 else "exact")
    model.ranker = None
    model.predict(np.eye(60)[:2], k=2, search="index")
    model.predict(np.eye(60)[:2], k=2)
    assert found_by == ["index", "exact"]


def test_the_rule_is_asked_everywhere(tmp_path, found_by, monkeypatch):
    data = job.make_data(tmp_path, train_samples=300)
    train, held = holdout(data.train, 0.5, seed=0)
    network = job.make_network(data)
    model = Model(network, EnsembleRanker().fit(network, train, held))
    monkeypatch.setattr("slide.utils.sizes._SEARCHED_LABELS", 79)
    found_by.clear()
    model.predict(data.test.features)
    row = {"rows": [{"indices": [3]}]}
    with serving_model(model) as client:
        assert network.output._index is not None
        for search in ({}, {"search": "exact"}):
            assert client.post(json=row | search).status_code == 200
    assert found_by == ["index", "index", "index", "exact"]


def test_a_server_makes_no_index_that_nobody_asks_for():
    network = slide.SlideNetwork(60, [4], 80, slide.FullSampler)
    row = {"rows": [{"indices": [3]}]}
    with serving_model(Model(network)) as client:
        assert client.post(json=row).status_code == 200
        assert network.output._index is None
        assert client.post(json=row | {"search": "index"}).status_code == 200
        assert network.output._index is not None


def test_the_classifier_is_told(tmp_path, found_by):
    data = job.make_data(tmp_path, train_samples=300)
    x, y = data.train.features, data.train.labels
    X = scipy.sparse.csr_array((x.values, x.indices, x.indptr), (300, 60))
    options = {"hidden": 8, "epochs": 1, "random_state": 0}
    for search in ("index", None):
        found_by.clear()
        model = slide.SlideClassifier(search=search, **options).fit(X, y)
        model.predict_top_k(X)
        assert set(found_by) == {search or "exact"}
    with pytest.raises(ValueError, match="search must be one of exact, index, not 'sampler'"):
        slide.SlideClassifier(search="sampler").fit(X, y)


def test_a_single_row_runs_on_one_thread(tmp_path, monkeypatch):
    """It is answered as among others, in whatever mode the network is left."""
    data = job.make_data(tmp_path)
    network = job.make_network(data)
    model, threads = Model(network), []
    embed = slide.SlideNetwork.embed

    def noted(*words):
        threads.append(runtime.num_threads())
        return embed(*words)

    monkeypatch.setattr(slide.SlideNetwork, "embed", noted)
    monkeypatch.setattr("slide.model.model.one_thread", lambda: pretended(threads))
    rows = data.test.slice(0, 2).features
    both = model.predict_ids(rows)
    for mode in (True, False):
        network.train(mode)
        for row in range(2):
            found = model.predict_ids(data.test.slice(row, row + 1).features)
            np.testing.assert_array_equal(found.labels[0], both.labels[row])
        assert network.training is network.first.training is mode
    assert threads == [1, *["begin", 1, "end"] * 4]


@contextmanager
def pretended(said):
    said.append("begin")
    yield
    said.append("end")
