"""A trained model: answers to raw rows, also after it was saved and opened."""

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import scipy.sparse
import torch
from helpers import job
from helpers.answers import assert_same
from helpers.commands import slide_predict
from helpers.serving import serving_model
from helpers.workers import predicted

import slide
from slide import FullSampler, SlideNetwork, runtime
from slide.config import fill_in
from slide.data import Split, holdout, transform
from slide.model import Model, load
from slide.predict import command
from slide.ranking import EnsembleRanker
from slide.sparse import CSR, Pattern

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = {"l2_norm": True, "tf_idf": True, "min_label_count": 4, "hashed_features": 40}


def trained(data, **options):
    """Network and ranker, hardly trained, but no two scores are equal."""
    torch.manual_seed(0)
    train, held = holdout(data.train, 0.5, seed=0)
    network = job.make_network(data)
    ranker = EnsembleRanker(depth=10, **options).fit(network, train, held, every=data.train)
    return network, ranker


@pytest.fixture(scope="module")
def model(raw):
    data = transform(raw, **STEPS)
    names = [f"label {n}" for n in range(data.steps[0].num_labels)]
    more = {"settings": {"seed": 3}, "name": data.name, "label_names": names}
    return Model(*trained(data), data.steps, **more)


def test_it_comes_back_from_its_folder(model, raw, tmp_path):
    model.save(tmp_path / "m")
    rows = raw.test.features
    expected = model.predict(rows, k=7)
    opened = load(tmp_path / "m")
    assert_same(opened.predict(rows, k=7), expected)
    assert_same(opened.predict_ids(rows, k=7), model.predict_ids(rows, k=7))
    assert (opened.num_features, opened.num_labels) == (60, 80)
    assert (opened.settings, opened.name) == ({"seed": 3}, "synthetic")
    assert list(opened.label_names) == list(model.label_names)
    assert opened.feature_names is None
    opened.save(tmp_path / "m")  # In place of the folder that its weights are mapped from.
    opened.save(tmp_path / "again")
    for folder in ("m", "again"):
        assert_same(load(tmp_path / folder).predict(rows, k=7), expected)
    assert slide.load is load


def test_answers_are_those_of_ranker_and_transformed_rows(model, raw):
    """Numbers and names are those of the labels before rare ones were left out."""
    data = transform(raw, **STEPS)
    (steps,) = data.steps
    assert len(steps.label_ids) < 80
    scores, ids, _ = model.ranker.rank(model.network, data.test.features, 3)
    found = model.predict_ids(raw.test.features, k=3)
    assert found.labels.dtype == np.int64
    assert_same(found, (steps.label_ids[ids], scores))
    named = model.predict(scipy.sparse.csr_array(
        (raw.test.features.values, raw.test.features.indices, raw.test.features.indptr), (30, 60)
    ), k=3)  # fmt: skip
    assert named.labels.tolist() == [[f"label {n}" for n in row] for row in found.labels]
    assert_same(named.scores[None], scores[None])


def test_the_network_alone(raw, tmp_path):
    network = job.make_network(raw)
    network.train()
    Model(network).save(tmp_path / "m")
    opened = load(tmp_path / "m")
    ids, scores = opened.predict(raw.test.features, k=4)
    expected, known = network.predict(raw.test.features, k=4)
    assert_same((ids, scores), (known.numpy(), expected.double().numpy()))
    assert not opened.network.training
    assert not any(p.requires_grad for p in opened.network.parameters())
    found = opened.predict(raw.test.features, k=4, search="index")
    np.testing.assert_array_equal(found.labels, ids)


def test_few_labels_and_many_asked_for(raw, tmp_path):
    network, ranker = trained(raw, objective="psp")
    model = Model(network, ranker, label_names=[str(n) for n in range(80)])
    model.save(tmp_path / "m")
    labels, scores = load(tmp_path / "m").predict(raw.test.features, k=90)
    assert labels.shape == scores.shape == (30, 90)
    assert labels[0, -1] is None
    assert scores[0, -1] == 0
    assert_same((labels, scores), model.predict(raw.test.features, k=90))
    for predict in (model.predict, model.predict_ids):
        assert predict(np.zeros((0, 60)), k=2).labels.shape == (0, 2)


def test_batches_do_not_matter(model, raw, monkeypatch):
    expected = model.predict(raw.test.features, k=3)
    monkeypatch.setattr("slide.model.model._BATCH", 7)
    labels, scores = model.predict(raw.test.features, k=3)
    assert labels.tolist() == expected.labels.tolist()
    np.testing.assert_allclose(scores, expected.scores, rtol=1e-5)


@pytest.mark.parametrize(
    ("rows", "k", "error", "message"),
    [
        (np.zeros((1, 61)), 5, ValueError, "a matrix of 61 columns does not fit 60 features"),
        (np.full((1, 60), np.nan), 5, ValueError, "must be finite float32 values, not nan"),
        (np.zeros((1, 60)), 0, ValueError, "k must be a whole number of at least 1, not 0"),
        (-np.ones((1, 60)), 5, ValueError, "tf-idf needs counts"),
        ("text", 5, TypeError, "the model takes rows of features, not texts"),
        (slide.CSR(np.array([0, 1]), np.array([60], np.int32), np.ones(1, "f4")), 5, ValueError,
         r"features must lie in \[0, 60\)"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be(model, rows, k, error, message):
    with pytest.raises(error, match=message):
        model.predict(rows, k)


def test_parts_that_do_not_fit(raw, model, tmp_path):
    network = job.make_network(raw)
    with pytest.raises(ValueError, match="2 label_names do not fit 80 of them"):
        Model(network, label_names=["a", "b"])
    with pytest.raises(ValueError, match=r"steps that give rows of .* do not fit"):
        Model(network, steps=model.steps)
    with pytest.raises(RuntimeError, match="the ranker is not trained"):
        Model(network, EnsembleRanker()).save(tmp_path / "m")
    with pytest.raises(ValueError, match="search must be one of exact, index, sampler, not 'fast'"):
        Model(network).predict(np.zeros((1, 60)), search="fast")
    with pytest.raises(ValueError, match="must be one of float32, bfloat16, int8, not 'int4'"):
        Model(network).save(tmp_path / "m", dtype="int4")
    assert not (tmp_path / "m").exists()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is a file: a model needs a folder"):
        Model(network).save(tmp_path / "file")


def test_processes_that_are_spawned_predict(model, tmp_path):
    """With a model of the process that starts them, or a folder; without Hydra and scikit-learn."""
    model.save(tmp_path / "m")
    rows = np.eye(60)[:2] * 3
    labels, scores = model.predict(rows, k=2)
    given = [model, load(tmp_path / "m"), str(tmp_path / "m")]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        found = list(pool.map(predicted, given, [rows] * len(given)))
    for own, values, heavy in found:
        assert own == labels.tolist()
        np.testing.assert_array_equal(values, scores)
        assert heavy == []


@pytest.fixture
def found_by(monkeypatch):
    """The searches that layers were asked for."""
    asked, top_k = [], slide.SampledLinear.top_k

    def noted(layer, x, k, search="exact"):
        asked.append(search)
        return top_k(layer, x, k, search)

    monkeypatch.setattr(slide.SampledLinear, "top_k", noted)
    return asked


@pytest.mark.parametrize("labels", [20_000, 20_001])
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


def test_the_rule_is_asked_everywhere(raw, found_by, monkeypatch):
    network, ranker = trained(raw)
    model = Model(network, ranker)
    monkeypatch.setattr("slide.utils.sizes._SEARCHED_LABELS", 79)
    found_by.clear()
    model.predict(raw.test.features)
    row = {"rows": [{"indices": [3]}]}
    with serving_model(model) as client:
        assert network.output._index._index is not None
        for search in ({}, {"search": "exact"}):
            assert client.post(json=row | search).status_code == 200
    assert found_by == ["index", "index", "index", "exact"]


def test_a_single_row_runs_on_one_thread(raw, monkeypatch):
    """It is answered as among others, in whatever mode the network is left."""
    network = job.make_network(raw)
    model, threads = Model(network), []
    embed = slide.SlideNetwork.embed

    def noted(*words):
        threads.append(runtime.num_threads())
        return embed(*words)

    monkeypatch.setattr(slide.SlideNetwork, "embed", noted)
    monkeypatch.setattr("slide.model.model.one_thread", lambda: pretended(threads))
    rows = raw.test.slice(0, 2).features
    both = model.predict_ids(rows)
    for mode in (True, False):
        network.train(mode)
        for row in range(2):
            found = model.predict_ids(raw.test.slice(row, row + 1).features)
            np.testing.assert_array_equal(found.labels[0], both.labels[row])
        assert network.training is network.first.training is mode
    assert threads == [1, *["begin", 1, "end"] * 4]


@contextmanager
def pretended(said):
    said.append("begin")
    yield
    said.append("end")


FEATURES = 30


def make_model(least=None):
    """A model; with a ``least`` weight of 0, scores overflow to inf and not to NaN."""
    torch.manual_seed(0)
    network = SlideNetwork(FEATURES, [8], 12, FullSampler)
    if least is not None:
        for parameter in network.parameters():
            parameter.data.abs_()
    return Model(network)


def large_rows(count, *large):
    found = np.full((count, FEATURES), 0.5, np.float32)
    found[list(large)] = 3.3e38
    return found


@pytest.mark.parametrize(("least", "search"), [(None, "index"), (0, "exact")])
def test_models_name_the_row(least, search):
    model = make_model(least)
    with pytest.raises(ValueError, match="the values of row 1100 are too large: its scores are"):
        model.predict(large_rows(1200, 1100, 1150), 2, search)
    assert (model.predict_ids(large_rows(9), 2).labels >= 0).all()
    torch.nn.init.constant_(model.network.output.weight, torch.nan)
    with pytest.raises(ValueError, match="row 0 are too large: its scores are not finite"):
        model.predict(large_rows(1))


def test_models_with_a_ranker(raw):
    model = Model(*trained(raw))
    rows = np.full((3, 60), 0.5, np.float32)
    assert (model.predict(rows, 2).labels[:, 0] >= 0).all()
    rows[2] = 3.3e38
    with pytest.raises(ValueError, match="row 2 are too large"):
        model.predict(rows)


def test_slide_predict_names_the_file_and_the_row(tmp_path):
    make_model().save(tmp_path / "model")
    values = dict.fromkeys(map(str, range(FEATURES)), 3.3e38)
    lines = [json.dumps({"features": {}}) + "\n"] * 1030 + [json.dumps({"features": values})]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(lines))
    words = [str(tmp_path / "model"), str(file), "--threads", "1", "-o", str(tmp_path / "out")]
    with pytest.raises(SystemExit) as stopped:
        command.main(words)
    told = f"error: {file}: the values of row 1030 are too large: its scores are not finite"
    assert str(stopped.value.code) == f"{told} (rows are counted from 0)"
    assert not (tmp_path / "out").exists()
    file.write_text(lines[0])
    assert json.loads(slide_predict(tmp_path / "model", file))["labels"]


def test_own_items_stay_known(raw, tmp_path):
    """Each row has ten items next to one another: six are features, four labels."""
    rng = np.random.default_rng(0)
    sets = [(rng.integers(60) + rng.permutation(10)) % 60 for _ in range(600)]
    features = CSR(*Pattern.from_lists([sorted(r[:6]) for r in sets]), np.ones(3600, np.float32))
    labels = Pattern.from_lists([sorted(row[6:]) for row in sets])
    split = Split(features, labels, 60, 80)
    network = job.make_network(raw)
    ranker = EnsembleRanker().fit(network, split.slice(0, 400), split.slice(400, 600))
    assert ranker.kind == "items"
    Model(network, ranker).save(tmp_path / "m")
    found = load(tmp_path / "m")
    assert found.ranker.kind == "items"
    assert_same(found.predict(features), Model(network, ranker).predict(features))
    found.restricted(np.arange(0, 60, 2)).save(tmp_path / "some")
    for each in (found, load(tmp_path / "some")):
        for row, mine in enumerate(each.predict(features, k=5).labels):
            assert not set(mine) & set(features.indices[6 * row : 6 * row + 6])
