"""Damaged files of a model folder: an error that names the file, and never a wrong model."""

import shutil
from functools import partial

import numpy as np
import pytest
import torch
from helpers import job
from helpers.damage import REPEAT, flip, rng_of

import slide
from slide.data import holdout, transform
from slide.model import Model, load
from slide.ranking import EnsembleRanker
from slide.utils import tensor_folder

pytestmark = pytest.mark.usefixtures("one_thread")
STEPS = {"tf_idf": True, "l2_norm": True, "min_label_count": 2}
FILES = ("model.json", *(f"{n}.safetensors" for n in ("network", "index", "ranker", "steps")))
FILES += ("names.safetensors",)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model with all parts, whose network has 9 MB; and raw rows."""
    folder = tmp_path_factory.mktemp("model")
    raw = job.make_data(folder, train_samples=400, test_samples=30)
    data = transform(raw, **STEPS)
    train, held = holdout(data.train, 0.5, seed=0)
    torch.manual_seed(0)
    sampler = partial(slide.ActiveSampler, active=20, proposer=slide.LSHProposer)
    network = slide.SlideNetwork(data.num_features, [16_000], data.num_labels, sampler)
    network.output.loss(network.encode(train.features), train.labels, slide.ActiveLoss("bce"))
    ranker = EnsembleRanker(depth=10).fit(network, train, held, every=data.train)
    names = [f"label {n}" for n in range(raw.num_labels)]
    Model(network, ranker, data.steps, label_names=names).save(folder / "m")
    return folder / "m", raw.test.features


def cut(rng, whole):
    return whole[: rng.randrange(len(whole))]


def empty(rng, whole):
    return b""


def answers(folder, rows):
    """What the model answers, or what the error says."""
    try:
        return load(folder).predict(rows, k=3), None
    except (ValueError, FileNotFoundError) as error:
        return None, str(error)


def test_the_folder_has_all_kinds_of_files(saved):
    folder, _ = saved
    assert {path.name for path in folder.iterdir()} == set(FILES)
    assert (folder / "network.safetensors").stat().st_size > 8e6


@pytest.mark.parametrize("damage", [flip, cut, empty])
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named(saved, tmp_path, name, damage):
    folder, rows = saved
    shutil.copytree(folder, tmp_path / "m")
    path, rng = tmp_path / "m" / name, rng_of(name)
    whole = path.read_bytes()
    expected, _ = answers(tmp_path / "m", rows)
    for _ in range(1 if damage is empty else max(2, int(20 * REPEAT))):
        path.write_bytes(damage(rng, whole))
        found, said = answers(tmp_path / "m", rows)
        if said is not None:
            assert str(path) in said
            assert "\n" not in said
        else:  # White space in JSON, and letters of its numbers, mean the same in other bits.
            assert name == "model.json", f"{damage.__name__} of {name} was not seen"
            np.testing.assert_array_equal(found.scores, expected.scores)
            np.testing.assert_array_equal(found.labels, expected.labels)


def test_without_hashes_sizes_and_headers_are_compared(saved, tmp_path):
    folder, rows = saved
    shutil.copytree(folder, tmp_path / "m")
    path = tmp_path / "m" / "network.safetensors"
    whole = path.read_bytes()
    expected = load(folder).predict(rows, k=3)
    changed = bytearray(whole)
    changed[-1] ^= 64
    path.write_bytes(changed)
    load(tmp_path / "m", verify=False)
    with pytest.raises(ValueError, match=r"network\.safetensors has changed since it was written"):
        load(tmp_path / "m")
    for damaged in (whole[:-4], b"\xff" * 8 + whole[8:]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"network\.safetensors has "):
            load(tmp_path / "m", verify=False)
    path.write_bytes(whole)
    found = load(tmp_path / "m", verify=False).predict(rows, k=3)
    np.testing.assert_array_equal(found.scores, expected.scores)


def test_a_model_stays_until_the_new_one_is_on_the_disk(tmp_path, monkeypatch):
    names = [f"label {n}" for n in range(9)]
    rows = np.eye(4)[:2]
    models = [Model(slide.SlideNetwork(4, [3], 9, slide.FullSampler), label_names=names)]
    models += [Model(slide.SlideNetwork(4, [3], 9, slide.FullSampler), label_names=names)]
    first, second = (model.predict(rows, k=9).scores for model in models)
    models[0].save(tmp_path / "m")
    save, failing = tensor_folder._save, []

    def full(tensors, path):
        if any(name in path.name for name in failing):
            raise OSError("No space left on device")
        save(tensors, path)

    monkeypatch.setattr(tensor_folder, "_save", full)
    for name in ("network", "names"):
        failing[:] = [name]
        with pytest.raises(OSError, match="No space left"):
            models[1].save(tmp_path / "m")
        np.testing.assert_array_equal(load(tmp_path / "m").predict(rows, k=9).scores, first)
        assert not (tmp_path / "m/new_files").exists()
    failing.clear()
    (tmp_path / "m/model.json").unlink()  # As if the power had failed at the worst moment.
    (tmp_path / "m/new_files").mkdir()
    (tmp_path / "m/new_files/network.safetensors.tmp").write_bytes(b"part")
    models[1].save(tmp_path / "m")
    np.testing.assert_array_equal(load(tmp_path / "m").predict(rows, k=9).scores, second)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds something else than a model"):
        models[1].save(tmp_path / "other")
