"""Pipelines of texts as folders of models: equal features, equal answers, and no code."""

import json

import numpy as np
import pytest
from sklearn.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MaxAbsScaler

import slide
from slide import SlideClassifier
from slide.data import TextVectorizer
from slide.model.folder import MODEL_FILE, MODEL_FOLDER
from slide.utils.files import json_digest, write_json
from slide.utils.tensor_folder import read_folder

pytestmark = pytest.mark.usefixtures("one_thread")
FEW = {"epochs": 2, "hidden": 16, "random_state": 0, "known": "keep"}
WORDS = ("cat", "dog", "owl", "Élan")
TEXTS = [f"the {a} {v}s, {v}s at 3" for a in WORDS for v in ("eat", "sleep", "run")] * 5
NAMES = [text.split()[1] for text in TEXTS]
LISTS = [[name, "animal"] for name in NAMES]
VECTORIZERS = {
    "tfidf": TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2, dtype=np.float32),
    "stop": TfidfVectorizer(stop_words="english", strip_accents="unicode", norm="l1"),
    "no idf": TfidfVectorizer(use_idf=False, lowercase=False, smooth_idf=False, max_features=9),
    "chars": TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), max_df=0.9),
    "counts": CountVectorizer(binary=True, token_pattern=r"[a-z]+", stop_words=["the", "at"]),
    "fixed": CountVectorizer(vocabulary={"owl": 1, "dog": 0}),
    "hashes": HashingVectorizer(n_features=64, alternate_sign=False, norm="l1"),
}


@pytest.mark.parametrize("kind", VECTORIZERS)
def test_features_are_equal(kind):
    vectorizer = VECTORIZERS[kind].fit(TEXTS)
    found = TextVectorizer.of(vectorizer)
    again = TextVectorizer.restored(
        json.loads(json.dumps(found.settings())), found.terms, found.idf
    )
    texts = [*TEXTS, "an unknown Owl sleeps sleeps", ""]
    expected = vectorizer.transform(texts).astype(np.float32)
    for each in (found, again):
        rows = each.rows(texts)
        assert each.num_features == expected.shape[1]
        np.testing.assert_array_equal(rows.indptr, expected.indptr)
        np.testing.assert_array_equal(rows.indices, expected.indices)
        np.testing.assert_array_equal(rows.values, expected.data)


@pytest.mark.parametrize(("kind", "targets"), [("stop", NAMES), ("hashes", LISTS)])
def test_a_pipeline_becomes_a_model(kind, targets, tmp_path):
    pipeline = make_pipeline(VECTORIZERS[kind], SlideClassifier(**FEW)).fit(TEXTS, targets)
    slide.save(pipeline, tmp_path / "model")
    rows = pipeline[0].transform(TEXTS[:9])
    expected = pipeline[-1].predict_top_k(rows, k=3)
    model, estimator = slide.load(tmp_path / "model"), SlideClassifier.load(tmp_path / "model")
    again = estimator.predict_top_k(TEXTS[:9], k=3)
    for found in (model.predict(TEXTS[:9], k=3), again, estimator.predict_top_k(rows, k=3)):
        assert found.labels.tolist() == expected.labels.tolist()
        np.testing.assert_array_equal(found.scores, expected.scores)
    assert estimator.get_params() == pipeline[-1].get_params()
    assert estimator.score(TEXTS, targets) == pipeline.score(TEXTS, targets)
    assert not [path for path in (tmp_path / "model").iterdir() if path.suffix == ".pkl"]


def test_counts_and_their_weights_are_one_vectorizer(tmp_path):
    steps = CountVectorizer(min_df=2), TfidfTransformer(sublinear_tf=True), SlideClassifier(**FEW)
    pipeline = make_pipeline(*steps).fit(TEXTS, NAMES)
    slide.save(pipeline, tmp_path / "model")
    expected = pipeline[-1].predict_top_k(pipeline[:-1].transform(TEXTS), k=2)
    found = slide.load(tmp_path / "model").predict(TEXTS, k=2)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6)


def test_a_vectorizer_beside_the_classifier(tmp_path):
    vectorizer = TfidfVectorizer().fit(TEXTS)
    classifier = SlideClassifier(**FEW).fit(vectorizer.transform(TEXTS), NAMES)
    slide.save(classifier, tmp_path / "a", vectorizer=vectorizer)
    slide.save(classifier.model_, tmp_path / "b", vectorizer=vectorizer)
    slide.save(classifier, tmp_path / "c")
    for name in "ab":
        assert slide.load(tmp_path / name).predict(["an owl"], k=1).labels.tolist() == [["owl"]]
    with pytest.raises(TypeError, match="no vectorizer"):
        slide.load(tmp_path / "c").predict(["an owl"])
    plain, few = slide.Model(classifier.model_.network), CountVectorizer().fit(["cat dog"])
    for each, kind in ((classifier, "classifier"), (plain, "model")):
        with pytest.raises(ValueError, match=f"2 features does not fit a {kind} of 9"):
            slide.save(each, tmp_path / "d", vectorizer=few)
    plain.save(tmp_path / "b")
    with pytest.raises(ValueError, match="b is a model of no SlideClassifier"):
        SlideClassifier.load(tmp_path / "b")


class Own(CountVectorizer):
    """A vectorizer with code of the user's."""


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (TfidfVectorizer(tokenizer=str.split, token_pattern=None), "tokenizer of the Tfidf"),
        (TfidfVectorizer(preprocessor=str.lower), "preprocessor of the TfidfVectorizer must be N"),
        (CountVectorizer(analyzer=str.split), "analyzer of the CountVectorizer must be a value"),
        (CountVectorizer(strip_accents=str.lower), "strip_accents of the CountVectorizer"),
        (Own(), "must be a CountVectorizer, HashingVectorizer, TfidfVectorizer of .*, not a Own"),
        (Pipeline([("a", CountVectorizer()), ("s", MaxAbsScaler())]), "step pipeline, a Pipeline"),
    ],
)
def test_what_has_no_form_is_named(step, message, tmp_path):
    pipeline = make_pipeline(step, SlideClassifier(**FEW)).fit(TEXTS, NAMES)
    with pytest.raises((ValueError, TypeError), match=message):
        slide.save(pipeline, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (make_pipeline(CountVectorizer(), LogisticRegression()), "last step, logisticregression"),
        (LogisticRegression(), "slide.save takes a SlideClassifier, .* not a LogisticRegression"),
        (
            make_pipeline(CountVectorizer(), MaxAbsScaler(), SlideClassifier()),
            "maxabsscaler, a Max",
        ),
    ],
)
def test_other_estimators(model, message, tmp_path):
    with pytest.raises((ValueError, TypeError), match=message):
        slide.save(model, tmp_path / "model")


@pytest.mark.parametrize("labels", [[2.0, 3.0], [True, False], [0, 1]])
def test_labels_keep_their_type(labels, tmp_path):
    rows = np.eye(2)[np.arange(40) % 2]
    classifier = SlideClassifier(**FEW).fit(rows, [labels[n % 2] for n in range(40)])
    classifier.save(tmp_path / "model")
    found = slide.load(tmp_path / "model").predict(np.eye(2), k=1).labels.ravel().tolist()
    again = SlideClassifier.load(tmp_path / "model")
    assert found == again.predict(np.eye(2)).tolist() == labels
    assert {type(each) for each in found} == {type(labels[0])}
    assert again.classes_.dtype == classifier.classes_.dtype


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("classes", None, "it lacks settings.classifier.classes"),
        ("classes", "M8[s]", "classes of a type that holds the names"),
        ("classes", "bool", "classes of a type that holds the names"),
        ("multilabel", None, "it lacks settings.classifier.multilabel"),
        ("multilabel", "no", "multilabel must be one of False, True"),
    ],
)
def test_what_a_file_says_of_a_classifier(key, value, said, fitted, tmp_path):
    content = edited(fitted, tmp_path)
    content["settings"]["classifier"][key] = value
    if value is None:
        del content["settings"]["classifier"][key]
    write_edited(tmp_path, content)
    with pytest.raises(ValueError, match=rf"model\.json is damaged: .*{said}"):
        SlideClassifier.load(tmp_path)


@pytest.mark.parametrize("text", ["-" * 100_000 + "1", "+".join(["1"] * 100_000)], ids=len)
def test_texts_that_are_nested_too_deeply(text, fitted, tmp_path):
    content = edited(fitted, tmp_path)
    content["settings"]["epochs"] = text
    content["settings"]["classifier"]["classes"] = "U1"
    write_edited(tmp_path, content)
    found = SlideClassifier.load(tmp_path)
    assert found.epochs == SlideClassifier().epochs
    assert found.classes_.tolist() == fitted.classes_.tolist(), "no name is cut"


@pytest.fixture(scope="module")
def fitted():
    return SlideClassifier(**FEW).fit(np.eye(12), [f"animal {n % 3}" for n in range(12)])


def edited(model, folder):
    slide.save(model, folder)
    return read_folder(MODEL_FOLDER, folder)


def write_edited(folder, content):
    write_json(folder / MODEL_FILE, content | {"sha256": json_digest(content)})
