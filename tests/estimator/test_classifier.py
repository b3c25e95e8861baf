"""`SlideClassifier` on small data: what it trains, what it answers, and what it refuses."""

import copy
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse
import torch
from helpers import job
from helpers.answers import assert_same
from omegaconf import OmegaConf
from sklearn.base import clone
from sklearn.datasets import load_wine
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

import slide
from slide import SlideClassifier
from slide.estimator import classifier
from slide.estimator.classifier import _KEYS
from slide.estimator.targets import read_targets
from slide.training import DivergenceError
from slide.training.evaluation import precision_at_k

pytestmark = pytest.mark.usefixtures("one_thread")
FEW = {"epochs": 2, "hidden": 16, "random_state": 0}


def lists_of(Y, names):
    return [[names[n] for n in Y.indices[slice(*bounds)]] for bounds in pairwise(Y.indptr)]


def test_all_forms_of_the_same_targets(rows):
    """Names sort as the numbers do."""
    X, Y = rows
    names = [f"label {n:02}" for n in range(80)]
    expected, used = read_targets(Y).labels, np.unique(Y.indices)
    for y in (Y.tocsc(), Y.toarray().astype(bool), slide.as_pattern(Y, 80)):
        found = read_targets(y)
        assert found.classes.tolist() == list(range(len(found.classes)))
        np.testing.assert_array_equal(found.labels.indptr, expected.indptr)
        np.testing.assert_array_equal(found.labels.indices, expected.indices)
    model = SlideClassifier(**FEW).fit(X, lists_of(Y, names))
    assert model.classes_.tolist() == [names[n] for n in used]
    assert model.multilabel_
    best, labels = model.model_.predict_ids(X, 1).labels, slide.as_pattern(Y[:, used], len(used))
    assert model.score(X, lists_of(Y, names)) == pytest.approx(precision_at_k(best, labels, 1))


@pytest.mark.filterwarnings("ignore:Sparse CS:UserWarning")
@pytest.mark.parametrize("layout", ["coo", "csc"])
def test_sparse_tensors(rows, fitted, layout):
    ordered = rows[0].copy()
    ordered.sort_indices()  # Sums over features in another order differ in their last bits.
    X, Y = (torch.from_numpy(part.toarray()) for part in rows)
    kind = getattr(torch, f"sparse_{layout}")
    X, Y = X.to_sparse(layout=kind), Y.to_sparse(layout=kind)
    expected = fitted.predict_top_k(ordered, k=4)
    np.testing.assert_array_equal(fitted.predict_top_k(X, k=4).scores, expected.scores)
    assert fitted.score(X, Y) == fitted.score(*rows)
    if layout == "coo":
        found = SlideClassifier(**FEW).fit(X, Y).predict_top_k(X, k=4)
        expected = SlideClassifier(**FEW).fit(ordered, rows[1]).predict_top_k(ordered, k=4)
        np.testing.assert_array_equal(found.scores, expected.scores)


def test_scores_are_sparse(rows, fitted):
    X, _ = rows
    ids, scores = fitted.predict_top_k(X, k=6)
    found = fitted.predict_proba(X, top_k=6)
    assert found.shape == (300, 80)
    assert found.nnz == 1800
    np.testing.assert_array_equal(found[np.arange(300)[:, None], ids].toarray(), scores)
    assert 0 <= found.data.min() <= found.data.max() <= 1
    odds = fitted.decision_function(X, top_k=6)
    np.testing.assert_allclose(1 / (1 + np.exp(-odds.data)), found.data)


@pytest.mark.parametrize("dense", [True, False])
def test_few_classes_have_dense_scores(rows, fitted, monkeypatch, dense):
    monkeypatch.setattr(classifier, "_DENSE", 80 if dense else 79)
    X, _ = rows
    sets, every, scores = fitted.predict(X), fitted.predict_proba(X), fitted.decision_function(X)
    assert [scipy.sparse.issparse(each) for each in (sets, every, scores)] == [not dense] * 3
    if not dense:
        sets, every = sets.toarray(), every.toarray()
    else:
        labels, best = fitted.predict_top_k(X, k=6)
        np.testing.assert_array_equal(every[np.arange(300)[:, None], labels], best)
        assert average_precision_score(rows[1].toarray(), every, average="micro") > 0.5
    np.testing.assert_array_equal(sets, every >= 0.5)
    low = clone(fitted).set_params(threshold=0.01)
    low.__dict__.update({k: v for k, v in vars(fitted).items() if k.endswith("_")})
    assert low.predict(X).sum() == (every >= 0.01).sum() > sets.sum()


def test_one_label_for_each_row(rows):
    X, Y = rows
    names = np.array([f"name {n}" for n in Y.argmax(axis=1)])
    model = SlideClassifier(ranker=None, **FEW).fit(X, names)
    assert not model.multilabel_
    np.testing.assert_array_equal(model.classes_, np.unique(names))
    found = model.predict(X)
    assert found.shape == (300,)
    assert set(found) <= set(names)
    assert model.score(X, names) == pytest.approx(np.mean(found == names))
    assert model.score(X, names, sample_weight=found == names) == 1


@pytest.mark.parametrize("ranker", [None, "ensemble"])
def test_fits_of_threads_are_those_of_one_after_another(rows, ranker):
    """They seeded the generator of the process, each in the middle of the others."""
    X, Y = rows
    options, before = {**FEW, "ranker": ranker}, torch.get_rng_state()

    def fit(_):
        model = SlideClassifier(**options).fit(X, Y)
        scores = model.decision_function(X, top_k=80)
        model.partial_fit(X, Y)
        parameters = model.model_.network.parameters()
        return [scores.data.tobytes(), *(p.detach().numpy().tobytes() for p in parameters)]

    alone = fit(0)
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(fit, range(4))
        torch.manual_seed(3)  # The program draws meanwhile.
        drawn = [torch.rand(1).item() for _ in range(2000)]
        assert all(each == alone for each in found)
    torch.manual_seed(3)
    assert drawn == [torch.rand(1).item() for _ in range(2000)]
    torch.set_rng_state(before)


def test_equal_seeds_and_the_state_around(rows):
    """Of the network alone: its scores, and probabilities by their squared hinge."""
    X, Y = rows
    options = {**FEW, "ranker": None}
    before = torch.get_rng_state()
    models = [SlideClassifier(**options).fit(X, Y) for _ in range(2)]
    one, two = (model.predict_proba(X, top_k=80) for model in models)
    np.testing.assert_array_equal(one.data, two.data)
    scores = models[0].decision_function(X, top_k=80)
    assert (models[0].model_.ranker, scores.nnz) == (None, 300 * 80)
    np.testing.assert_allclose(one.data, np.clip((scores.data + 1) / 2, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    options["random_state"] = np.random.RandomState(0)
    other = SlideClassifier(**options).fit(X, Y).predict_proba(X, top_k=80)
    assert not np.array_equal(one.data, other.data)


def test_it_is_saved_and_opened(rows, fitted, tmp_path):
    X, Y = rows
    fitted.save(tmp_path / "m")
    opened = slide.load(tmp_path / "m")
    np.testing.assert_array_equal(opened.predict(X, 3).scores, fitted.predict_top_k(X, 3).scores)
    assert opened.label_names is None
    assert opened.settings["hidden"] == "16"
    kept = SlideClassifier(run_dir=str(tmp_path / "run"), **FEW).fit(X, lists_of(Y, range(5, 85)))
    found = slide.load(tmp_path / "run")
    assert (tmp_path / "run/summary.json").exists()
    assert found.label_names[0] == kept.classes_[0] == 5
    with pytest.raises(ValueError, match=r"run_dir=.*run holds a run"):
        kept.fit(X, Y)


@pytest.mark.parametrize("verbose", [False, True])
def test_silence(rows, verbose, capfd):
    X, Y = rows
    SlideClassifier(verbose=verbose, **FEW).fit(X, Y)
    said = capfd.readouterr()
    assert said.out == ""
    assert ("features of the nearest rows" in said.err) == verbose
    if not verbose:
        assert said.err == ""


def test_answers_are_searched_for_as_told(rows, fitted, monkeypatch):
    asked, predict_ids = [], slide.Model.predict_ids

    def noted(model, x, k, search):
        asked.append(search)
        return predict_ids(model, x, k, search)

    monkeypatch.setattr(slide.Model, "predict_ids", noted)
    for search in ("index", None):
        copy.copy(fitted).set_params(search=search).predict_top_k(rows[0])
    assert asked == ["index", None]


def test_rare_labels_first(rows, fitted):
    X, Y = rows
    rare = SlideClassifier(label_weights="propensity", **FEW).fit(X, Y)
    counts = np.asarray(Y.sum(0)).ravel()
    assert rare.model_.ranker.objective == "psp"
    means = [counts[m.predict_top_k(X, 5).labels.astype(int)].mean() for m in (fitted, rare)]
    assert means[1] < means[0]
    weights = np.ones(80)
    weights[7] = 1e9
    one = SlideClassifier(label_weights=weights, **FEW).fit(X, Y)
    assert (one.predict_top_k(X, 1).labels == 7).mean() > 0.3


def test_learning_in_parts(rows):
    X, Y = rows
    model = SlideClassifier(hidden=16, lr=0.01, random_state=0)
    assert model.partial_fit(X[:150], Y[:150]) is model
    early = model.score(X, Y)
    for _ in range(14):
        model.partial_fit(X[:150], Y[:150]).partial_fit(X[150:], Y[150:])
    assert model.score(X, Y) > early + 0.2
    first = Y.argmax(axis=1)
    single = SlideClassifier(**FEW).partial_fit(X, first, classes=range(80))
    assert single.partial_fit(X[:1], first[:1]).predict(X[:2]).shape == (2,)
    after = SlideClassifier(**FEW).fit(X, Y)
    ranked = after.model_.network.output.weight.detach().clone()
    assert after.partial_fit(X, Y).model_.ranker is None
    assert not torch.equal(after.model_.network.output.weight, ranked)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_learns_where_a_program_computes_no_gradients(rows, mode, tmp_path):
    """What is fitted, opened or resized there goes on learning elsewhere."""
    X, Y = rows
    with mode():
        model = SlideClassifier(**FEW).fit(X, Y)
        SlideClassifier(**FEW).partial_fit(X, Y).save(tmp_path)
        opened = slide.load(tmp_path)
    expected = SlideClassifier(**FEW).fit(X, Y)
    assert_same(model.predict_top_k(X), expected.predict_top_k(X))
    for network in (model.model_, opened):
        with mode():
            network.add_features(2)
            network.predict(np.ones((1, 62)))
        network.partial_fit(np.ones((1, 62)), [[3]])


def test_a_first_part_that_fails_leaves_it_unfitted(rows):
    X, Y = rows
    model = SlideClassifier(**{**FEW, "lr": 1e25})
    with pytest.raises(DivergenceError, match="lower lr"):
        model.partial_fit(X, Y)
    with pytest.raises(NotFittedError):
        model.predict(X)
    assert not hasattr(model, "classes_")
    model.set_params(lr=0.01).partial_fit(X[:, :50], Y)
    assert model.predict_top_k(X[:3, :50]).labels.shape == (3, 5)


def test_labels_are_copied(rows):
    X, Y = rows[0], rows[1].astype(np.float32)
    Y.indices, Y.indptr = Y.indices.astype(np.int32), Y.indptr.astype(np.int32)
    model = SlideClassifier(**FEW).fit(X, Y)
    expected = model.predict_top_k(X)
    Y.indices[:] = 0
    np.testing.assert_array_equal(model.predict_top_k(X).scores, expected.scores)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threshold": 2}, r"threshold must be in \[0, 1\], not 2"),
        ({"verbose": 1}, "verbose must be true or false, not 1"),
        ({"sampler": "best"}, "there is no sampler=best; the choices of sampler are auto, faiss, "),
        ({"ranker": "trees"}, "ranker must be ensemble, none or None, not 'trees'"),
        ({"label_weights": "rare"}, "label_weights must be one of propensity, not 'rare'"),
        ({"label_weights": [1, 2]}, "label_weights must be None, propensity, or 80 numbers"),
        ({"hidden": 0}, "hidden must be a whole number of at least 1, not 0"),
        ({"standardize": "yes"}, "standardize must be true, false, common, bins or auto"),
        ({"standardize": 1}, "standardize must be true, false, common, bins or auto, not 1"),
        ({"search": "sampler"}, "search must be one of exact, index, not 'sampler'"),
        ({"settings": {"hash.tables": 3}}, "no key hash.tables .*; did you mean hash.L"),
        ({"settings": {"hash.bin_size": 3}}, "bin_size belongs to hash=dwta; simhash has hashes"),
        (
            {"settings": {"hash.num_tables": 3}, "sampler": "uniform"},
            "hash.num_tables would have no effect: outputs are drawn uniformly",
        ),
        (
            {"settings": {"sampler.group_size": 3}, "mode": "shared"},
            "sampler.group_size would have no effect: .*mode=shared",
        ),
        ({"settings": ["hash=dwta"]}, r"settings must be a dict of .*, not \['hash=dwta'\]"),
        ({"settings": {"dropout": 3}}, "settings take keys of network, sampler, .* not dropout"),
        ({"settings": {"optimizer.lr": 3}}, "optimizer.lr is the argument lr, not one of settings"),
    ],
)
def test_parameters_that_cannot_be(rows, change, message):
    with pytest.raises(ValueError, match=message):
        SlideClassifier(**{**FEW, **change}).fit(*rows)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": -1}, "lr must be a number above 0, not -1"),
        ({"settings": {"ranker.depth": 0}}, "depth must be a whole number of at least 1, not 0"),
    ],
)
def test_settings_are_checked_before_rows_are_read(change, message):
    with pytest.raises(ValueError, match=message):
        SlideClassifier(**change).fit(None, None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, X, Y: m.fit(X, Y[:7]), "inconsistent numbers of samples"),
        (lambda m, X, Y: m.fit(X, Y * 2), "must hold zeros and ones only"),
        (lambda m, X, Y: m.fit(X, [[]] * 300), "y holds no class"),
        (lambda m, X, Y: m.fit(["a text"] * 300, Y), "X holds texts, .*: put a vectorizer before"),
        (lambda m, X, Y: m.fit(X, None), "requires y to be passed, but the target y is None"),
        (lambda m, X, Y: m.fit(X, np.linspace(0, 1, 300)), "Unknown label type: continuous"),
        (lambda m, X, Y: m.partial_fit(X, [["a"]] * 300), "first call of partial_fit needs all"),
        (lambda m, X, Y: m.partial_fit(X, [["a"]] * 300, ["b"]), "label 'a' is not among the cla"),
        (lambda m, X, Y: m.partial_fit(X, Y, range(9)), "9 classes does not fit a matrix of 80"),
        (lambda m, X, Y: m.set_params(tf_idf=True).partial_fit(X, Y), "tf_idf needs all rows"),
        (lambda m, X, Y: m.set_params(standardize=True).partial_fit(X, Y), "standardize needs all"),
        (lambda m, X, Y: m.partial_fit(X, Y).partial_fit(X, Y, range(1, 81)), "of the first call"),
        (lambda m, X, Y: m.fit(X, Y).predict_top_k(X, 0), "k must be a whole number of at least"),
    ],
)
def test_targets_and_calls_that_cannot_be(rows, call, message):
    with pytest.raises(ValueError, match=message):
        call(SlideClassifier(**FEW), *rows)


def test_arguments_are_those_of_the_command_line():
    default = job.compose("trainer.recall_every=0")
    assert SlideClassifier()._config() == default
    values = {"mode": "per_sample", "known": "keep", "kind": "dense", "search": "index"}
    values |= {"epochs": 7, "hidden": [5], "dropout": 0.125}
    for name, key in _KEYS.items():
        value, expected = values.get(name, 11), default.copy()
        OmegaConf.update(expected, key, value)
        for given in (value, np.int64(5), (5,), np.array([5])) if name == "hidden" else (value,):
            assert SlideClassifier(**{name: given})._config() == expected, name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sampler": "lsh", "settings": {"hash": "dwta"}}, ["sampler=lsh", "hash=dwta"]),
        (
            {"sampler": "lsh", "settings": {"hash.K": 4, "L": 2}},
            ["sampler=lsh", "hash.hashes_per_table=4", "hash.num_tables=2"],
        ),
        (
            {"sampler": "sketch", "ranker": None, "settings": {"sampler.proposer.best": 3}},
            ["sampler=sketch", "ranker=none", "sampler.proposer.best=3"],
        ),
        (
            {"mode": "grouped", "settings": {"sampler.group_size": 8, "schedule": "fixed"}},
            ["sampler.group_size=8", "schedule=fixed"],
        ),
    ],
)
def test_other_settings_of_the_command_line(options, words):
    found = SlideClassifier(**options)._config()
    assert found == job.compose("trainer.recall_every=0", *words)


def test_a_grid_of_samplers_with_the_settings_of_each(rows):
    classifier = SlideClassifier(**FEW, ranker=None, mode="per_sample", active=16)
    tables = {"sampler": ["lsh"], "settings": [{"hash.K": 3, "hash.L": 2}]}
    search = GridSearchCV(
        classifier, [{"sampler": ["uniform"]}, tables], cv=2, refit=False, error_score="raise"
    )
    search.fit(*rows)
    assert len(search.cv_results_["params"]) == 2
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


def test_the_default_looks_up_outputs_for_groups(rows):
    model = SlideClassifier(**FEW, active=20, ranker=None).fit(*rows)
    sampler = model.model_.network.output.sampler
    assert (sampler.mode, sampler.active, type(sampler.proposer)) == (
        *("grouped", 20),
        slide.LSHProposer,
    )
    assert sampler.rebuilds > 0


def test_answers_are_those_of_a_run(tmp_path):
    """On the same rows, with the same seed."""
    data = job.make_data(tmp_path, train_samples=300, labels_per_row=2)
    sizes = {**job.SIZES, "train_samples": 300}
    words = [f"dataset.{name}={value}" for name, value in sizes.items()]
    words += [f"dataset.cache={tmp_path}/cache", f"run_dir={tmp_path}/run", "seed=3"]
    job.main(*words, "trainer.epochs=3", "transform.tf_idf=true", "runtime.threads=1")
    job.runtime.set_threads(1)
    x, y = data.train.features, data.train.labels
    X = scipy.sparse.csr_array((x.values, x.indices, x.indptr), (300, 60))
    Y = scipy.sparse.csr_array((np.ones(len(y.indices)), y.indices, y.indptr), (300, 80))
    model = slide.SlideClassifier(random_state=3, epochs=3, tf_idf=True).fit(X, Y)
    run = slide.load(tmp_path / "run")
    for one, other in zip(model.model_.network.parameters(), run.network.parameters(), strict=True):
        assert job.torch.equal(one, other)
    rows = data.test.features
    assert_same(model.model_.predict(rows, k=5), run.predict(rows, k=5))


def test_scores_of_other_forms_of_targets(rows, fitted):
    X, Y = rows
    first = Y.argmax(axis=1)
    model = SlideClassifier(**FEW).fit(X, first)
    column = first.reshape(-1, 1)
    assert model.score(X, column) == model.score(X, first)
    for scored, bad in ((model, first[:1]), (fitted, Y[:5])):
        with pytest.raises(ValueError, match="inconsistent numbers of samples"):
            scored.score(X, bad)
    right = fitted.score(X[:1], Y[:1]) == 1
    weights = np.array([1.0] + [0.0] * 299)
    assert fitted.score(X, Y, sample_weight=weights) == right
    with pytest.raises(ValueError, match=r"sample_weight"):
        fitted.score(X, Y, sample_weight=-np.ones(300))


def test_weights_of_labels_leave_probabilities_as_they_are(rows, fitted):
    X, Y = rows
    weights = np.linspace(1, 10, Y.shape[1])
    model = SlideClassifier(label_weights=weights, **FEW).fit(X, Y)
    one, other = (each.predict_proba(X, top_k=30).toarray() for each in (model, fitted))
    both = (one > 0) & (other > 0)
    np.testing.assert_allclose(one[both], other[both])
    assert both.sum() > 0.5 * 300 * 30
    assert (model.predict(X) != fitted.predict(X)).sum() <= 3, "but for rounding at the threshold"
    ids, scores = model.predict_top_k(X, k=3)
    order = model.decision_function(X, top_k=3)
    np.testing.assert_allclose(order[np.arange(300)[:, None], ids].toarray(), np.log(scores))
    assert (np.diff(scores) <= 0).all()
    with pytest.raises(ValueError, match="label_weights need ranker='ensemble', not None"):
        SlideClassifier(ranker=None, label_weights=weights, **FEW).fit(X, Y)


def test_rows_of_a_graph_are_warned_of():
    """Its known labels are no answers, unless the user says so."""
    triples = [(a, b, c) for a in range(8) for b in range(5) for c in range(5)]
    X = scipy.sparse.lil_array((200, 18), dtype=np.float32)
    for row, (a, b, c) in enumerate(triples):
        X[row, [a, 8 + b, 13 + c]] = 1
    Y = [[a, 8 + (b + c) % 5] for a, b, c in triples]
    with pytest.warns(UserWarning, match="known='keep' keeps them"):
        assert SlideClassifier(**FEW).fit(X, Y).score(X, Y) == 0
    kept = SlideClassifier(**FEW, known="keep").fit(X, Y)
    assert kept.score(X, Y) > 0.1


@pytest.mark.filterwarnings("ignore:known labels:UserWarning")
def test_a_row_without_any_answer_gets_the_most_frequent_class():
    """In a recommender, the own items of a row are no answers: here it has all of them."""
    rng = np.random.default_rng(0)
    items = [np.sort(rng.permutation(40)[:9]) for _ in range(300)]
    y = np.array([min(set(range(40)) - set(row.tolist())) for row in items])
    y[:40] = np.arange(40)
    X = scipy.sparse.lil_array((300, 40), dtype=np.float32)
    for row, own in enumerate(items):
        X[row, own[own != y[row]]] = 1
    model = SlideClassifier(**FEW, kind="items").fit(X, y)
    every = np.ones((1, 40), np.float32)
    assert model.model_.ranker.kind == "items"
    assert model.predict_top_k(every, k=1).labels.tolist() == [[None]]
    assert model.predict(every) == np.bincount(y).argmax()


def weights_of(model):
    return model.model_.network.output.weight.detach()


def test_only_the_ratios_count(rows, fitted):
    ones = SlideClassifier(**FEW).fit(*rows, sample_weight=np.full(300, 7.0))
    torch.testing.assert_close(weights_of(ones), weights_of(fitted))
    found, expected = (m.predict_proba(rows[0]) for m in (ones, fitted))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    other = SlideClassifier(ranker=None, **FEW).fit(*rows, np.arange(1, 301))
    assert not torch.allclose(weights_of(other), weights_of(fitted))


def test_rows_of_weight_zero_are_left_out(rows):
    X, Y = rows
    half = np.repeat([1.0, 0.0], 150)
    one = SlideClassifier(**FEW).fit(X, Y, half)
    other = SlideClassifier(**FEW).fit(X[:150], Y[:150])
    assert torch.equal(weights_of(one), weights_of(other))
    np.testing.assert_array_equal(one.predict_proba(X), other.predict_proba(X))


def test_heavy_rows_win():
    """The same features have two labels; the heavier rows decide."""
    X = np.tile(np.eye(4, dtype=np.float32), (100, 1))
    y = np.repeat([0, 1], 200)
    for heavy in (0, 1):
        weights = np.where(y == heavy, 5.0, 1.0)
        for model in (
            SlideClassifier(**FEW).fit(X, y, weights),
            SlideClassifier(**FEW, ranker=None, lr=0.02).fit(X, y, weights),
        ):
            assert (model.predict(X[:4]) == heavy).all()
        model = SlideClassifier(**FEW, lr=0.02).partial_fit(X, y, [0, 1], weights)
        for _ in range(5):
            model.partial_fit(X, y, sample_weight=weights)
        assert (model.predict(X[:4]) == heavy).all()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(299), r"sample_weight \(299,\) do not fit 300 rows"),
        (-np.ones(300), "sample_weight must be finite and at least 0, not -1.0"),
        (np.zeros(300), "Sample weights must contain at least one non-zero number"),
        (np.full(300, np.nan), "sample_weight must be finite and at least 0, not nan"),
    ],
)
def test_weights_that_cannot_be(rows, weights, message):
    with pytest.raises(ValueError, match=message):
        SlideClassifier(**FEW).fit(*rows, weights)


def test_small_dense_data():
    """Raw columns of wine differ in size by a factor of a thousand."""
    X, y = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X, y, half = X[order].astype(np.float32), y[order], len(X) // 2
    found = SlideClassifier(random_state=0).fit(X[:half], y[:half])
    linear = LogisticRegression(max_iter=5000).fit(X[:half], y[:half])
    assert found.score(X[half:], y[half:]) > linear.score(X[half:], y[half:]) - 0.1
    assert found.score(X[:half], y[:half]) > 0.85
    assert found.summary_["steps"] >= 512


def test_a_ranker_of_hardly_any_rows():
    few = (np.eye(2), [0, 1]), (np.arange(10.0)[:, None], [0, 1] * 5), (np.eye(10, 3), [1] * 10)
    for X, y in few:
        assert set(SlideClassifier(**FEW).fit(X, y).predict(X)) <= set(y)


LISTS = "lists hold names of labels, no zeros and ones"
STEPS = "steps have other rows: one of weight 2 is not two rows, and one of weight 0 is left out"
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": STEPS,
    "check_sample_weight_equivalence_on_sparse_data": STEPS,
    "check_classifiers_multilabel_representation_invariance": LISTS,
}


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [SlideClassifier(max_epochs=3, ranker=None, random_state=0)],
    expected_failed_checks=lambda _: EXPECTED,
)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)
