"""What `SlideClassifier` answers: scores, probabilities, known labels, and calls after a fit."""

import numpy as np
import pytest
import scipy.sparse

from slide import SlideClassifier

pytestmark = pytest.mark.usefixtures("one_thread")
FEW = {"epochs": 2, "hidden": 16, "random_state": 0}


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
    for bad in ("none", np.ones(3), -np.ones(300)):
        with pytest.raises(ValueError, match=r"sample_weight|could not convert"):
            fitted.score(X, Y, sample_weight=bad)
    with pytest.raises(ValueError, match="texts or numbers, not"):
        SlideClassifier(**FEW).fit(X, [[("a", n)] for n in first])


def test_weights_of_labels_leave_probabilities_as_they_are(rows):
    X, Y = rows
    plain = SlideClassifier(**FEW).fit(X, Y)
    weights = np.linspace(1, 10, Y.shape[1])
    model = SlideClassifier(label_weights=weights, **FEW).fit(X, Y)
    np.testing.assert_allclose(
        model.predict_proba(X, top_k=80).toarray(), plain.predict_proba(X, top_k=80).toarray()
    )
    assert (model.predict(X) != plain.predict(X)).nnz <= 3, "but for rounding at the threshold"
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


def test_learning_on_after_a_run_in_a_folder(rows, tmp_path):
    X, Y = rows
    model = SlideClassifier(**FEW, ranker=None, run_dir=tmp_path / "run").fit(X, Y)
    assert model.partial_fit(X, Y).score(X, Y) > 0
    with pytest.raises(ValueError, match="holds a run"):
        model.fit(X, Y)


@pytest.mark.filterwarnings("ignore:known labels:UserWarning")
def test_a_row_without_any_answer_gets_the_most_frequent_class():
    """In a recommender, the own items of a row are no answers: here it has all of them."""
    rng = np.random.default_rng(0)
    items = [np.sort(rng.permutation(40)[:9]) for _ in range(600)]
    y = np.array([min(set(range(40)) - set(row.tolist())) for row in items])
    y[:40] = np.arange(40)
    X = scipy.sparse.lil_array((600, 40), dtype=np.float32)
    for row, own in enumerate(items):
        X[row, own[own != y[row]]] = 1
    model = SlideClassifier(**FEW, kind="items").fit(X, y)
    every = np.ones((1, 40), np.float32)
    assert model.model_.ranker.kind == "items"
    assert model.predict_top_k(every, k=1).labels.tolist() == [[None]]
    assert model.predict(every) == np.bincount(y).argmax()
