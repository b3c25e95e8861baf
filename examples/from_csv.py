"""From a CSV file of texts and labels to a model folder that answers texts with names.

    python examples/from_csv.py products.csv model
    echo '{"text": "a red shoe for running"}' | slide-predict model -
    slide-serve model

The file has a column of texts, and one with the labels of each text, as in ``shoes;sport``.
"""

import argparse
import csv
from collections.abc import Sequence

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

import slide


def main(words: Sequence[str] | None = None) -> float:
    """Train, judge, save; returns the precision of the first answers to texts set aside."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="CSV, whose first line names the columns")
    parser.add_argument("model", help="folder to write")
    parser.add_argument("--text", default="text", help="column of texts")
    parser.add_argument("--labels", default="labels", help="column of labels")
    parser.add_argument("--separator", default=";", help="between the labels in a cell")
    options = parser.parse_args(words)

    with open(options.file, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    texts = [row[options.text] for row in rows]
    labels = [row[options.labels].split(options.separator) for row in rows]

    pipeline = make_pipeline(TfidfVectorizer(sublinear_tf=True), slide.SlideClassifier())
    some, others, theirs, right = train_test_split(texts, labels, test_size=0.1, random_state=0)
    pipeline.fit(some, theirs)
    score = pipeline.score(others, right)
    print(f"P@1 {score:.4f} on {len(others):,} texts that were set aside")

    slide.save(pipeline, options.model)
    model = slide.load(options.model)  # In another program, on another machine.
    answers, scores = model.predict(others[:1], k=3)
    print(others[0], dict(zip(answers[0], scores[0].round(3).tolist(), strict=True)))
    return score


if __name__ == "__main__":
    main()
