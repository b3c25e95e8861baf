"""What a worker process does; it imports no more than a program that predicts."""

import sys

import slide

HEAVY = {"hydra", "sklearn", "tensorboard", "faiss", "slide.training"}


def predicted(model, rows):
    """Answers of a model, or of that in a folder, and what was imported for them."""
    opened = slide.load(model) if isinstance(model, str) else model
    labels, scores = opened.predict(rows, k=2)
    return labels.tolist(), scores, sorted(HEAVY & set(sys.modules))
