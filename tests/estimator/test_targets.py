"""Rows, targets and parameters in the forms that numpy, SciPy and frames give them."""

import datetime
import enum
import warnings
from collections import UserList
from decimal import Decimal

import numpy as np
import pytest
import scipy.sparse
from pandas import NA, DataFrame, Index, Series, array
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import DataConversionWarning
from sklearn.metrics import get_scorer

from slide import (
    CSR,
    Model,
    Pattern,
    SlideClassifier,
    SlideNetwork,
    as_csr,
    as_pattern,
    load,
)
from slide.estimator.targets import read_targets
from slide.sampling import FullSampler

pytestmark = pytest.mark.usefixtures("one_thread")


def test_repeated_counts_of_short_types_do_not_wrap_around(rows, fitted):
    """Before scikit-learn adds them up."""
    counts, column = np.full(299, 200, np.int16), np.full(299, 7)
    many = scipy.sparse.coo_array((counts, (0 * column, column)), rows[0].shape)
    assert fitted._read_rows(many, reset=False).values.tolist() == [299 * 200.0]


@pytest.mark.parametrize("gap", [None, np.nan, NA])
@pytest.mark.parametrize(
    "labels", [["a", "b"], [["a"], ["b", "c"]], [3, 5], np.array(["a", "b"], object)]
)
def test_a_row_without_a_label_is_named(gap, labels):
    for y in ([*labels, gap], Series([*labels, gap])):
        with pytest.raises(ValueError, match=r"row 2 of y has no label, but .*: leave the row out"):
            read_targets(y)
    with pytest.raises(ValueError, match="a label of row 1 of y is missing"):
        read_targets([["a"], ["b", gap]])
    with pytest.raises(ValueError, match=r"row 1 of y has no label, but nan: leave"):
        read_targets(np.array([1, np.nan]))


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([datetime.date(2020, 1, 1)] * 2, r"must be texts or numbers, not datetime.date\(2020"),
        ([Decimal(2), Decimal(1)], r"must be texts or numbers, not Decimal"),
        ([1, "a"], "must be of one kind, text or numbers, not int and str"),
        (np.array(["a", 1.5], object), "must be of one kind, text or numbers, not float and str"),
        ([True, 2], "must be of one kind, text or numbers, not bool and int"),
        ([[1], [True, 2]], "must be of one kind, text or numbers, not bool and int"),
        ([{"a": 1, "b": 0}, {"a": 0, "b": 1}], "y holds dicts: give a list of label names"),
        (np.array([["a", "b"], ["c", "d"]]), "y has 2 columns of names: give a list of names"),
        (
            DataFrame(np.array([["a", "b"]]), columns=["one", "two"]),
            "y has 2 columns of names: give a list",
        ),
        (
            DataFrame(np.array([[0, 1], [1, np.nan]]), columns=["one", "two"]),
            "row 1 of y has a gap .* 'two'",
        ),
    ],
)
def test_what_is_no_name_is_said(y, message):
    with pytest.raises(ValueError, match=message):
        read_targets(y)


class Word(str, enum.Enum):
    """Names that ``str`` does not give back."""

    FIRST = "a"
    SECOND = "b"


@pytest.mark.parametrize(
    "names", [[2**63, 1], ["a\0", "a"], list(Word), [np.int64(3), np.int64(1)]]
)
def test_names_stay_as_they_are_where_numpy_would_change_them(rows, tmp_path, names):
    X, y = rows[0], np.array(names * 150, object)
    assert read_targets(y).classes.tolist() == sorted(names)
    fitted = SlideClassifier(epochs=1, ranker=None, random_state=0).fit(X, y)
    fitted.save(tmp_path / "model")
    again = SlideClassifier.load(tmp_path / "model").predict(X).tolist()
    assert set(again) <= set(names)
    assert fitted.predict(X).tolist() == again


@pytest.mark.skipif(not hasattr(np.dtypes, "StringDType"), reason="NumPy 2 has it")
def test_texts_of_numpy(rows, tmp_path):
    def texts(values):
        return np.array(values, dtype=np.dtypes.StringDType(na_object=None))

    X, names = rows[0], ["a long name", "b"] * 150
    fitted = SlideClassifier(epochs=1, ranker=None, random_state=0).fit(X, texts(names))
    fitted.save(tmp_path / "model")
    assert set(SlideClassifier.load(tmp_path / "model").predict(X)) <= set(names)
    assert fitted.score(X, texts(names)) == fitted.score(X, names)
    assert read_targets([texts(["a", "b"]), texts(["b"])]).classes.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="row 1 of y has no label, but None"):
        read_targets(texts(["a", None]))


@pytest.mark.parametrize("kind", ["object", "string", "string[pyarrow]", "category"])
def test_texts_of_pandas(kind):
    pytest.importorskip("pyarrow")
    for column in (Series, Index, array):
        found = read_targets(column(["b", "a", "b"], dtype=kind))
        assert found.classes.tolist() == ["a", "b"]
        assert found.labels.indices.tolist() == [1, 0, 1]
        with pytest.raises(ValueError, match="row 1 of y has no label"):
            read_targets(column(["b", None, "b"], dtype=kind))


LIBRARIES = {
    "pandas": DataFrame,
    "polars": lambda rows: pytest.importorskip("polars").DataFrame(rows),
    "pyarrow": lambda rows: pytest.importorskip("pyarrow").Table.from_pylist(rows),
    "datasets": lambda rows: pytest.importorskip("datasets.arrow_dataset").Dataset.from_list(rows),
}
ROWS = [{"x": float(n), "tags": ["a", "b"][: 1 + n % 2], "kind": "ab"[n % 2]} for n in range(40)]


@pytest.mark.parametrize("library", LIBRARIES)
def test_columns_and_frames_of_libraries(library):
    def column(rows, name):
        return LIBRARIES[library](rows)[name]

    for name in ("tags", "kind"):
        expected = read_targets([row[name] for row in ROWS])
        found = read_targets(column(ROWS, name))
        assert (found.classes.tolist(), found.multilabel) == (["a", "b"], name == "tags")
        np.testing.assert_array_equal(found.labels.indices, expected.labels.indices)
        with pytest.raises(ValueError, match=r"row 3 of y has no label, but (None|nan): leave"):
            read_targets(column([*ROWS[:3], {**ROWS[3], name: None}, *ROWS[4:]], name))
    with pytest.raises(ValueError, match=r"a label of row 3 of y is missing: .*None"):
        read_targets(column([*ROWS[:3], {**ROWS[3], "tags": [None, "a"]}, *ROWS[4:]], "tags"))
    X = LIBRARIES[library]([{"x": row["x"], "z": 1.0} for row in ROWS])
    fitted = SlideClassifier(epochs=1, ranker=None).fit(X, column(ROWS, "kind"))
    assert fitted.n_features_in_ == 2
    assert len(fitted.predict(X)) == 40


@pytest.mark.parametrize("library", LIBRARIES)
def test_tables_of_libraries(library):
    flags = LIBRARIES[library]([{"a": int(n % 2), "b": 1} for n in range(4)])
    found = read_targets(flags)
    assert found.classes.tolist() == ["a", "b"]
    assert found.labels.indices.tolist() == [1, 0, 1, 1, 0, 1]
    with pytest.raises(ValueError, match="X holds texts, and features are numbers"):
        SlideClassifier().fit(LIBRARIES[library](ROWS), [0, 1] * 20)


def test_a_query_of_polars_is_said():
    polars = pytest.importorskip("polars")
    with pytest.raises(ValueError, match=r"a query of polars .*: give X\.collect\(\)"):
        SlideClassifier().fit(polars.LazyFrame({"x": [1.0, 2.0]}), [0, 1])


NAMES = ["ash", "birch", "cedar"]
FLAGS = np.eye(3, dtype=int)[[0, 1, 2, 0, 1]]


def test_the_columns_of_a_frame_must_be_the_classes():
    found = read_targets(DataFrame(FLAGS, columns=NAMES))
    assert found.classes.tolist() == NAMES
    again = read_targets(DataFrame(FLAGS, columns=NAMES), np.array(NAMES))
    assert again.labels.indices.tolist() == found.labels.indices.tolist() == [0, 1, 2, 0, 1]
    with pytest.raises(ValueError, match=r"column 0 of the labels must be 'ash', .* not 'cedar'"):
        read_targets(DataFrame(FLAGS, columns=NAMES[::-1]), np.array(NAMES))
    with pytest.raises(ValueError, match=r"column 2 of the labels must be 'cedar', .* not 'oak'"):
        read_targets(DataFrame(FLAGS, columns=[*NAMES[:2], "oak"]), np.array(NAMES))
    with pytest.raises(ValueError, match="3 classes does not fit a matrix of 2 columns"):
        read_targets(DataFrame(FLAGS[:, :2], columns=NAMES[:2]), np.array(NAMES))


def test_one_column_of_a_frame_is_one_label_or_list_for_each_row():
    with pytest.warns(DataConversionWarning):
        found = read_targets(DataFrame([["b"], ["a"], ["b"]], columns=["label"]))
    assert (found.classes.tolist(), found.multilabel) == (["a", "b"], False)
    assert found.labels.indices.tolist() == [1, 0, 1]
    assert read_targets(Series(["b", "a"])).labels.indices.tolist() == [1, 0]
    found = read_targets(Series([["b"], ["a", "b"], []]))
    assert (found.classes.tolist(), found.multilabel) == (["a", "b"], True)
    assert found.labels.indptr.tolist() == [0, 1, 3, 3]


def test_frames_are_matrices():
    assert as_pattern(DataFrame(FLAGS, columns=NAMES), 3).indices.tolist() == [0, 1, 2, 0, 1]
    mixed = DataFrame(np.array([[True, 1], [False, 1.0]], object), columns=["a", "b"])
    assert as_pattern(mixed, 2).indices.tolist() == [0, 1, 1]
    mixed = DataFrame(np.array([[True, 2], [False, 0.5]], object), columns=["a", "b"])
    assert as_csr(mixed, 2).values.tolist() == [1, 2, 0.5]
    assert as_pattern(Series([[0, 2], [1]]), 3).indices.tolist() == [0, 2, 1]


def test_the_columns_of_a_frame_must_be_the_features():
    model = Model(SlideNetwork(3, [4], 2, FullSampler), feature_names=NAMES)
    expected = model.predict(FLAGS, k=1)
    found = model.predict(DataFrame(FLAGS, columns=NAMES), k=1)
    np.testing.assert_array_equal(found.labels, expected.labels)
    with pytest.raises(ValueError, match=r"column 1 of the features must be 'birch', .* not 'oak'"):
        model.predict(DataFrame(FLAGS, columns=["ash", "oak", "cedar"]), k=1)
    with pytest.raises(ValueError, match="a matrix of 2 columns does not fit 3 features"):
        model.predict(DataFrame(FLAGS[:, :2], columns=NAMES[:2]), k=1)
    unnamed = Model(model.network)
    np.testing.assert_array_equal(
        unnamed.predict(DataFrame(FLAGS, columns=[*"abc"]), k=1).labels, found.labels
    )


@pytest.mark.parametrize(
    "names", [[3, 2**63, 2**64 + 1], [-1, 2**63], [-(2**63) - 1, 2**63 + 1], ["a", 5, 2.5], [1, 2]]
)
def test_names_stay_what_they_are(names):
    found = read_targets([[name] for name in names], names).classes
    assert found.tolist() == names
    assert [type(name) for name in found.tolist()] == [type(name) for name in names]
    if "a" not in names:  # Texts and numbers have no order.
        assert read_targets([[name] for name in names]).classes.tolist() == names


@pytest.mark.parametrize(
    ("classes", "new", "message"),
    [
        ([3, 5], "oak", "must be numbers, .* not 'oak'"),
        (["ash", "oak"], 3, "texts, .* not 3"),
        ([2.0, 3.0], np.nan, "finite numbers, not nan"),
    ],
)
def test_new_names_must_be_of_the_same_kind(classes, new, message):
    X, y = np.eye(4)[[0, 1] * 4], classes * 4
    model = SlideClassifier(hidden=4, ranker=None, random_state=0)
    model.partial_fit(X, y, classes=classes)
    with pytest.raises(ValueError, match=message):
        model.add_labels([new])
    with pytest.raises(ValueError, match=message):
        model.partial_fit(X, y, classes=[*classes, new])
    assert model.classes_.tolist() == classes
    assert model.model_.network.output.out_features == 2
    assert model.add_labels([classes[1] * 2]).classes_.tolist() == [*classes, classes[1] * 2]


@pytest.mark.parametrize(("change", "value"), [(list, int), (tuple, bool), (np.array, float)])
def test_rows_of_a_matrix_are_no_lists_of_names(change, value):
    rows = [change([value(flag) for flag in row]) for row in FLAGS.tolist()]
    for classes in (None, [0, 1]):
        with pytest.raises(ValueError, match=r"3 zeros and ones in each row, .* np\.array\(y\)$"):
            read_targets(rows, classes)


@pytest.mark.parametrize(
    "lists", [[[0, 1], [1, 0]], [[0, 0], [1]], [[1], [0]], [["0", "0"], ["1", "0"]], [[0, 2, 0]]]
)
def test_lists_of_the_names_0_and_1(lists):
    assert read_targets(lists).classes.tolist() == sorted({name for row in lists for name in row})


def test_a_csr_of_labels_is_read_as_a_matrix_of_scipy():
    zeros = CSR(np.array([0, 2, 3]), np.array([0, 1, 2], np.int32), np.array([1, 0, 1.0]))
    found = read_targets(zeros)
    assert (found.labels.indptr.tolist(), found.labels.indices.tolist()) == ([0, 1, 2], [0, 2])
    assert found.classes.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match=r"Unknown label type: .* zeros and ones only"):
        read_targets(zeros._replace(values=np.array([1, 0, 2.0])))
    assert read_targets(Pattern(*zeros[:2])).labels.indices.tolist() == [0, 1, 2]


def test_labels_that_training_did_not_have_are_misses():
    X, lists = np.eye(4)[[0, 1, 2] * 8], [["a"], ["b"], ["a", "c"]] * 8
    model = SlideClassifier(hidden=8, ranker=None, random_state=0, epochs=20).fit(X, lists)
    best = model.predict_top_k(X[:3], k=1).labels[:, 0].tolist()
    assert model.score(X[:3], [["new", best[0]], ["new"], [best[2], "other"]]) == 2 / 3
    assert model.score(X[:3], ["new", best[1], best[2]]) == 2 / 3
    assert model.score(X[:2], [["new"], []]) == 0
    with pytest.raises(ValueError, match="label 'new' is not among the classes"):
        model.partial_fit(X[:2], [["new"], []])


PARAMETERS = {
    "hidden": [np.int64(8)],
    "threshold": np.float32(0.5),
    "tf_idf": np.bool_(False),
    "epochs": np.int64(1),
    "batch_size": np.int16(4),
    "lr": np.float64(0.25),
    "random_state": np.int64(0),
    "sampler": np.str_("uniform"),
}


def test_parameters_may_be_scalars_of_numpy(tmp_path):
    X, y = np.eye(4)[[0, 1, 2] * 8], np.array(["a", "b", "c"] * 8)
    own = {
        name: value.item() if isinstance(value, np.generic) else [8]
        for name, value in PARAMETERS.items()
    }
    expected = SlideClassifier(**own).fit(X, y)
    found = SlideClassifier(**PARAMETERS).fit(X, y)
    top = found.predict_top_k(X, k=np.int64(2))
    np.testing.assert_array_equal(top.scores, expected.predict_top_k(X, k=2).scores)
    assert found.predict_proba(X, top_k=np.int64(2)).nnz == 48
    assert found.model_.settings == expected.model_.settings
    found.partial_fit(X, y).save(tmp_path / "m")
    assert load(tmp_path / "m").predict(X[:1], k=3).labels.shape == (1, 3)
    with pytest.raises(ValueError, match="k must be a whole number of at least 1, not 0"):
        found.predict_top_k(X, k=np.int64(0))


@pytest.mark.parametrize(
    "y",
    [
        np.array([[3], [5]] * 4),
        DataFrame([["a"], ["b"]] * 4, columns=["label"]),
        np.array([3, 5] * 4),
    ],
)
def test_the_first_rows_of_one_column_need_all_classes(y):
    model = SlideClassifier(hidden=4, random_state=0)
    with pytest.raises(ValueError, match="the first call of partial_fit needs all classes"):
        model.partial_fit(np.eye(2)[[0, 1] * 4], y)
    sparse = scipy.sparse.csr_array([[1], [0]] * 4)
    assert model.partial_fit(np.eye(2)[[0, 1] * 4], sparse).multilabel_


HALF = r"names of labels must .*'a\\ud800' holds half of a pair"


@pytest.mark.parametrize(
    ("y", "classes", "message"),
    [
        (["a", "b"], ["a", "b", "a"], "names of labels must differ; 'a' occurs twice"),
        ([["a"], [1]], ["a", 1, "1"], "names of labels must differ; '1' occurs twice"),
        ([[0.5], [np.nan]], None, r"a label of row 1 of y is missing: \[nan\]"),
        ([[0.5], [np.inf]], None, "must be texts or finite numbers, not inf"),
        (["a", "b"], ["a", "b", None], "must be texts or finite numbers, not None"),
        (
            DataFrame(np.eye(2), columns=["a", "a"]),
            None,
            "names of labels must differ; 'a' occurs twice",
        ),
        *((y, None, HALF) for y in (["a\ud800", "b"], [["b"], ["b", "a\ud800"]])),
    ],
)
def test_names_of_labels_are_checked_before_training(monkeypatch, y, classes, message):
    monkeypatch.setattr("slide.estimator.classifier.build_network", None)
    model, X = SlideClassifier(random_state=0), np.eye(2)
    with pytest.raises(ValueError, match=message):
        model.partial_fit(X, y, classes=classes) if classes else model.fit(X, y)


def test_names_of_features_are_checked_before_training(monkeypatch):
    """scikit-learn knows frames by their package."""
    names = np.array(["a", "a"], object)
    monkeypatch.setattr("sklearn.utils.validation._get_feature_names", lambda _: names)
    monkeypatch.setattr("slide.estimator.classifier.build_network", None)
    with pytest.raises(ValueError, match="names of features must differ; 'a' occurs twice"):
        SlideClassifier().fit(np.eye(2), ["x", "y"])


FEW = {"epochs": 4, "hidden": 16, "random_state": 0}
TEXTS = [f"the {a} {v}" for a in ("cat", "dog") for v in ("eats", "runs", "naps")] * 6
FORMS = {
    "list": TEXTS,
    "column": np.array(TEXTS, object)[:, None],
    "series": Series(TEXTS),
    "frame": DataFrame(np.array([TEXTS, range(36)], object).T, columns=["text", "number"]),
    "a gap": [None, *TEXTS[1:]],
    "sequence": UserList(TEXTS),
    "bytes": [text.encode() for text in TEXTS],
    "iterator": iter(TEXTS),
}


@pytest.mark.parametrize("form", FORMS)
def test_texts_need_a_vectorizer(fitted, form):
    said = "X is an iterator" if form == "iterator" else "X holds texts, .* put a vectorizer before"
    for method in (lambda X: SlideClassifier(**FEW).fit(X, ["a", "b"] * 18), fitted.predict):
        with pytest.raises(ValueError, match=said):
            method(FORMS[form])


@pytest.mark.parametrize(("separator", "warned"), [(";", True), (",", True), ("-", False)])
def test_lists_in_one_text_are_warned_of(separator, warned):
    X = np.eye(12)[np.arange(48) % 12]
    names = [separator.join(["abcd"[n % 4], "xyz"[n % 3]]) for n in range(48)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        classifier = SlideClassifier(**FEW, ranker=None).fit(X, names)
    said = [str(each.message) for each in caught if "count as one label" in str(each.message)]
    assert len(classifier.classes_) == 12
    assert len(said) == warned
    if warned:
        assert said[0] == (
            f"labels such as {str(classifier.classes_[0])!r} count as one label each: for several "
            f"labels of a row give lists, [text.split({separator!r}) for text in y]"
        )


def test_texts_that_write_lists_are_warned_of():
    y = [f"['{'abcd'[n % 4]}' '{'xyz'[n % 3]}']" for n in range(48)]
    with pytest.warns(UserWarning, match=r"labels such as \"\['a' 'x'\]\" count as one label each"):
        SlideClassifier(**FEW, ranker=None).fit(np.eye(12)[np.arange(48) % 12], y)


@pytest.mark.parametrize(("ranker", "classes"), [("ensemble", 4), (None, 2)])
def test_scores_of_few_classes_are_dense(ranker, classes):
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, 120)
    X = np.eye(classes)[y] + rng.normal(0, 0.4, (120, classes))
    classifier = SlideClassifier(**FEW, ranker=ranker, known="keep" if ranker else "auto").fit(X, y)
    probabilities, scores = classifier.predict_proba(X), classifier.decision_function(X)
    assert isinstance(probabilities, np.ndarray)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    best = (scores > 0).astype(int) if classes == 2 else scores.argmax(1)
    assert scores.shape == ((120,) if classes == 2 else (120, 4))
    assert (best == classifier.predict(X)).mean() > 0.95  # Equal scores have no order.
    assert (probabilities.argmax(1) == classifier.predict(X)).mean() > 0.95
    listed = classifier.decision_function(X, top_k=1)
    assert (listed.nnz, listed.shape) == (120, (120, classes))
    assert get_scorer("neg_log_loss")(classifier, X, y) > -np.log(classes)
    calibrated = CalibratedClassifierCV(classifier, cv=2).fit(X, y)
    assert calibrated.predict_proba(X).shape == (120, classes)
    assert calibrated.score(X, y) > 1.5 / classes
