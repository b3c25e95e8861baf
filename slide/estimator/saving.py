"""From a fitted pipeline of scikit-learn to the folder of a model."""

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from slide.data import TextVectorizer
from slide.estimator.classifier import SlideClassifier
from slide.model import Model


def save(model: Any, path: str | Path, dtype: str = "float32", vectorizer: Any = None) -> None:
    """Write a fitted model into a folder, which `slide.load` opens; so do the commands.

    The folder holds arrays and JSON, and no code: a vectorizer becomes its options, its terms and
    their weights, and the model then takes texts and answers with names of labels.

    Args:
        model: a `SlideClassifier`; a ``Pipeline`` of scikit-learn that is a vectorizer of texts and
            a `SlideClassifier`, with or without a ``TfidfTransformer`` between them; or a
            `slide.Model`.
        path: the folder.
        dtype: of the weights; see `slide.Model.save`.
        vectorizer: what made the rows, unless it is a step of the pipeline: a fitted
            ``CountVectorizer``, ``HashingVectorizer`` or ``TfidfVectorizer``.

    Example:
        >>> import tempfile, slide
        >>> from sklearn.feature_extraction.text import TfidfVectorizer
        >>> from sklearn.pipeline import make_pipeline
        >>> texts = [f"{word} {number}0" for word in ("red", "blue") for number in range(20)]
        >>> classifier = slide.SlideClassifier(ranker=None, epochs=5, random_state=0)
        >>> pipeline = make_pipeline(TfidfVectorizer(), classifier)
        >>> pipeline = pipeline.fit(texts, [text.split()[0] for text in texts])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     slide.save(pipeline, f"{folder}/model")
        ...     slide.load(f"{folder}/model").predict(["a blue one"], k=1).labels.tolist()
        [['blue']]
    """
    if isinstance(model, Pipeline):
        if vectorizer is not None:
            raise ValueError("a pipeline has its vectorizer; vectorizer= is for a classifier alone")
        vectorizer, model = _parts(model)
    if isinstance(model, SlideClassifier):
        model.save(path, dtype, vectorizer)
        return
    if not isinstance(model, Model):
        raise TypeError(
            f"slide.save takes a SlideClassifier, a pipeline that ends in one, or a slide.Model, "
            f"not a {type(model).__name__}"
        )
    if vectorizer is not None:
        model = model.with_vectorizer(TextVectorizer.of(vectorizer))
    model.save(path, dtype)


def _parts(pipeline: Pipeline) -> tuple[Any, Any]:
    *steps, (last, classifier) = [
        (name, step) for name, step in pipeline.steps if step not in (None, "passthrough")
    ]
    if not isinstance(classifier, SlideClassifier):
        raise ValueError(
            f"the last step, {last}, must be a SlideClassifier, not a {type(classifier).__name__}"
        )
    vectorizer = None
    for name, step in steps:
        if vectorizer is None and isinstance(
            step, CountVectorizer | HashingVectorizer | TfidfVectorizer
        ):
            vectorizer = step
        elif type(vectorizer) is CountVectorizer and type(step) is TfidfTransformer:
            vectorizer = _joined(vectorizer, step)
        else:
            raise ValueError(
                f"the step {name}, a {type(step).__name__}, has no form in a model folder: a "
                "vectorizer of texts and the classifier have one; do what the step does before "
                "the pipeline, keep the pipeline with joblib, or make a model of columns by "
                "slide-train dataset=table"
            )
    return vectorizer, classifier


def _joined(counts: CountVectorizer, weights: TfidfTransformer) -> TfidfVectorizer:
    check_is_fitted(weights)
    own = {**counts.get_params(), **weights.get_params(), "dtype": np.float64}
    found = TfidfVectorizer(**own | {"vocabulary": counts.get_feature_names_out().tolist()})
    if weights.use_idf:
        found.idf_ = weights.idf_
    return found
