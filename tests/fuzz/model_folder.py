"""Folders of models with a file of other bytes, and hashes that fit: answers, or an error."""

from pathlib import Path

import numpy as np
import torch
from helpers.limits import more_memory, wait_for_no_disk
from sklearn.feature_extraction.text import TfidfVectorizer

from fuzz.shared import MEMORY, Folder, check_sentence
from slide import ActiveSampler, LSHProposer, Model, SlideNetwork, load
from slide.data import TextVectorizer
from slide.model.folder import MODEL_FOLDER

_TEXTS = ["red fox", "blue dog", "red dog"]
_FEATURES, _LABELS = 4, 9


def _save(folder: Path) -> None:
    torch.manual_seed(0)
    network = SlideNetwork(
        _FEATURES,
        [3],
        _LABELS,
        lambda *sizes: ActiveSampler(*sizes, active=4, proposer=LSHProposer),
    )
    vectorizer = TextVectorizer.of(TfidfVectorizer().fit(_TEXTS))
    names = [f"label {number}" for number in range(_LABELS)]
    Model(network, vectorizer=vectorizer, label_names=names).save(folder)


_FOLDER = Folder(MODEL_FOLDER, _save)


def seeds(folder: Path) -> list[bytes]:
    """See `fuzz`."""
    wait_for_no_disk()
    return _FOLDER.seeds(folder)


def check(data: bytes, folder: Path) -> bool:
    """See `fuzz`."""
    made = _FOLDER.write(data, folder)
    try:
        with more_memory(MEMORY):
            model = load(made)
            rows = np.eye(model.num_features, dtype=np.float32)[:2]
            labels, scores = model.predict_ids(rows, 3)
            if model.vectorizer is not None:
                model.predict(_TEXTS, 2)
    except (ValueError, FileNotFoundError) as error:
        check_sentence(error, made)
        return False
    assert labels.min() >= -1
    assert labels.max() < model.num_labels
    assert np.isfinite(scores).all()
    if model.label_names is not None:
        model.label_names.take(labels[labels >= 0])
    return True
