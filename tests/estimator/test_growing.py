"""Labels and features that come and go under a classifier."""

from itertools import chain

import numpy as np
import pytest
import scipy.sparse
from helpers import job

from slide import SlideClassifier

pytestmark = pytest.mark.usefixtures("one_thread")
OPTIONS = {"hidden": 32, "lr": 0.01, "random_state": 0, "dropout": 0.0}
# Labels that are known at each time of the stream.
TIMES = (20, 35, 50, 80)


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    """Rows, sorted by the time at which all of their labels are known, and their labels."""
    sizes = {"train_samples": 6000, "labels_per_row": 2, "nonzeros": 16, "num_features": 120}
    data = job.make_data(tmp_path_factory.mktemp("data"), **sizes)
    x, y = data.train.features, data.train.labels
    X = scipy.sparse.csr_array((x.values, x.indices, x.indptr), (6000, 120))
    lists = [y.indices[slice(*y.indptr[n : n + 2])].tolist() for n in range(6000)]
    time = np.array([sum(max(labels) >= count for count in TIMES) for labels in lists])
    return X, lists, time


def changes_on_old_rows(stream, **options):
    """What a pass changes in the precision on rows of before, of the passes over each time."""
    X, lists, time = stream
    test = np.arange(len(lists)) % 3 == 0

    def precision(rows):
        return model.score(X[rows], [lists[n] for n in rows])

    model, changes = SlideClassifier(**{**OPTIONS, "lr": 0.005, **options}), []
    for now, count in enumerate(TIMES):
        old = np.flatnonzero(test & (time < now))
        before = 0.0
        if now:
            before = precision(old)
            model.add_labels(range(TIMES[now - 1], count))
            assert precision(old) >= before - 0.01, "new labels are no answers yet"
        rows = np.flatnonzero(~test & (time <= now))
        for _ in range(4):
            model.partial_fit(X[rows], [lists[n] for n in rows], classes=range(count))
            changes += [precision(old) - before] if now else []
        assert model.classes_.tolist() == list(range(count))
        assert precision(np.flatnonzero(test & (time == now))) > 0.3
    return changes


def test_a_stream_of_labels_keeps_the_old_ones(stream):
    """Rows of each time have old and new labels; a new one is wrong for the rows of before.

    A step that computes all outputs teaches the same of new labels, and sets must lose no more.
    """
    found, whole = (changes_on_old_rows(stream, sampler=each) for each in ("lsh", "full"))
    assert min(found) >= min(whole) - 0.01
    assert min(found) >= -0.035
    assert np.mean(found) > 0.02, "on average a pass raises it"


def test_classes_grow_and_go(stream):
    X, lists, _ = stream
    names = [[f"label {n:02}" for n in row if n < 10] or ["label 00"] for row in lists[:200]]
    known = [f"label {n:02}" for n in range(10)]
    model = SlideClassifier(**OPTIONS).partial_fit(X[:200], names, classes=known)
    with pytest.raises(ValueError, match="label 'new' is not among the classes"):
        model.partial_fit(X[:2], [["new"], []])
    with pytest.raises(ValueError, match="label 'newer' is not among the classes"):
        model.partial_fit(X[:2], [["newer"], []], classes=[*known, "new"])
    assert model.classes_.tolist() == known, "an error adds no class"
    model.partial_fit(X[:200], [["new"]] * 200, classes=[*known, "new"])
    for _ in range(20):
        model.partial_fit(X[:200], [["new"]] * 200)
    assert model.classes_.tolist() == [*known, "new"]
    assert set(model.predict_top_k(X[:200], 1).labels.ravel()) == {"new"}
    assert model.predict_proba(X[:3]).shape == (3, 11)
    model.remove_labels(["label 03", "new"])
    assert model.classes_.tolist() == [n for n in known if n != "label 03"]
    assert model.predict_proba(X[:3]).shape == (3, 9)
    assert set(model.predict_top_k(X[:9], 9).labels.ravel()) == set(model.classes_)
    assert list(model.model_.label_names) == model.classes_.tolist()
    model.add_labels(["new"]).partial_fit(X[:2], [["new"], ["label 00"]])
    assert model.classes_[-1] == "new"


def test_after_fit_the_sampler_is_that_of_the_recipe(stream):
    X, lists, _ = stream
    for sampler, active in (("uniform", 100), ("lsh", 100), ("full", None)):
        model = SlideClassifier(epochs=1, ranker=None, sampler=sampler, **OPTIONS)
        model.fit(X[:300], lists[:300]).add_labels(range(80, 400))
        assert len(model.classes_) == 400 - 80 + len(set(chain.from_iterable(lists[:300])))
        own = model.model_.network.output.sampler
        assert own.out_features == len(model.classes_)
        assert getattr(own, "active", None) in (active, active and len(model.classes_) // 4)
        model.partial_fit(X[:300], [[399]] * 300)


def test_what_cannot_be_changes_nothing(stream):
    X, lists, _ = stream
    names = [f"label {n:02}" for n in range(80)]
    model = SlideClassifier(**OPTIONS)
    model.partial_fit(X[:50], [[names[n] for n in row] for row in lists[:50]], classes=names)
    for call, message in (
        (lambda: model.add_labels([names[79], "new"]), "must differ; 'label 79' is not new"),
        (lambda: model.add_labels([]), "at least 1"),
        (lambda: model.remove_labels([names[79], "x"]), "label 'x' is not among the classes"),
        (lambda: model.remove_labels(names), "one of the 80 outputs must stay"),
        (lambda: model.add_features(["a"]), "the features have no names"),
        (lambda: model.partial_fit(X, lists, classes=names[1:]), "classes must begin with"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
        assert list(model.model_.label_names) == model.classes_.tolist() == names


def test_each_call_drops_other_units(stream, monkeypatch):
    """With the same draws in each call, the same hidden units would never learn."""
    X, lists, _ = stream
    model = SlideClassifier(**{**OPTIONS, "dropout": 0.5, "hidden": 64, "sampler": "full"})
    model.partial_fit(X[:1], lists[:1], classes=range(80))
    learnt = []
    for _ in range(20):
        before = model.model_.network.output.weight.detach().clone()
        model.partial_fit(X[:1], lists[:1])
        learnt.append((model.model_.network.output.weight != before).any(0).numpy())
    assert np.any(learnt, 0).sum() > 1.5 * learnt[0].sum()
