"""Folders of tensors: complete or not there at all, never code; and states in them."""

import json
import math
import os
import stat
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.job import assert_same
from safetensors.torch import load_file

import slide
from slide import FullSampler, Model, SlideNetwork
from slide.model.folder import read_model_folder
from slide.utils import tensor_folder
from slide.utils.files import open_bytes, pieces
from slide.utils.tensor_folder import (
    FolderKind,
    check_files,
    join_state,
    listed_files,
    read_folder,
    read_tensors,
    split_state,
    stream_file,
    write_folder,
)

THINGS = FolderKind("thing", "thing.json", format=1)


def checked(folder):
    content = read_folder(THINGS, folder)
    check_files(THINGS, folder, content, content["files"])
    return content


@pytest.fixture
def folder(tmp_path):
    files = {"a": {"x": torch.arange(6.0).reshape(2, 3), "n": torch.tensor([1, 2])}, "b": {}}
    write_folder(THINGS, tmp_path / "m", {"name": "mine"}, files)
    return tmp_path / "m"


def test_what_is_written_can_be_read(folder):
    content = checked(folder)
    assert content["name"] == "mine"
    assert content["format"] == 1
    assert content["versions"]["slide"] == slide.__version__
    assert set(content["files"]) == {"a.safetensors", "b.safetensors"}
    found = read_tensors(folder, "a")
    assert found["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["n"].dtype == torch.int64
    assert read_tensors(folder, "b") == {}
    assert set(load_file(folder / "a.safetensors")) == {"x", "n"}, "no file of safetensors"


def test_files_can_be_read_by_whom_the_user_allows(folder):
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask, path.name


def test_tensors_are_mapped_and_changes_of_them_stay_here(folder):
    found = read_tensors(folder, "a")["x"]
    maps = Path("/proc/self/maps")
    assert not maps.exists() or "a.safetensors" in maps.read_text()
    found += 1
    assert read_tensors(folder, "a")["x"][0, 0] == 0
    checked(folder)


def test_a_new_model_replaces_an_old_one(folder):
    old = read_tensors(folder, "a")["x"]
    (folder / "notes.txt").write_text("mine")
    (folder / "foreign.safetensors").write_bytes(b"mine")
    write_folder(THINGS, folder, {"name": "other"}, {"a": {"x": torch.zeros(1)}})
    assert old.sum() == 15, "who has opened the old model keeps it"
    names = {path.name for path in folder.iterdir()}
    assert names == {THINGS.list_file, "a.safetensors", "notes.txt", "foreign.safetensors"}
    assert read_folder(THINGS, folder)["name"] == "other"


@pytest.mark.parametrize(
    ("name", "said"),
    [("_save", r"cannot write .*a\.safetensors: no space left"), ("write_json", "no space left")],
)
def test_a_write_that_breaks_off_leaves_what_was_there(folder, tmp_path, monkeypatch, name, said):
    def broken(*arguments):
        raise OSError("no space left")

    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(tensor_folder, name, broken)
    for target in (folder, tmp_path / "none"):
        with pytest.raises(OSError, match=said):
            write_folder(THINGS, target, {}, {"a": {}})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    content = read_folder(THINGS, folder)
    check_files(THINGS, folder, content, content["files"])
    with pytest.raises(FileNotFoundError, match="there is no thing in"):
        read_folder(THINGS, tmp_path / "none")


@pytest.mark.parametrize("tidies", [False, True])
@pytest.mark.parametrize("renamed", range(4))
def test_a_write_that_is_stopped_leaves_one_of_the_two(folder, monkeypatch, renamed, tidies):
    """Between any two of the renames; a killed process tidies nothing up, and Ctrl-C does."""
    calls, replace = iter(range(9)), Path.replace

    def killed(path, target):
        if target.parent == folder and next(calls) == renamed:
            raise KeyboardInterrupt
        return replace(path, target)

    new = {"a": {"x": torch.zeros(1)}, "c": {"x": torch.ones(1)}}
    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        if not tidies:
            patched.setattr(tensor_folder.shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(KeyboardInterrupt) if renamed < 3 else nullcontext():
            write_folder(THINGS, folder, {"name": "new"}, new)
    assert checked(folder)["name"] == "new"
    assert not read_tensors(folder, "a")["x"].any()
    write_folder(THINGS, folder, {"name": "newer"}, new)
    assert {path.name for path in folder.iterdir()} == {
        "thing.json",
        "a.safetensors",
        "c.safetensors",
    }


def test_new_files_of_another_folder_are_not_taken(folder, tmp_path):
    (tmp_path / "n").mkdir()
    (tmp_path / "n" / tensor_folder.NEW_FILES).symlink_to(folder)
    with pytest.raises(FileNotFoundError, match="there is no thing in"):
        read_folder(THINGS, tmp_path / "n")
    checked(folder)


def test_a_missing_file(folder):
    (folder / "a.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"a\.safetensors is missing: copy the whole"):
        read_folder(THINGS, folder)


def test_a_file_of_another_size(folder):
    with (folder / "a.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ValueError, match=r"has \d+ bytes, but \d+ were written: copy the whole"):
        read_folder(THINGS, folder)


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("position", [3, -1])
def test_a_changed_byte(folder, name, position):
    """The list does not show it, so whoever opens the folder says which files to compare."""
    path = folder / f"{name}.safetensors"
    changed = bytearray(path.read_bytes())
    changed[position] ^= 1
    path.write_bytes(changed)
    content = read_folder(THINGS, folder)
    with pytest.raises(ValueError, match=rf"{name}\.safetensors has changed since it was written"):
        check_files(THINGS, folder, content, content["files"])
    other = {"a": "b", "b": "a"}[name]
    check_files(THINGS, folder, content, [f"{other}.safetensors"])


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs Linux")
def test_a_disk_that_does_not_give_a_file_is_told_with_its_name():
    with (
        open_bytes(Path("/proc/self/mem")) as file,
        pytest.raises(OSError, match=r"Input/output error: '/proc/self/mem'"),
    ):
        list(pieces(file))


def test_each_changed_byte_of_the_list_is_seen(folder):
    path = folder / THINGS.list_file
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.choice(len(whole), 60, replace=False):
        if whole[position : position + 1].isspace():
            continue  # Where it means nothing.
        changed = bytearray(whole)
        changed[position] ^= 1
        path.write_bytes(changed)
        with pytest.raises((ValueError, FileNotFoundError)) as caught:
            read_folder(THINGS, folder)
        assert "\n" not in str(caught.value)


def test_a_damaged_header(folder):
    path = folder / "a.safetensors"
    whole = path.read_bytes()
    path.write_bytes(b"\xff" * 8 + whole[8:])
    read_folder(THINGS, folder)
    with pytest.raises(ValueError, match=r"a\.safetensors has changed since it was written: "):
        read_tensors(folder, "a")


def test_a_header_of_very_many_names(tmp_path):
    shapes = {f"{number}": (0,) for number in range(20_000)}
    stream_file(tmp_path, "a", shapes, [])
    with pytest.raises(ValueError, match=r"a\.safetensors .*: its header has \d+ bytes, more"):
        read_tensors(tmp_path, "a")


def test_another_format(folder):
    content = json.loads((folder / THINGS.list_file).read_text()) | {"format": 2}
    content["versions"]["slide"] = "9.9"
    (folder / THINGS.list_file).write_text(json.dumps(content))
    expected = f"is of format 2, which slide 9.9 wrote; slide {slide.__version__} reads"
    with pytest.raises(ValueError, match=expected):
        read_folder(THINGS, folder)


@pytest.mark.parametrize("text", ["", "[]", "null", '{"format": 1}', "\xff"])
def test_other_content(folder, text):
    (folder / THINGS.list_file).write_text(text)
    with pytest.raises(ValueError, match=r"thing\.json has changed since it was written: "):
        read_folder(THINGS, folder)


def test_a_list_of_any_length_is_not_read_whole(folder):
    """It ends with zeros, none of which are on the disk."""
    os.truncate(folder / THINGS.list_file, 1 << 36)
    with pytest.raises(ValueError, match=r"thing\.json has changed .*: ValueError\('it has more"):
        read_folder(THINGS, folder)
    assert tensor_folder.listed_files(folder / THINGS.list_file) is None


def test_no_model(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no thing in .*: no thing\.json$"):
        read_folder(THINGS, tmp_path)
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(FileNotFoundError, match=r"the run has not ended, resume=.* goes on"):
        read_model_folder(tmp_path)


def test_a_file_written_in_parts_is_one_written_at_once(tmp_path):
    tensors = {"weight": torch.randn(7, 3), "bias": torch.randn(5)}
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    blocks = [tensors["weight"][:4], tensors["weight"][4:], tensors["bias"]]
    written = stream_file(tmp_path, "parts", shapes, iter(blocks))
    write_folder(THINGS, tmp_path, {}, {"whole": tensors}, [written])
    checked(tmp_path)
    for name, tensor in read_tensors(tmp_path, "parts").items():
        assert torch.equal(tensor, tensors[name])


@pytest.mark.parametrize(
    "content",
    [
        '{"format": "other", "files": {}}',
        '{"format": 1, "files": ["a.safetensors"]}',
        "[1]",
        "\xff",
    ],
)
def test_a_folder_of_another_program_stays_as_it_is(tmp_path, content):
    model = Model(SlideNetwork(4, [3], 2, FullSampler))
    (tmp_path / "model.json").write_text(content, encoding="latin-1")
    (tmp_path / "weights.safetensors").write_bytes(b"mine")
    with pytest.raises(ValueError, match="holds something else than a model: name a new folder"):
        model.save(tmp_path)
    assert (tmp_path / "model.json").read_bytes() == content.encode("latin-1")
    assert (tmp_path / "weights.safetensors").read_bytes() == b"mine"


def test_a_list_names_no_file_outside_of_its_folder(tmp_path):
    (tmp_path / "b.safetensors").write_bytes(b"mine")
    (tmp_path / "m").mkdir()
    said = {"format": 1, "files": {"../b.safetensors": {}, "notes.txt": {}, "c.safetensors": {}}}
    (tmp_path / "m" / THINGS.list_file).write_text(json.dumps(said))
    assert listed_files(tmp_path / "m" / THINGS.list_file) == ["c.safetensors"]
    write_folder(THINGS, tmp_path / "m", {}, {"a": {}})
    assert (tmp_path / "b.safetensors").exists()


def test_an_earlier_format_that_is_still_read(folder):
    later = THINGS._replace(format=3, oldest=1)
    assert read_folder(later, folder) == read_folder(THINGS, folder)
    for oldest in (2, 0):
        with pytest.raises(ValueError, match=r"is of format 1, .* reads format 3"):
            read_folder(later._replace(oldest=oldest), folder)


# Nested states as JSON values and tensors.


STATES = [
    *(3, None, True, "text", 1.5, [], {}, (), [[], {}], {"a": [1, {"b": (2, 3)}]}),
    {0: torch.arange(3), 1: {"step": 2, "betas": (0.9, 0.999)}},
    {"a.b": torch.zeros(2), "a": {"b": torch.ones(2)}},
    {"tensor:": 1, "tuple:": [2], "items:": {"tensor:": torch.ones(1)}},
    {(1, 2): {True: 1.0}},
    [torch.tensor(5), torch.ones(0, 3), torch.ones(2, dtype=torch.bfloat16)],
    {"large": 2**80, "small": 5e-324, "third": 1 / 3, "infinite": -math.inf},
]


@pytest.mark.parametrize("state", STATES, ids=str)
def test_they_come_back(state):
    values, tensors = split_state(state, "x")
    found = join_state(json.loads(json.dumps(values)), tensors)
    assert type(found) is type(state)
    if isinstance(state, dict):
        assert [type(key) for key in found] == [type(key) for key in state]
    assert str(found) == str(state)
    if isinstance(state, dict | list):
        assert_same(found, state)


@pytest.mark.parametrize("thing", [object(), {1, 2}, b"x", 1j])
def test_what_is_no_state(thing):
    said = f"x.a.1 is a {type(thing).__name__}, which a checkpoint cannot hold"
    with pytest.raises(TypeError, match=said):
        split_state({"a": [0, thing]}, "x")
