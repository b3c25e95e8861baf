"""Model folders that somebody edited, with hashes that fit: a sentence, or some answers."""

import json
import re
import shutil
from functools import partial
from hashlib import sha256

import numpy as np
import pytest
import torch
from helpers import job
from helpers.damage import REPEAT, SEED
from helpers.graphs import make_graph
from helpers.programs import run_program
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer

import slide
from slide.data import Split, TextVectorizer, divide, holdout, transform
from slide.model import Model, load
from slide.model.folder import MODEL_FOLDER
from slide.ranking import EnsembleRanker
from slide.ranking.final_ranker import FinalRanker
from slide.sparse import CSR, Pattern
from slide.utils.array_checks import Stored
from slide.utils.files import json_digest, write_json
from slide.utils.tensor_folder import read_folder, read_tensors, write_folder

pytestmark = [pytest.mark.compiled_only, pytest.mark.usefixtures("one_thread")]
EDITS = 75
# Integers that may be any: counts, and keys of rows, which another number finds no more.
PLAIN = ("frequency", "seen.keys", "analogous.rests", "names:")


def text_rows(folder):
    raw = job.make_data(folder, train_samples=500, test_samples=30)
    data = transform(raw, tf_idf=True, l2_norm=True, min_label_count=2)
    names = [f"label {n}" for n in range(raw.num_labels)]
    sampler = partial(slide.ActiveSampler, active=20, proposer=slide.LSHProposer)
    return data.train, {"steps": data.steps, "label_names": names}, sampler, raw.test.features


def item_rows(folder):
    rng = np.random.default_rng(0)
    # Two groups of items, of which a row has those of one.
    order = [np.argsort(rng.random(20) + (np.arange(20) % 2 == b % 2)) for b in range(300)]
    baskets = np.array(order)[:, :8].astype(np.int32)
    seen, later = (Pattern.from_lists(part) for part in (baskets[:, :5], baskets[:, 5:]))
    rows = CSR(*seen, np.ones(len(seen.indices), np.float32))
    return Split(rows, later, 20, 20, kind="items"), {}, slide.FullSampler, rows.slice(0, 30)


def graph_rows(folder):
    graph = make_graph(np.random.default_rng(0))
    names = list(range(100, 100 + graph.num_labels))
    return graph, {"label_names": names}, slide.FullSampler, graph.features.slice(0, 30)


def dense_rows(folder):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((300, 12)).astype(np.float32)
    labels = Pattern.from_lists([[int(np.argmax(row))] for row in rows])
    return Split(slide.as_csr(rows), labels, 12, 12), {}, slide.FullSampler, slide.as_csr(rows[:30])


ROWS = {"text": text_rows, "items": item_rows, "graph": graph_rows, "dense": dense_rows}


def dense(rows, width):
    found = np.zeros((rows.num_rows, width), np.float32)
    found[rows.entry_rows(), rows.indices] = rows.values
    return found


def save(folder, kind):
    """A model with a re-ranker, and rows for it in a file."""
    train, more, sampler, rows = ROWS[kind](folder.parent)
    torch.manual_seed(0)
    network = slide.SlideNetwork(train.num_features, [8, 7], train.num_labels, sampler)
    network.output.loss(network.encode(train.features), train.labels, slide.ActiveLoss("bce"))
    split = divide if kind == "graph" else holdout
    learn, held = split(train, 0.3, seed=0)
    ranker = EnsembleRanker(depth=10).fit(network, learn, held, every=train)
    model = Model(network, ranker, **more)
    model.save(folder)
    np.save(f"{folder}.npy", dense(rows, model.num_features))


def fault_of(what, how, said):
    """What is wrong with what came of an edit, if anything is."""
    file, _, _ = what.rpartition(":")
    if said == "other":  # Values that are as good as those before.
        plain = how.endswith("in range") or any(each in what for each in PLAIN)
        return "" if plain or not file else f"{what}, {how}: other answers"
    if said != "same":
        named = (
            not file or f"{file}.safetensors" in said or re.search(r"row \d+ are too large", said)
        )
        if "\n" in said or len(said) > 400 or not named:
            return f"{what}, {how}: {said}"
    return ""


def test_each_edit_is_refused_or_harmless(tmp_path):
    """Of all kinds of models, in one process."""
    for kind in ROWS:
        save(tmp_path / kind, kind)
    count = max(20, int(EDITS * REPEAT))
    words = ["-m", "helpers.edits", count, SEED, *(tmp_path / kind for kind in ROWS)]
    done = run_program(*words, timeout=1200)
    assert done.returncode == 0, f"after {done.stdout.count(chr(10))} edits: {done.stderr[-3000:]}"
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == len(ROWS) * count
    assert not [fault for each in found if (fault := fault_of(*each))]
    for number in range(len(ROWS)):
        said = [answer for _, _, answer in found[number * count : (number + 1) * count]]
        assert sum(each not in ("same", "other") for each in said) > count / 2, "these are no edits"


def refused(folder, message):
    with pytest.raises(ValueError, match=message) as caught:
        load(folder)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def save_small(folder, **parts):
    """A small model; returns its list."""
    Model(slide.SlideNetwork(4, [3], 9, slide.FullSampler), **parts).save(folder)
    return read_folder(MODEL_FOLDER, folder)


def write_list(folder, content):
    write_json(folder / "model.json", content | {"sha256": json_digest(content)})


def test_files_lie_in_the_folder_and_are_no_links(tmp_path):
    folder = tmp_path / "m"
    whole = save_small(folder)
    for name in ("../network.safetensors", f"{tmp_path}/network.safetensors", "a/b.safetensors"):
        write_list(folder, whole | {"files": {name: whole["files"]["network.safetensors"]}})
        refused(folder, r"model\.json names '.*', which must be a file of the folder itself")
    shutil.rmtree(folder)
    save_small(folder)
    (folder / "network.safetensors").rename(tmp_path / "network.safetensors")
    (folder / "network.safetensors").symlink_to(tmp_path / "network.safetensors")
    refused(folder, "which must be a file of the folder itself, and no link")
    (folder / "model.json").rename(tmp_path / "model.json")
    (folder / "model.json").symlink_to(tmp_path / "model.json")
    refused(folder, r"model\.json must be a file of the folder itself, and no link")


def test_trees_have_no_way_back_and_few_leaves():
    # A root with two leaves, and a tree that is a leaf.
    trees = {
        "roots": np.array([0, 3], np.int32),
        "columns": np.array([1, -1, -1, -1], np.int32),
        "thresholds": np.zeros(4),
        "left": np.array([1, 0, 0, 0], np.int32),
        "right": np.array([2, 0, 0, 0], np.int32),
        "values": np.ones(4, np.float32),
    }
    numbers = {"base": 0, "slope": 1, "weights": [1]}
    FinalRanker([1, -1]).restore(Stored(numbers, trees))
    for name, array, said in (
        ("left", [0, 0, 0, 0], "left must name later nodes of the same tree"),
        ("right", [3, 0, 0, 0], "right must name later nodes of the same tree"),
        ("right", [1, 0, 0, 0], "left must with right name each node but the roots once"),
        ("roots", [0, 0], "roots must rise from 0"),
        ("roots", [], "roots must rise from 0"),
        ("columns", [2, -1, -1, -1], r"columns must lie in \[-1, 1\]"),
    ):
        edited = trees | {name: np.array(array, np.int32)}
        with pytest.raises(ValueError, match=said):
            FinalRanker([1, -1]).restore(Stored(numbers, edited))
    deep = np.arange(0, 100, 2)  # Each inner node has a leaf and the next inner node.
    trees = {
        "roots": np.array([0], np.int32),
        "columns": np.where(np.arange(101) % 2, -1, 0).astype(np.int32),
        "thresholds": np.zeros(101),
        "left": np.zeros(101, np.int32),
        "right": np.zeros(101, np.int32),
        "values": np.ones(101, np.float32),
    }
    trees["columns"][100] = -1
    trees["left"][deep], trees["right"][deep] = deep + 1, deep + 2
    with pytest.raises(ValueError, match="have 32 leaves in a tree at most"):
        FinalRanker([1, -1]).restore(Stored(numbers, trees))


PARTS = ("network", "index", "ranker", "steps", "label_names", "feature_names", "settings", "name")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("value", [0.5, [7], "lacks"], ids=str)
def test_parts_of_the_list_are_named(tmp_path, part, value):
    content = save_small(tmp_path) | {part: value}
    if value == "lacks":
        del content[part]
    write_list(tmp_path, content)
    refused(tmp_path, rf"model\.json is damaged: ({part}|it lacks)")


TEXTS = ["red fox", "blue dog"]
WORDS, HASHES = TfidfVectorizer(), HashingVectorizer(n_features=4)


@pytest.mark.parametrize(
    ("vectorizer", "name", "value"),
    [
        *((WORDS, "analyzer", "words"), (WORDS, "binary", 1), (WORDS, "lowercase", None)),
        *((WORDS, "dtype", each) for each in ("object", [None])),
        *((WORDS, "ngram_range", each) for each in ([2, 1], [1], [1, 1e9])),
        *((WORDS, "stop_words", each) for each in ("french", [[1]])),
        *((WORDS, "token_pattern", x) for x in ("(", "(a)(b)", ["a"], "a{99999999999}", None)),
        *((WORDS, "norm", "max"), (WORDS, "strip_accents", True)),
        (HASHES, "dtype", "uint64"),  # Its numbers have signs.
    ],
)
def test_options_of_a_vectorizer_are_checked_when_it_is_opened(tmp_path, vectorizer, name, value):
    """And not with the first text, by scikit-learn."""
    content = save_small(tmp_path, vectorizer=TextVectorizer.of(vectorizer.fit(TEXTS)))
    content["vectorizer"]["arguments"][name] = value
    write_list(tmp_path, content)
    kind = type(vectorizer).__name__
    refused(tmp_path, rf"model\.json is damaged: .*{name} of a {kind} cannot be")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({}, "labels must be a text"),
        ({"text": 5}, "text must be a list of texts"),
        ({"numbers": ["b"], "scales": [1]}, "means must be a list of 1 numbers"),
        ({"numbers": ["b"], "edges": []}, "must have ascending edges for each column of numbers"),
        ({"numbers": ["b"], "means": [0], "scales": [0]}, "must have scales above 0"),
        ({"separator": 1}, "separator must be a text"),
        ({"text": ["\ud800"]}, "text must be a list of texts"),
    ],
    ids=str,
)
def test_columns_of_a_table(tmp_path, columns, said):
    columns = {"labels": "tags", **columns} if columns else {}
    save_small(tmp_path, settings={"columns": columns})
    refused(tmp_path, rf"model\.json is damaged: {said}")


def test_the_name_of_a_model_is_one_that_answers_can_hold(tmp_path):
    write_list(tmp_path, save_small(tmp_path) | {"name": "\ud800"})
    refused(tmp_path, r"model\.json is damaged: name must be a text, not '\\ud800'")


def test_weights_of_terms_keep_rows_finite(tmp_path):
    vectorizer, idf = TextVectorizer.of(WORDS.fit(TEXTS)), np.array([1, 1, 1, 1e30], np.float32)
    vectorizer = TextVectorizer(vectorizer.options, vectorizer.terms, idf)
    save_small(tmp_path, vectorizer=vectorizer)
    refused(tmp_path, r"vectorizer\.safetensors is damaged: idf must ")


def test_what_a_library_says_of_a_file_is_one_short_line_without_escape_sequences(tmp_path):
    """A terminal obeys the sequences in the names of arrays."""
    content = save_small(tmp_path)
    text = json.dumps({"\x1b[31mred" * 99: {"dtype": "F32", "shape": [1], "data_offsets": [0, 9]}})
    path = tmp_path / "network.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text.encode() + bytes(9))
    data = path.read_bytes()
    content["files"][path.name] = {"bytes": len(data), "sha256": sha256(data).hexdigest()}
    write_list(tmp_path, content)
    refused(tmp_path, r"network\.safetensors has changed")
    (tmp_path / "model.json").write_bytes(b"\xff" * 9999)
    refused(tmp_path, r"model\.json has changed")


def test_a_sentence_does_not_grow_with_the_file(tmp_path):
    content = save_small(tmp_path)
    write_list(tmp_path, content | {"format": int("1" * 4000)})
    refused(tmp_path, r"model\.json is of format 1+\.\.\., which slide")
    deep = {"output.bias": torch.zeros(9, *[1] * 500)}
    arrays = {**read_tensors(tmp_path, "network"), **deep}
    write_folder(MODEL_FOLDER, tmp_path, content, {"network": arrays})
    refused(tmp_path, r"network\.safetensors is damaged: output\.bias must be \(9\) float32, not")


def test_more_labels_than_memory_holds(tmp_path):
    save_small(tmp_path)
    for k in (10**15, 2**63):
        with pytest.raises(ValueError, match=rf"^k={k} labels of 4 rows take .* are free"):
            load(tmp_path).predict_ids(np.eye(4), k)
