"""A small set in two text files."""

import pytest
from helpers.caches import TEST, TRAIN, opening


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "train.txt").write_text(TRAIN)
    (folder / "test.txt").write_text(TEST)
    return folder


@pytest.fixture
def open_set(root, tmp_path):
    return opening(tmp_path)
