"""`SlideClassifier` on small data: forms of targets, answers, parameters, and copies."""

import pickle
from itertools import pairwise

import joblib
import numpy as np
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

import slide
from slide import SlideClassifier
from slide.training import DivergenceError
from slide.training.evaluation import precision_at_k

pytestmark = pytest.mark.usefixtures("one_thread")
FEW = {"epochs": 2, "hidden": 16, "random_state": 0}


def lists_of(Y, names):
    return [[names[n] for n in Y.indices[slice(*bounds)]] for bounds in pairwise(Y.indptr)]


def test_all_forms_of_the_same_targets(rows, fitted):
    """Names sort as the numbers do."""
    X, Y = rows
    names = [f"label {n:02}" for n in range(80)]
    expected = fitted.predict_top_k(X, k=4)
    forms = {"dense": Y.toarray(), "csc": Y.tocsc(), "bool": Y.toarray().astype(bool)}
    used = np.unique(Y.indices)
    for y in (*forms.values(), slide.as_pattern(Y, 80)):
        found = SlideClassifier(**FEW).fit(X, y)
        assert found.classes_.tolist() == list(range(len(found.classes_)))
        np.testing.assert_array_equal(found.predict_top_k(X, k=4).scores, expected.scores)
    model = SlideClassifier(**FEW).fit(X, lists_of(Y, names))
    assert model.classes_.tolist() == [names[n] for n in used]
    assert model.multilabel_
    if len(used) == 80:
        labels, scores = model.predict_top_k(X, k=4)
        np.testing.assert_array_equal(scores, expected.scores)
        assert labels.tolist() == [[names[n] for n in row] for row in expected.labels]
    best, labels = model.model_.predict_ids(X, 1).labels, slide.as_pattern(Y[:, used], len(used))
    assert model.score(X, lists_of(Y, names)) == pytest.approx(precision_at_k(best, labels, 1))


@pytest.mark.filterwarnings("ignore:Sparse CS:UserWarning")
@pytest.mark.parametrize("layout", ["coo", "csr", "csc"])
def test_sparse_tensors(rows, fitted, layout):
    X, Y = (torch.from_numpy(part.toarray()) for part in rows)
    kind = getattr(torch, f"sparse_{layout}")
    X, Y = X.to_sparse(layout=kind), Y.to_sparse(layout=kind)
    expected = fitted.predict_top_k(rows[0], k=4)
    np.testing.assert_array_equal(fitted.predict_top_k(X, k=4).scores, expected.scores)
    assert fitted.score(X, Y) == fitted.score(*rows)
    if layout == "coo":
        found = SlideClassifier(**FEW).fit(X, Y).predict_top_k(X, k=4)
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
    assert fitted.predict_proba(X).nnz <= 300 * 80
    sets = fitted.predict(X)
    assert scipy.sparse.issparse(sets)
    assert set(sets.data.tolist()) <= {1}
    every = fitted.predict_proba(X)
    assert sets.nnz == (every.data >= 0.5).sum()
    low = clone(fitted).set_params(threshold=0.01)
    low.__dict__.update({k: v for k, v in vars(fitted).items() if k.endswith("_")})
    assert low.predict(X).nnz == (every.data >= 0.01).sum() > sets.nnz


def test_the_network_alone(rows):
    X, Y = rows
    model = SlideClassifier(ranker=None, **FEW).fit(X, Y)
    assert model.model_.ranker is None
    scores = model.decision_function(X, top_k=80)
    assert scores.nnz == 300 * 80
    probabilities = model.predict_proba(X, top_k=80)
    np.testing.assert_allclose(probabilities.data, np.clip((scores.data + 1) / 2, 0, 1))


def test_one_label_for_each_row(rows):
    X, Y = rows
    first = Y.argmax(axis=1)
    for names in (np.array([f"name {n}" for n in first]), first * 10 - 100, first * 1.0):
        model = SlideClassifier(**FEW).fit(X, names)
        assert not model.multilabel_
        np.testing.assert_array_equal(model.classes_, np.unique(names))
        found = model.predict(X)
        assert found.shape == (300,)
        assert set(found) <= set(names)
        assert model.score(X, names) == pytest.approx(np.mean(found == names))
        assert model.score(X, names, sample_weight=found == names) == 1


def test_pipelines_searches_and_copies(tmp_path):
    texts = [f"{kind} number {n} of all {kind}s" for n in range(30) for kind in ("cat", "dog")]
    topics = [["animal", text.split()[0]] for text in texts]
    model = make_pipeline(TfidfVectorizer(), SlideClassifier(**FEW)).fit(texts, topics)
    assert model.score(texts, topics) > 0.9
    labels, _ = model[-1].predict_top_k(model[0].transform(["a dog"]), k=2)
    assert set(labels[0]) == {"animal", "dog"}
    again = pickle.loads(pickle.dumps(model))
    assert again.score(texts, topics) == model.score(texts, topics)
    joblib.dump(model, tmp_path / "m")
    assert joblib.load(tmp_path / "m").score(texts, topics) == model.score(texts, topics)
    X = TfidfVectorizer().fit_transform(texts)
    search = GridSearchCV(SlideClassifier(**FEW), {"hidden": [4, 8], "ranker": [None]}, cv=2)
    search.fit(X, topics)
    assert search.best_params_["hidden"] in (4, 8)
    copied = clone(search.best_estimator_)
    assert copied.get_params() == search.best_estimator_.get_params()
    assert not hasattr(copied, "model_")


def test_equal_seeds_and_the_state_around(rows):
    X, Y = rows
    options = {**FEW, "ranker": None}
    before = torch.get_rng_state()
    one, two = (SlideClassifier(**options).fit(X, Y).predict_proba(X) for _ in range(2))
    np.testing.assert_array_equal(one.data, two.data)
    assert torch.equal(torch.get_rng_state(), before)
    options["random_state"] = np.random.RandomState(0)
    other = SlideClassifier(**options).fit(X, Y).predict_proba(X)
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


def test_rare_labels_first(rows):
    X, Y = rows
    plain = SlideClassifier(**FEW).fit(X, Y)
    rare = SlideClassifier(label_weights="propensity", **FEW).fit(X, Y)
    counts = np.asarray(Y.sum(0)).ravel()
    assert rare.model_.ranker.objective == "psp"
    means = [counts[m.predict_top_k(X, 5).labels.astype(int)].mean() for m in (plain, rare)]
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
    names = [f"label {n:02}" for n in range(80)]
    lists = lists_of(Y, names)
    named = SlideClassifier(**FEW).partial_fit(X[:50], lists[:50], classes=names)
    named.partial_fit(X[50:], lists[50:])
    assert named.classes_.tolist() == names
    assert named.predict_top_k(X[:3]).labels.shape == (3, 5)
    first = Y.argmax(axis=1)
    single = SlideClassifier(**FEW).partial_fit(X, first, classes=range(80))
    assert single.partial_fit(X[:1], first[:1]).predict(X[:2]).shape == (2,)
    after = SlideClassifier(**FEW).fit(X, Y)
    ranked = after.model_.network.output.weight.detach().clone()
    assert after.partial_fit(X, Y).model_.ranker is None
    assert not torch.equal(after.model_.network.output.weight, ranked)


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
        ({"sampler": "best"}, "sampler must be one of uniform, lsh, full, not 'best'"),
        ({"ranker": "trees"}, "ranker must be ensemble, none or None, not 'trees'"),
        ({"label_weights": "rare"}, "label_weights must be one of propensity, not 'rare'"),
        ({"label_weights": [1, 2]}, "label_weights must be None, propensity, or 80 numbers"),
        ({"hidden": 0}, "hidden must be a whole number of at least 1, not 0"),
        ({"epochs": 0}, "epochs must be auto or a whole number of at least 1, not 0"),
    ],
)
def test_parameters_that_cannot_be(rows, change, message):
    with pytest.raises(ValueError, match=message):
        SlideClassifier(**{**FEW, **change}).fit(*rows)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, X, Y: m.fit(X, Y[:7]), "inconsistent numbers of samples"),
        (lambda m, X, Y: m.fit(X, Y * 2), "must hold zeros and ones only"),
        (lambda m, X, Y: m.fit(X, [[]] * 300), "y holds no class"),
        (lambda m, X, Y: m.fit(X, [["a", 1]] * 300), "of one kind, text or numbers, not int and"),
        (lambda m, X, Y: m.fit(X, None), "requires y to be passed, but the target y is None"),
        (lambda m, X, Y: m.fit(X, np.linspace(0, 1, 300)), "Unknown label type: continuous"),
        (lambda m, X, Y: m.partial_fit(X, [["a"]] * 300), "first call of partial_fit needs all"),
        (lambda m, X, Y: m.partial_fit(X, [["a"]] * 300, ["b"]), "label 'a' is not among the cla"),
        (lambda m, X, Y: m.partial_fit(X, Y, range(9)), "9 classes do not fit a matrix of 80"),
        (lambda m, X, Y: m.set_params(tf_idf=True).partial_fit(X, Y), "tf_idf needs all rows"),
        (lambda m, X, Y: m.partial_fit(X, Y).partial_fit(X, Y, range(1, 81)), "of the first call"),
        (lambda m, X, Y: m.fit(X, Y).predict_top_k(X, 0), "k must be a whole number of at least"),
    ],
)
def test_targets_and_calls_that_cannot_be(rows, call, message):
    with pytest.raises(ValueError, match=message):
        call(SlideClassifier(**FEW), *rows)
