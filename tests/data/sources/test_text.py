"""Skip-grams of plain text, compared with a twin that reads it word by word."""

import math
from collections import Counter

import numpy as np
import pytest
from helpers import matrices
from helpers.splits import assert_types

from slide.data import DataError, text
from slide.data.sources import text as text_module
from slide.ops.random import random_bits
from slide.ops.sources import subsample_words
from slide.utils.random_keys import random_key


def uniform(key, counter):
    """A random number in [0, 1)."""
    return (int(random_bits(np.uint64(key), counter)) >> 11) / 2**53


def naive_vocabulary(content, min_count=1, max_vocabulary=None):
    counts = Counter(content.split())
    order = sorted(counts, key=lambda word: (-counts[word], word))[:max_vocabulary]
    return [(word, counts[word]) for word in order if counts[word] >= min_count]


def naive_rows(part, vocabulary, window=2, subsample=0.0, seed=0, stream=0):
    ids = {word: i for i, (word, _) in enumerate(vocabulary)}
    total = sum(count for _, count in vocabulary)
    key = random_key(seed, stream)
    kept = []
    for number, word in enumerate(part.split()):
        if word in ids:
            frequency = vocabulary[ids[word]][1] / total
            stays = math.sqrt(subsample / frequency) if subsample else 1
            if uniform(key, number) < stays:
                kept.append(ids[word])
    rows = []
    for i, centre in enumerate(kept):
        around = kept[max(0, i - window) : i] + kept[i + 1 : i + 1 + window]
        if around:
            rows.append((centre, sorted(set(around))))
    return rows


def naive_border(content, test_share):
    data = content.encode()
    border = round(len(data) * (1 - test_share))
    while border < len(data) and not data[border : border + 1].isspace():
        border += 1
    return border


def random_text(seed, words=3000, distinct=60):
    rng = np.random.default_rng(seed)
    drawn = (distinct * rng.random(words) ** 3).astype(int)
    spaces = rng.choice([" ", "  ", "\n", "\t", "\r\n", " \n\n"], words)
    names = [f"w{i}" if i % 3 else f"wörter{i}" for i in range(distinct)]
    return "".join(names[i] + space for i, space in zip(drawn, spaces, strict=True))


SOME = "a rose is a rose is a rose and so is this one , said a rose is a rose "


def read(folder, content, **arguments):
    if isinstance(content, str):
        content = content.encode()
    (folder / "some.txt").write_bytes(content)
    settings = {"file": "some.txt", "subsample": 0, "min_count": 1, "test_share": 0.3}
    arguments = {"cache": folder / "cache", **settings, **arguments}
    return text(name="text", root=folder, **arguments)


def rows_of(split):
    """``[(centre, [labels])]``, after a look at the features."""
    indptr, indices, values = split.features
    assert indptr.tolist() == list(range(len(split) + 1))
    assert (values == 1).all()
    return list(zip(indices.tolist(), matrices.rows_of(split.labels), strict=True))


def vocabulary_of(data):
    """``[(word, count)]`` as written down."""
    lines = (data.folder / "vocab.txt").read_text("utf-8").splitlines()
    return [(word, int(count)) for word, count in map(str.split, lines)]


def assert_rows(data, content, test_share=0.3, vocabulary=None, **arguments):
    vocabulary = vocabulary or naive_vocabulary(content)
    border = naive_border(content, test_share)
    raw = content.encode()
    for stream, part in enumerate((raw[:border], raw[border:])):
        split = (data.train, data.test)[stream]
        expected = naive_rows(part.decode(), vocabulary, stream=stream, **arguments)
        assert rows_of(split) == expected


def test_a_text_by_hand(tmp_path):
    data = read(tmp_path, "b a b c a d   e b c", window=1, test_share=0.3)
    assert vocabulary_of(data) == [("b", 3), ("a", 2), ("c", 2), ("d", 1), ("e", 1)]
    assert (data.num_features, data.num_labels) == (5, 5)
    # 13 of 19 bytes: the border falls into the spaces before e.
    train = [(0, [1]), (1, [0]), (0, [1, 2]), (2, [0, 1]), (1, [2, 3]), (3, [1])]
    assert rows_of(data.train) == train
    assert rows_of(data.test) == [(4, [0]), (0, [2, 4]), (2, [0])]
    assert_types(data.train)


@pytest.mark.parametrize("window", [2, 40])
def test_windows_agree_with_the_twin(tmp_path, window):
    content = random_text(window, words=300, distinct=20)
    assert_rows(read(tmp_path, content, window=window), content, window=window)


def test_subsampling_agrees_with_the_twin(tmp_path):
    content = random_text(1)
    data = read(tmp_path, content, subsample=0.01, seed=3)
    assert_rows(data, content, subsample=0.01, seed=3)
    assert 300 < len(data.train) < 1900


def test_rare_words_are_left_out_before_windows_are_formed(tmp_path):
    content = random_text(2)
    vocabulary = naive_vocabulary(content, min_count=30)
    assert 5 < len(vocabulary) < 55
    data = read(tmp_path, content, min_count=30, subsample=0.02)
    assert vocabulary_of(data) == vocabulary
    assert_rows(data, content, vocabulary=vocabulary, subsample=0.02)
    fewer = read(tmp_path, content, min_count=30, max_vocabulary=4)
    assert vocabulary_of(fewer) == vocabulary[:4]
    assert_rows(fewer, content, vocabulary=vocabulary[:4])


@pytest.mark.parametrize(("chunk_bytes", "chunk_labels"), [(7, 4), (1000, 1)])
def test_chunks_do_not_matter(tmp_path, monkeypatch, chunk_bytes, chunk_labels):
    content = random_text(4, words=400)
    monkeypatch.setattr(text_module, "CHUNK_LABELS", chunk_labels)
    monkeypatch.setattr(text_module, "READ_BYTES", chunk_bytes)
    data = read(tmp_path, content, subsample=0.05, window=3)
    assert vocabulary_of(data) == naive_vocabulary(content)
    assert_rows(data, content, subsample=0.05, window=3)


def test_words_stay_as_often_as_published():
    rng = np.random.default_rng(0)
    counts = np.array([60_000, 25_000, 10_000, 4000, 1000])
    words = rng.permutation(np.repeat(np.arange(5, dtype=np.int32), counts))
    t = 0.02
    keep = np.sqrt(t / (counts / counts.sum()))
    out = np.empty_like(words)
    stayed = out[: subsample_words(words, 0, random_key(1), keep, out)]
    found = np.bincount(stayed, minlength=5)
    expected = counts * np.minimum(keep, 1)
    spread = np.sqrt(expected * (1 - np.minimum(keep, 1)))
    assert (np.abs(found - expected) <= 4 * spread).all()
    assert found[4] == 1000, "a word below the threshold always stays"


def test_lower_case_and_a_byte_order_mark(tmp_path):
    content = "Der Ärger DER Straße der Ärger " * 4
    assert len(vocabulary_of(read(tmp_path, content))) == 5
    data = read(tmp_path, b"\xef\xbb\xbf" + content.encode(), lower=True)
    assert vocabulary_of(data) == [("der", 12), ("ärger", 8), ("straße", 4)]
    assert_rows(read(tmp_path, content, lower=True), content.lower())


def test_limits_take_the_first_rows(tmp_path):
    content = random_text(6)
    whole = read(tmp_path, content)
    for train, test in ((50, 7), (10**6, len(whole.test))):
        part = read(tmp_path, content, train_samples=train, test_samples=test)
        assert rows_of(part.train) == rows_of(whole.train)[:train]
        assert rows_of(part.test) == rows_of(whole.test)[:test]
        assert part.num_labels == whole.num_labels


def test_it_is_read_once_and_again_when_the_text_changes(tmp_path):
    data = read(tmp_path, SOME * 3)
    (data.folder / "here").touch()
    changed = read(tmp_path, SOME * 4)
    assert changed.folder == data.folder
    assert not (changed.folder / "here").exists()
    assert vocabulary_of(changed) == naive_vocabulary(SOME * 4)


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("", {}, "there are no words in it"),
        (
            "a b a",
            {"min_count": 3},
            "no word occurs min_count=3 times; the most frequent one, 'a', ",
        ),
        ("one", {}, "the train part has no two words"),
        ("a" * 10 + " b" * 3, {"test_share": 0.01}, "the test part has no two words"),
        (b"fine until here \xff and more", {}, "byte 16 does not belong to text in UTF-8"),
        ("a b " * 100 + "x" * 140_000 + " c" * 50_000, {}, "no white space for 65536 bytes from"),
    ],
)
def test_bad_texts(tmp_path, monkeypatch, content, arguments, message):
    monkeypatch.setattr(text_module, "READ_BYTES", 1 << 16)
    with pytest.raises(DataError) as error:
        read(tmp_path, content, **arguments)
    assert str(error.value).startswith(f"{tmp_path}/some.txt: {message}")
    assert not list(tmp_path.glob("cache/*/meta.json")), "nothing wrong may be kept"


@pytest.mark.parametrize(
    ("option", "value", "bound"),
    [
        ("window", 0, "a whole number of at least 1"),
        ("subsample", -1, "a number of at least 0"),
        ("lower", 1, "true or false"),
        ("test_share", 1.0, r"in \[0, 1\)"),
        ("cache", None, "the path of a folder"),
        ("file", None, "the name of a file"),
    ],
)
def test_arguments_out_of_range_are_named(tmp_path, option, value, bound):
    with pytest.raises(ValueError, match=rf"^{option} must be {bound}.*, not "):
        read(tmp_path, SOME, **{option: value})


def test_only_text8_is_fetched(tmp_path):
    fetched = []

    def fetch(root, check):
        (root / "text8").write_text("")
        with pytest.raises(DataError, match="the file is empty"):
            check(root)
        (root / "text8").write_text(SOME * 3)
        check(root)
        fetched.append(root)

    settings = {"cache": tmp_path / "cache", "subsample": 0, "min_count": 1, "test_share": 0.3}
    data = text(name="text", root=tmp_path, fetch=fetch, **settings)
    assert fetched == [tmp_path]
    assert vocabulary_of(data) == naive_vocabulary(SOME * 3)
    with pytest.raises(FileNotFoundError, match=r"other.txt is missing. Write one. Put other.txt"):
        text(name="t", root=tmp_path, file="other.txt", fetch=fetch, hint="Write one.", **settings)
    assert fetched == [tmp_path]
