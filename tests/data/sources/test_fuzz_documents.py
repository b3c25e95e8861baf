"""Damaged files of texts: the reader names file and line in an error, or reads as a naive one."""

import re
from itertools import pairwise

import pytest
from helpers import corpus, damage, naive_json
from helpers.naive_rows import BadLine

from slide.data import DataError, documents
from slide.data.sources.documents import read_documents

WHOLE = corpus.ROWS["documents"]


def agree(path, data):
    """Whether the reader takes the file; a file that fails is kept if this is a longer run."""
    path.write_bytes(data)
    try:
        try:
            expected = naive_json.parsed(data, naive_json.document)
        except BadLine as bad:
            with pytest.raises(DataError, match=rf"^{re.escape(str(path))}:{bad.args[0]}: "):
                list(read_documents(path, "reading"))
            return False
        assert [tuple(found) for found in read_documents(path, "reading")] == expected
    except BaseException:
        print(repr(data))
        if damage.REPEAT > 1:
            corpus.keep("documents", data)
        raise
    return True


def test_damaged_texts(tmp_path):
    repeat = int(1500 * damage.REPEAT)
    files = [damage.damage(damage.rng_of("d", i), WHOLE, damage.JSON) for i in range(repeat)]
    whole = sum(agree(tmp_path / "a.jsonl", data) for data in files)
    assert 0.1 * repeat < whole < 0.9 * repeat, "damage is too small or too great"


def test_files_of_the_corpus(tmp_path):
    files = corpus.kept("documents")
    assert 0 < sum(agree(tmp_path / "a.jsonl", data) for data in files.values()) < len(files)
    for name, data in files.items():
        for seed in range(int(5 * damage.REPEAT)):
            rng = damage.rng_of(name, seed)
            agree(tmp_path / "a.jsonl", damage.damage(rng, data, damage.JSON))


def test_sets_with_a_damaged_file(tmp_path):
    """Labels are those of both files; an error is of the file that is damaged."""
    outcomes = {True: 0, False: 0}
    for seed in range(max(30, int(60 * damage.REPEAT))):
        rng, texts = damage.rng_of("sets", seed), {"train": WHOLE, "test": WHOLE}
        part = rng.choice(list(texts))
        texts[part] = damage.damage(rng, WHOLE, damage.JSON)
        for other, data in texts.items():
            (tmp_path / f"{other}.jsonl").write_bytes(data)
        options = {"name": "x", "root": tmp_path, "cache": tmp_path / str(seed), "min_rows": 1}
        rows = {}
        try:
            for other in texts:
                rows[other] = naive_json.parsed(texts[other], naive_json.document)
        except BadLine as bad:
            place = f"{tmp_path}/{part}.jsonl:{bad.args[0]}: "
            with pytest.raises(DataError, match=f"^{re.escape(place)}"):
                documents(**options)
            assert not list(tmp_path.glob(f"{seed}/*/meta.json"))
            outcomes[False] += 1
            continue
        if not any(re.search(r"\w\w", text) for text, _ in rows["train"]):
            with pytest.raises(ValueError, match=r"no word is in|there are no rows"):
                documents(**options)
            continue
        data = documents(**options)
        names = sorted({label for part in rows.values() for _, own in part for label in own})
        assert list(data.label_names) == names
        for split, expected in ((data.train, rows["train"]), (data.test, rows["test"])):
            bounds = split.labels.indptr
            found = [split.labels.indices[a:b] for a, b in pairwise(bounds)]
            assert [[names[i] for i in own] for own in found] == [own for _, own in expected]
        outcomes[True] += 1
    assert min(outcomes.values()) > 0
