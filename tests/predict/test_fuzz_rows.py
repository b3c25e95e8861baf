"""Damaged lines of JSON to predict: an error names file and line, or rows are a naive reader's."""

import re

import pytest
from helpers import corpus, damage, naive_json
from helpers.naive_rows import BadLine, to_lists

from slide import FullSampler, Model, SlideNetwork
from slide.data import DataError
from slide.predict.rows import read_rows

FEATURES, LABELS = corpus.FEATURES, corpus.LABELS


@pytest.fixture(scope="module")
def model():
    return Model(SlideNetwork(FEATURES, [2], LABELS, FullSampler))


def read(path, model):
    blocks = read_rows(str(path), model)
    return [row for block in blocks for row in to_lists(block.features, block.labels)]


def agree(path, data, model):
    """Whether the reader takes the file; a file that fails is kept if this is a longer run."""
    path.write_bytes(data)
    try:
        try:
            expected = naive_json.parsed(data, naive_json.prediction_row(FEATURES, LABELS))
        except BadLine as bad:
            with pytest.raises(DataError, match=rf"^{re.escape(str(path))}:{bad.args[0]}: "):
                read(path, model)
            return False
        assert read(path, model) == expected
    except BaseException:
        print(repr(data))
        if damage.REPEAT > 1:
            corpus.keep("jsonl", data)
        raise
    return True


def test_damaged_rows(tmp_path, model):
    repeat, whole = int(1500 * damage.REPEAT), corpus.ROWS["jsonl"]
    files = [damage.damage(damage.rng_of("j", i), whole, damage.JSON) for i in range(repeat)]
    sound = sum(agree(tmp_path / "a.jsonl", data, model) for data in files)
    assert 0.1 * repeat < sound < 0.9 * repeat, "damage is too small or too great"


def test_files_of_the_corpus(tmp_path, model):
    files = corpus.kept("jsonl")
    assert 0 < sum(agree(tmp_path / "a.jsonl", data, model) for data in files.values()) < len(files)
    for name, data in files.items():
        for seed in range(int(5 * damage.REPEAT)):
            rng = damage.rng_of(name, seed)
            agree(tmp_path / "a.jsonl", damage.damage(rng, data, damage.JSON), model)
