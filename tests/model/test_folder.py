"""Model folders: damaged files, and models in bfloat16 and int8 whose rows stay in the file."""

import json
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from helpers import job
from helpers.answers import assert_same
from helpers.damage import REPEAT, flip, rng_of

import slide
from slide.data import holdout, transform
from slide.model import Model, load
from slide.model import model as model_module
from slide.model.folder import MODEL_FOLDER
from slide.nn.stored_layers import make_float32
from slide.ranking import EnsembleRanker
from slide.utils.quantized import QuantizedRows
from slide.utils.tensor_folder import read_folder, read_tensors, write_folder

pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
NAMES = {"bfloat16": ["weight"], "int8": ["weight.int8", "weight.scales"]}


@pytest.fixture(scope="module", params=["network alone", "with its ranker"])
def folders(raw, request, tmp_path_factory):
    """A model in both types."""
    torch.manual_seed(0)
    network = slide.SlideNetwork(60, [8, 7], 80, slide.FullSampler)
    ranker = None
    if request.param == "with its ranker":
        train, held = holdout(raw.train, 0.5, seed=0)
        ranker = EnsembleRanker(depth=10).fit(network, train, held, every=raw.train)
    folder = tmp_path_factory.mktemp("models")
    model = Model(network, ranker, label_names=[f"label {n}" for n in range(80)])
    for dtype in NAMES:
        model.save(folder / dtype, dtype)
    return folder


def both(folder, dtype):
    """A model as it is opened, and with all weights converted first."""
    opened, converted = load(folder / dtype), load(folder / dtype)
    make_float32(converted.network)
    return opened, converted


@DTYPES
@pytest.mark.parametrize(("search", "rows"), [("exact", 30), ("index", 1)])
def test_answers_are_those_of_converted_weights(folders, raw, dtype, search, rows):
    found, expected = both(folders, dtype)
    x = raw.test.slice(0, rows).features
    assert_same(found.predict(x, 7, search), expected.predict(x, 7, search))
    for layer, other in zip(found.network.layers(), expected.network.layers(), strict=True):
        assert torch.equal(layer.weight, other.weight)
        assert (layer.in_features, layer.out_features) == (other.in_features, other.out_features)


@DTYPES
def test_what_is_made_of_it_is_as_made_of_float32(folders, raw, dtype, tmp_path):
    found, expected = both(folders, dtype)
    x = raw.test.features
    some = [f"label {n}" for n in range(5, 80, 3)]
    small, other = found.restricted(some), expected.restricted(some)
    assert_same(small.predict(x), other.predict(x))
    assert small.network.output.codes.dtype == getattr(torch, dtype)
    assert_same(pickle.loads(pickle.dumps(found)).predict(x), expected.predict(x))
    twin, whole = found.network.to_torch(3), expected.network.to_torch(3)
    for one, same in zip(twin.parameters(), whole.parameters(), strict=True):
        assert torch.equal(one, same)
    state = found.network.state_dict()
    expected.network.load_state_dict(state)
    assert torch.equal(state["output.weight"], expected.network.output.weight)
    scores = found.network(x).to_dense()
    torch.testing.assert_close(scores, expected.network(x).to_dense())
    found.save(tmp_path / "again", dtype)  # What is stored is not rounded again.
    for name, tensor in read_tensors(folders / dtype, "network").items():
        assert torch.equal(read_tensors(tmp_path / "again", "network")[name], tensor)


@DTYPES
def test_it_learns_on_in_float32(folders, raw, dtype):
    models = both(folders, dtype)
    for change in (
        lambda model: model.add_labels(["new"]),
        lambda model: model.remove_labels(["label 3"]),
        lambda model: model.add_features(2),
        lambda model: model.partial_fit(np.eye(62)[:9], [["new"], ["label 4"], []] * 3),
    ):
        for model in models:
            torch.manual_seed(0)
            change(model)
        wide = np.zeros((30, models[0].num_features), np.float32)
        rows = raw.test.features
        wide[np.repeat(np.arange(30), np.diff(rows.indptr)), rows.indices] = rows.values
        scores = [model.predict(wide).scores for model in models]
        np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-6)
    assert type(models[0].network.first) is slide.SparseInputLinear
    assert type(models[0].network.output) is slide.SampledLinear


def test_the_index_of_a_sampler(raw, tmp_path, monkeypatch):
    """All rows are converted once, and the copy is no part of the network."""

    def sampler(width, outputs):
        return slide.ActiveSampler(width, outputs, slide.LSHProposer, active=20)

    torch.manual_seed(0)
    network = slide.SlideNetwork(60, [8], 80, sampler)
    network.output.top_k(torch.randn(2, 8), 3, "sampler")
    Model(network).save(tmp_path / "int8", "int8")
    found, expected = both(tmp_path, "int8")
    x, converted, read = raw.test.features, [], QuantizedRows.float
    monkeypatch.setattr(QuantizedRows, "float", lambda rows: converted.append(1) or read(rows))
    for _ in range(2):
        assert_same(found.predict(x, search="sampler"), expected.predict(x, search="sampler"))
    assert len(converted) == 1
    assert len(list(found.network.output.children())) == 0
    assert found.network.output.codes.dtype == torch.int8


def test_wrong_rows_get_the_same_sentence(folders):
    model = load(folders / "int8")
    far = slide.CSR(np.array([0, 1]), np.array([60], np.int32), np.ones(1, np.float32))
    for call in (model.predict, model.network.predict):
        with pytest.raises(ValueError, match=r"features must lie in \[0, 60\)"):
            call(far)
    with pytest.raises(ValueError, match="search must be one of exact, index, sampler"):
        model.network.predict(np.eye(60)[:1], search="fast")
    output = model.network.output
    for search in ("exact", "index"):
        with pytest.raises(ValueError, match=r"input \(2, 6\) does not fit weight \(80, 7\)"):
            output.top_k(torch.ones(2, 6), 3, search)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("output.weight.int8", lambda t: t.float(), r"must be \(80, 7\) int8, not .* float32"),
        ("output.weight.scales", lambda t: t.double(), r"must be \(80\) float32, not .* float64"),
        ("output.weight.scales", lambda t: t[1:], r"must be \(80\) float32, not \(79,\)"),
        ("first.weight.scales", lambda t: None, "lacks first.weight.scales"),
        ("first.weight.int8", lambda t: None, "lacks first.weight"),
        ("hidden.0.bias", lambda t: t.half(), "float32, not .* float16"),
        ("hidden.0.bias", lambda t: t[1:], r"hidden\.0\.bias must be \(7\) float32, not \(6,\)"),
    ],
)
def test_damaged_files(folders, tmp_path, name, change, message):
    content = read_folder(MODEL_FOLDER, folders / "int8")
    tensors = {
        key: tensor.clone() for key, tensor in read_tensors(folders / "int8", "network").items()
    }
    tensors[name] = change(tensors[name])
    del content["files"]
    content |= {"ranker": None, "label_names": None}
    kept = {key: tensor for key, tensor in tensors.items() if tensor is not None}
    write_folder(MODEL_FOLDER, tmp_path / "m", content, {"network": kept})
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "m")


def test_memory_stays_in_the_file(tmp_path):
    """A process that opens it, and predicts, has a few pages of its own: float32 would be 25 MB."""
    network = slide.SlideNetwork(500, [64], 100_000, slide.FullSampler)
    for dtype in ("bfloat16", "int8"):
        Model(network).save(tmp_path / dtype, dtype)
    code = """
import json, sys, slide, numpy as np
def own():
    with open("/proc/self/smaps_rollup") as file:
        lines = dict(line.split(":") for line in file if "kB" in line)
    return sum(int(lines[f"Private_{kind}"].split()[0]) for kind in ("Clean", "Dirty")) / 1e3
small = slide.Model(slide.SlideNetwork(500, [64], 5000, slide.FullSampler))
small.predict(np.eye(500)[:3])  # Imports and kernels.
found = {}
for dtype in ("bfloat16", "int8"):
    before = own()
    model = slide.load(f"{sys.argv[1]}/{dtype}")
    opened = own() - before
    model.predict(np.eye(500)[:3])
    with open("/proc/self/maps") as file:
        mapped = any(f"{dtype}/network.safetensors" in line for line in file)
    found[dtype] = [opened, mapped]
print(json.dumps(found))
"""
    words = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(words, cwd=job.ROOT, capture_output=True, text=True, check=True)
    for opened, mapped in json.loads(done.stdout).values():
        assert opened < 6
        assert mapped


FILES = ("model.json", *(f"{n}.safetensors" for n in ("network", "index", "ranker", "steps")))
FILES += ("names.safetensors",)


@pytest.fixture(scope="module")
def saved(raw, tmp_path_factory):
    """A model with all parts, and raw rows."""
    folder = tmp_path_factory.mktemp("model") / "m"
    data = transform(raw, tf_idf=True, l2_norm=True, min_label_count=2)
    train, held = holdout(data.train, 0.5, seed=0)
    torch.manual_seed(0)
    sampler = partial(slide.ActiveSampler, active=20, proposer=slide.LSHProposer)
    network = slide.SlideNetwork(data.num_features, [64], data.num_labels, sampler)
    network.output.loss(network.encode(train.features), train.labels, slide.ActiveLoss("bce"))
    ranker = EnsembleRanker(depth=10).fit(network, train, held, every=data.train)
    names = [f"label {n}" for n in range(raw.num_labels)]
    Model(network, ranker, data.steps, label_names=names).save(folder)
    assert {path.name for path in folder.iterdir()} == {*FILES, "README.md"}
    return folder, raw.test.features


def cut(rng, whole):
    return whole[: rng.randrange(len(whole))]


@pytest.mark.parametrize("damage", [flip, cut])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named(saved, tmp_path, name, damage):
    folder, rows = saved
    shutil.copytree(folder, tmp_path / "m")
    path, rng = tmp_path / "m" / name, rng_of(name)
    whole = path.read_bytes()
    for _ in range(max(2, int(20 * REPEAT))):
        path.write_bytes(damage(rng, whole))
        found, said = None, ""
        try:
            found = load(tmp_path / "m").predict(rows, k=3)
        except (ValueError, FileNotFoundError) as error:
            said = str(error)
        if found is None:
            assert str(path) in said
            assert "\n" not in said
        else:  # White space in JSON, and letters of its numbers, mean the same in other bits.
            assert name == "model.json", f"{damage.__name__} of {name} was not seen"
            assert_same(found, load(folder).predict(rows, k=3))


def test_without_hashes_sizes_and_headers_are_compared(saved, tmp_path):
    shutil.copytree(saved[0], tmp_path / "m")
    path = tmp_path / "m" / "network.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 64]))
    load(tmp_path / "m", verify=False)
    for damaged in (whole[:-4], b"\xff" * 8 + whole[8:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"network\.safetensors has "):
            load(tmp_path / "m", verify=False)


def test_a_model_replaces_what_a_power_cut_left(tmp_path):
    folder, rows = tmp_path / "m", np.eye(4)[:2]
    (folder / "new_files").mkdir(parents=True)
    (folder / "new_files/network.safetensors.tmp").write_bytes(b"part")
    (folder / "network.safetensors").write_bytes(b"of the one before")
    model = Model(slide.SlideNetwork(4, [3], 9, slide.FullSampler))
    model.save(folder)
    assert_same(load(folder).predict(rows), model.predict(rows))


def named(which):
    torch.manual_seed(which)
    network = slide.SlideNetwork(6, [4], 5, slide.FullSampler)
    return Model(network, label_names=[f"{which} {n}" for n in range(5)])


def test_one_folder_that_several_write_and_read(tmp_path):
    """A mixture of two models was opened, and their files were taken away from each other."""
    models, place = [named(which) for which in range(2)], tmp_path / "m"
    models[0].save(place)
    answers = [model.predict(np.eye(6), k=5).labels.tolist() for model in models]

    def write(model):
        for _ in range(20):
            model.save(place)

    with ThreadPoolExecutor(2) as pool:
        writers = [pool.submit(write, model) for model in models]
        while not all(writer.done() for writer in writers):
            assert load(place).predict(np.eye(6), k=5).labels.tolist() in answers
        for writer in writers:
            writer.result()
    assert sorted(each.suffix for each in place.iterdir()) == [
        ".json",
        ".md",
        *2 * [".safetensors"],
    ]


def test_a_model_that_is_replaced_while_it_is_opened_is_opened_again(tmp_path, monkeypatch):
    first, second, place = named(0), named(1), tmp_path / "m"
    first.save(place)
    whole, calls = model_module.restored_parts, []

    def parts(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            second.save(place)
        return whole(*arguments)

    monkeypatch.setattr(model_module, "restored_parts", parts)
    opened = load(place)
    assert len(calls) == 2
    assert list(opened.label_names) == list(second.label_names)
    found, wanted = (each.predict(np.eye(6), k=5).labels.tolist() for each in (opened, second))
    assert found == wanted
