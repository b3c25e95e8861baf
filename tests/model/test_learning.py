"""Models that go on learning, with labels and features that come and go, and restricted ones."""

import copy
import re
import threading

import numpy as np
import pytest
import scipy.sparse
import torch
from helpers import job
from helpers.answers import assert_same
from pandas import DataFrame

import slide
from slide import SlideClassifier
from slide.data import TextOptions, TextVectorizer, holdout, transform
from slide.model import Model, load
from slide.ranking import EnsembleRanker
from slide.training import DivergenceError

pytestmark = pytest.mark.usefixtures("one_thread")


def ranked(data, steps=(), **options):
    torch.manual_seed(0)
    train, held = holdout(data.train, 0.5, seed=0)
    network = job.make_network(data)
    ranker = EnsembleRanker(depth=10, **options).fit(network, train, held, every=data.train)
    return Model(network, ranker, steps)


def matrix(rows, width):
    return scipy.sparse.csr_array((rows.values, rows.indices, rows.indptr), (rows.num_rows, width))


def test_new_labels_are_learnt_and_old_ones_stay(raw):
    names = [f"label {n}" for n in range(80)]
    network = job.make_network(raw)
    priors = slide.ActiveLoss("squared_hinge").prior_scores(raw.train.labels, 80)
    network.output.bias.data.copy_(priors)
    model, rows = Model(network, label_names=names), raw.test.features
    for _ in range(5):
        model.partial_fit(raw.train.features, raw.train.labels, lr=0.01)
    before = model.predict(rows, k=1)
    state = model.optimizer.state[model.network.output.weight]["exp_avg"].clone()
    assert model.add_labels(["new", "newer"]).tolist() == [80, 81]
    assert model.num_labels == len(model.label_names) == 82
    after = model.predict(rows, k=1)
    assert after.labels.tolist() == before.labels.tolist()
    np.testing.assert_array_equal(after.scores, before.scores)
    moments = model.optimizer.state[model.network.output.weight]["exp_avg"]
    assert torch.equal(moments[:80], state)
    for _ in range(100):
        model.partial_fit(rows, [["new"]] * 15 + [["newer", "label 3"]] * 15, lr=0.03)
    best = model.predict(rows, k=2).labels
    assert (best[:15, 0] == "new").all()
    assert (np.isin(best[15:], ["newer", "label 3"])).mean() > 0.9


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_opened_model_learns_on(raw, tmp_path, dtype):
    ranked(raw).save(tmp_path / "m", dtype)
    model, rows = load(tmp_path / "m"), raw.train.features
    before = load(tmp_path / "m").predict(rows).scores
    assert model.partial_fit(rows, raw.train.labels) is model
    assert model.ranker is None
    assert type(model.network.output.sampler) is slide.ActiveSampler
    model.add_labels(3)
    model.partial_fit(rows, [[82]] * 400)
    assert model.passes == 2
    # The folder is what it was: the pages of changed weights are this process's own.
    np.testing.assert_array_equal(load(tmp_path / "m").predict(rows).scores, before)
    model.save(tmp_path / "m")
    again = load(tmp_path / "m")
    np.testing.assert_array_equal(again.predict(rows).labels, model.predict(rows).labels)
    assert again.num_labels == 83


def test_a_ranker_takes_more_of_both(raw, tmp_path):
    for options in ({}, {"objective": "psp", "known": "exclude"}):
        model = ranked(raw, **options)
        rows = matrix(raw.test.features, 60)
        expected = model.predict(rows, k=5)
        model.add_labels(4)
        model.add_features(6)
        wide = scipy.sparse.csr_array((rows.data, rows.indices, rows.indptr), (30, 66))
        found = model.predict(wide, k=5)
        assert found.labels.shape == (30, 5)
        if not options:
            np.testing.assert_array_equal(found.labels, expected.labels)
            np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)
        with pytest.raises(ValueError, match="a matrix of 60 columns does not fit 66 features"):
            model.predict(rows)
        unseen = scipy.sparse.csr_array(np.eye(66, dtype=np.float32)[60:])
        assert np.isfinite(model.predict(unseen).scores).all()
        model.save(tmp_path / "m")
        again = load(tmp_path / "m").predict(wide, k=5)
        np.testing.assert_array_equal(again.scores, found.scores)


@pytest.mark.parametrize("with_ranker", [False, True])
def test_labels_go_and_come_back(raw, tmp_path, with_ranker):
    data = transform(raw, l2_norm=True, min_label_count=4)
    names = [f"label {n}" for n in range(80)]
    model = (
        ranked(data, data.steps) if with_ranker else Model(job.make_network(data), None, data.steps)
    )
    model.label_names = Model(job.make_network(raw), label_names=names).label_names
    own = data.steps[0].label_ids
    rows = raw.test.features
    gone = {f"label {n}" for n in own[:3]}
    model.remove_labels(gone)
    assert model.network.output.out_features == len(own) - 3
    found = model.predict(rows, k=80).labels
    assert not gone & set(found.ravel().tolist())
    expected = {f"label {n}" for n in own[3:]}
    assert set(found.ravel().tolist()) - {None} <= expected
    assert model.add_labels([f"label {own[1]}", "new"]).tolist() == [own[1], 80]
    for _ in range(30):
        model.partial_fit(rows, [[f"label {own[1]}", "new"]] * 30, lr=0.02)
    assert set(model.predict(rows, k=2).labels.ravel()) == {f"label {own[1]}", "new"}
    model.save(tmp_path / "m")
    assert set(load(tmp_path / "m").predict(rows, k=2).labels.ravel()) == {f"label {own[1]}", "new"}
    with pytest.raises(ValueError, match=f"label {own[0]} was removed before"):
        model.remove_labels([f"label {own[0]}"])
    with pytest.raises(ValueError, match=rf"'label {own[0]}' was removed: add_labels\(\['label"):
        model.partial_fit(rows, [[f"label {own[0]}"]] * 30)


def test_features_pass_the_steps(raw):
    data = transform(raw, tf_idf=True, hashed_features=40)
    model = Model(job.make_network(data), None, data.steps, feature_names=map(str, range(60)))
    model.add_features(["one", "two"])
    assert model.network.first.in_features == 40
    assert model.num_features == len(model.feature_names) == 62
    assert model.steps[0].tf_idf_weights[-1] == model.steps[0].tf_idf_weights.max()
    model.partial_fit(np.eye(62)[60:], [[1], [2]])
    assert model.predict(np.eye(62)).labels.shape == (62, 5)
    rows = np.eye(62)[:60]
    plain = Model(job.make_network(data), None, data.steps)
    plain.network.load_state_dict(model.network.state_dict())
    np.testing.assert_array_equal(model.predict(rows).labels, plain.predict(np.eye(60)).labels)


def test_words_are_features():
    texts = ["a red fox", "a red dog", "a dog"]
    vectorizer = TextVectorizer.fit(texts, TextOptions(min_rows=1))
    network = slide.SlideNetwork(len(vectorizer.terms), [8], 3, slide.FullSampler)
    model = Model(network, label_names=["x", "y", "z"], vectorizer=vectorizer)
    before = model.predict(texts).scores
    model.add_features(["blue"])
    np.testing.assert_array_equal(model.predict(texts).scores, before)
    for _ in range(40):
        model.partial_fit(["blue", "red"], ["z", "x"], lr=0.05)
    assert model.predict(["a blue dog", "red"], k=1).labels.ravel().tolist() == ["z", "x"]


@pytest.mark.parametrize("word", ["Fox", "c", "red fox", "c++"])
def test_words_that_no_text_has_are_refused(word):
    vectorizer = TextVectorizer.fit(["a red fox"], TextOptions(min_rows=1))
    model = Model(slide.SlideNetwork(2, [8], 3, slide.FullSampler), vectorizer=vectorizer)
    with pytest.raises(ValueError, match=f"no text has the feature '{re.escape(word)}': .* 1 of"):
        model.add_features(["blue", word])
    assert model.num_features == model.network.first.in_features == len(vectorizer.terms) == 2
    pairs = TextVectorizer.fit(["Fox"], TextOptions(min_rows=1, ngrams=2, lower=False))
    model = Model(slide.SlideNetwork(1, [8], 3, slide.FullSampler), vectorizer=pairs)
    model.add_features(["fox", "Red Fox"])
    assert model.rows_of(["A Red Fox"]).indices.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.add_labels(2), ValueError, "the labels have names: give a list of new names"),
        (lambda m: m.add_labels("ab"), ValueError, "give a list of new names, not 'ab'"),
        (lambda m: m.add_labels(["b", "a"]), ValueError, "must differ; there is 'a' alr"),
        (lambda m: m.add_labels(["b", "b"]), ValueError, "labels must differ; 'b' occurs twice"),
        (lambda m: m.add_labels([]), ValueError, "add_labels needs at least one name"),
        (lambda m: m.add_labels([7]), TypeError, "must be texts, or all of them numbers; one is 7"),
        (lambda m: m.add_features(["b"]), ValueError, "the features have no names: say how many"),
        (lambda m: m.add_features(0), ValueError, "features must be a whole number of at least 1"),
        (lambda m: m.remove_labels(["z"]), ValueError, "the model has no label 'z'"),
        (lambda m: m.remove_labels(["a", "c"]), ValueError, "one of the 2 outputs must stay"),
        (lambda m: m.partial_fit(np.eye(3), ["a", "c", "z"]), ValueError,
         r"the model has no label 'z': add_labels\(\['z'\]\) adds it"),
        (lambda m: m.partial_fit(np.eye(4), ["a"] * 4), ValueError, "4 columns does not fit 3"),
        (lambda m: m.partial_fit(np.eye(3), ["a"] * 2), ValueError, "2 rows of labels do not fit"),
        (lambda m: m.partial_fit(np.eye(3), ["a"] * 3, lr=0), ValueError, "lr must be"),
        (lambda m: m.partial_fit(np.eye(3), ["a"] * 3, weights=[1, -1, 1]), ValueError,
         "weights must be finite and at least 0, not -1.0"),
        (lambda m: m.partial_fit(np.eye(3), DataFrame(np.eye(3, 2), columns=["c", "a"])),
         ValueError, "column 0 of the labels must be 'a', as in training, not 'c'"),
    ],
)  # fmt: skip
def test_what_cannot_be(call, error, message):
    model = Model(slide.SlideNetwork(3, [4], 2, slide.FullSampler), label_names=["a", "c"])
    with pytest.raises(error, match=message):
        call(model)
    assert model.num_labels == model.network.output.out_features == 2
    assert model.num_features == model.network.first.in_features == 3
    assert list(model.label_names) == ["a", "c"]


def test_what_is_refused_changes_nothing(raw, tmp_path):
    model, rows = ranked(raw), raw.test.features
    model.optimizer = slide.RowSparseAdam(model.network.parameter_groups(0.01, 1.0))
    model.rename_labels([f"label {n}" for n in range(80)])
    before = model.predict(rows, k=5)
    labels = [["label 1"]] * len(raw.test)
    refused = ({"weights": -np.ones(30)}, {"rows_in_step": 0}, {"loss": "none"}, {"lr": 1e39})
    for options in (*refused, {"lr": 1e30, "input_rate": 1e10}, {"input_rate": 0}):
        with pytest.raises(ValueError, match=r"at least|must be"):
            model.partial_fit(rows, labels, **options)
    infinite = slide.CSR(rows.indptr, rows.indices, np.full_like(rows.values, np.inf))
    for call in (model.predict, lambda x: model.partial_fit(x, labels)):
        with pytest.raises(ValueError, match="finite float32 values, not inf"):
            call(infinite)
    model.remove_labels(["label 3"])
    with pytest.raises(ValueError, match="twice"):
        model.add_labels(["label 3", "label 3", "new"])
    assert len(model.label_names) == model.num_labels
    model.add_labels(["label 3"])
    assert model.ranker is not None
    found = model.predict(rows, k=5)
    assert (found.labels == before.labels).mean() > 0.9, "only label 3 begins anew"
    model.save(tmp_path / "m")
    assert load(tmp_path / "m").predict(rows, k=5).labels.tolist() == found.labels.tolist()


@pytest.mark.parametrize("repeated", [[[3], [5, 9, 5]], slide.Pattern.from_lists([[3], [9, 9]])])
def test_a_repeated_number_is_refused_before_a_step(raw, repeated):
    model = ranked(raw)
    first = model.network.first.weight.detach().clone()
    with pytest.raises(ValueError, match=r"labels of a row must be distinct; row 1 has \d twice"):
        model.partial_fit(raw.test.features.slice(0, 2), repeated, rows_in_step=1)
    assert model.ranker is not None
    assert model.optimizer is None
    assert torch.equal(model.network.first.weight, first)


def test_a_repeated_name_counts_once(raw):
    weights = []
    for labels in ([["a"], ["b"]], [["a"], ["b", "b"]]):
        torch.manual_seed(0)
        network = slide.SlideNetwork(60, [8], 2, slide.FullSampler)
        model = Model(network, label_names=["a", "b"])
        model.partial_fit(raw.test.features.slice(0, 2), labels)
        weights.append(model.network.output.weight.detach())
    assert torch.equal(*weights)


TRAINING = {"dropout": 0.3, "input_dropout": 0.1, "precision": "bfloat16"}


def training_of(network):
    return {
        "dropout": network.dropout,
        "input_dropout": network.input_dropout,
        "precision": network.output.precision,
    }


def learnt(model):
    return model.partial_fit(np.eye(6), [[0, 1]] * 6)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_the_network_is_trained_as_before(tmp_path, dtype):
    network = slide.SlideNetwork(6, [8], 5, slide.FullSampler, **TRAINING)
    Model(network).save(tmp_path / "m", dtype)
    load(tmp_path / "m").save(tmp_path / "again", dtype)
    for model in (load(tmp_path / "again"), load(tmp_path / "m").restricted(range(4))):
        assert training_of(model.network) == TRAINING
        assert training_of(learnt(model).network) == TRAINING


@pytest.mark.parametrize("settings", [{}, {"optimizer": {"lr": 1.0, "eps": 1e-6, "rowwise": True}}])
def test_options_of_the_optimizer_are_those_of_the_settings(settings):
    network = slide.SlideNetwork(6, [8], 5, slide.FullSampler)
    group = learnt(Model(network, settings=settings)).optimizer.param_groups[0]
    expected = (1e-6, True) if settings else (1e-8, False)
    assert (group["lr"], group["eps"], group["rowwise"]) == (0.002, *expected)


@pytest.mark.parametrize("whole", [True, False])
def test_a_classifier_keeps_its_optimizer(tmp_path, whole):
    """At a constant rate from the start, a mean of gradients helps."""
    X, y = np.eye(6)[[0, 1, 2, 3] * 5], ["a", "b", "c", "d"] * 5
    model = SlideClassifier(hidden=8, epochs=1, ranker=None, random_state=0)
    if whole:
        model.fit(X, y)
    model.partial_fit(X, y, classes=list("abcd"))
    model.save(tmp_path / "m")
    for own in (model.model_, load(tmp_path / "m").partial_fit(X, y)):
        betas = {group["betas"] for group in own.optimizer.param_groups}
        assert betas == {(0.0, 0.99) if whole else (0.9, 0.999)}
        assert own.network.dropout == 0.3
        assert own.passes == 1


def test_a_pass_ends_where_the_loss_is_not_finite():
    """The steps before it have left finite weights, and that step is not made."""
    torch.manual_seed(0)
    model = Model(slide.SlideNetwork(6, [8], 5, slide.FullSampler))
    with pytest.raises(DivergenceError, match=r"loss is (nan|inf) after \d+ steps .* lower lr"):
        model.partial_fit(np.eye(6), [[0, 1]] * 6, lr=1e25, rows_in_step=1)
    assert all(bool(p.isfinite().all()) for p in model.network.parameters())
    assert not model.network.training


@pytest.mark.parametrize(
    ("steps", "known"), [({}, "exclude"), ({"min_label_count": 4, "l2_norm": True}, "keep")]
)
def test_answers_are_the_others_without_the_labels_left_out(raw, steps, known, tmp_path):
    torch.manual_seed(0)
    made = transform(raw, **steps)
    train, held = holdout(made.train, 0.5, seed=0)
    network = job.make_network(made)
    # As many candidates as there are labels, so that restricting adds none.
    depths = {"depth": 80, "voted": 80, "associated": 80, "known": known}
    ranker = EnsembleRanker(**depths).fit(network, train, held, every=made.train)
    model = Model(network, ranker, made.steps)
    some = np.arange(80)[5::3]
    small = model.restricted(some[::-1])
    rows = raw.train.features if known == "exclude" else raw.test.features
    ids, scores = model.predict(rows, k=80)
    few, values = small.predict(rows, k=80)
    for row in range(len(ids)):
        left = np.isin(ids[row], some)
        found = few[row] >= 0
        assert set(few[row][found]) == set(ids[row][left])
        assert found.sum() < 80
    assert (small.num_features, small.num_labels) == (60, 80)
    small.save(tmp_path / "m")
    assert_same(load(tmp_path / "m").predict(rows, k=80), (few, values))
    size = [(model.network.output.weight.shape[0]), small.network.output.weight.shape[0]]
    assert size[1] < size[0]
    np.testing.assert_array_equal(model.predict(rows, k=80).scores, scores)  # It is as it was.


@pytest.mark.parametrize(
    ("labels", "message"),
    [([80], "the model has no label 80"), (["a"], "no label 'a'"), ([], "at least one label")],
)
def test_labels_that_cannot_be(raw, labels, message):
    with pytest.raises(ValueError, match=message):
        Model(job.make_network(raw)).restricted(labels)


def test_a_model_that_learns_leaves_a_restricted_one_alone(raw):
    torch.manual_seed(0)
    rows, labels = raw.test.features, [[3]] * 30
    model = Model(job.make_network(raw))
    model.partial_fit(rows, [[5]] * 30, lr=0.05)  # The moments of its optimizer must go on.
    twin = copy.deepcopy(model)
    small, other = model.restricted([3, 1, 70]), model.restricted([2, 4])
    before = small.predict(rows, k=3), other.predict(rows, k=2)
    output, first = model.network.output, model.predict(rows, k=9)
    for learner in (model, twin):
        for _ in range(2):
            learner.partial_fit(rows, labels, lr=0.05)
    assert_same(small.predict(rows, k=3), before[0])
    assert_same(other.predict(rows, k=2), before[1])
    found, expected = model.predict(rows, k=9), twin.predict(rows, k=9)
    assert (found.scores != first.scores).any()
    assert_same(found, expected)
    assert model.network.output is output, "the many outputs need no copy"
    model.restricted([3, 1]).partial_fit(rows, [[1]] * 30, lr=0.05)
    np.testing.assert_array_equal(model.predict(rows, k=9).scores, expected.scores)
    small.partial_fit(rows, [[1]] * 30, lr=0.05)
    model.add_features(2)
    assert (small.num_features, model.num_features) == (60, 62)


def test_one_thread_at_a_time_changes_a_model(raw):
    """Two that trained it ended the process: they share the gradients of its weights."""
    names = [f"label {n}" for n in range(80)]
    model = Model(job.make_network(raw), label_names=names)
    shared = copy.copy(model)  # As `with_vectorizer` gives: it has the same network.
    rows = raw.test.features
    before = model.predict(rows).labels.tolist()
    within, done = threading.Event(), threading.Event()

    def slow():
        within.set()
        assert done.wait(60)
        yield "new"

    other = threading.Thread(target=model.add_labels, args=[slow()])
    other.start()
    try:
        assert within.wait(60)
        for call in (
            lambda: shared.partial_fit(rows, raw.test.labels),
            lambda: model.add_labels(["newer"]),
            lambda: model.remove_labels(["label 3"]),
            lambda: model.add_features(1),
        ):
            with pytest.raises(RuntimeError, match="another thread is training or resizing"):
                call()
        assert model.predict(rows).labels.tolist() == before
    finally:
        done.set()
        other.join()
    assert model.num_labels == 81
    model.partial_fit(rows, raw.test.labels)  # As one that was refused did not change it.
