"""Files are there in full or not at all."""

import errno
import json
import resource
from contextlib import contextmanager

import pytest
import torch

from slide import files


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@contextmanager
def limited(size):
    """No file may grow beyond ``size`` bytes: the nearest thing to a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_round_trips(tmp_path):
    state = {"a": {"b": torch.arange(5), "step": 3}, "text": "x", "list": [1.5, 2]}
    files.write_tensors(tmp_path / "t.pt", state)
    found = files.read_tensors(tmp_path / "t.pt")
    assert found["a"]["b"].tolist() == [0, 1, 2, 3, 4]
    assert (found["a"]["step"], found["text"], found["list"]) == (3, "x", [1.5, 2])
    files.write_json(tmp_path / "j.json", {"ä": 1.5})
    assert json.loads((tmp_path / "j.json").read_text()) == {"ä": 1.5}
    files.write_text(tmp_path / "x.txt", "ä\n")
    assert (tmp_path / "x.txt").read_bytes() == "ä\n".encode()
    assert names(tmp_path) == ["j.json", "t.pt", "x.txt"]


def test_a_file_takes_its_name_when_it_is_complete(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(file):
        file.write(b"new, first half; ")
        file.flush()
        assert path.read_bytes() == b"old"
        file.write(b"second half")

    files.write_atomic(path, write)
    assert path.read_bytes() == b"new, first half; second half"


@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("unexpected pos")]
)
def test_a_failing_writer_leaves_the_old_file(tmp_path, old, error):
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)

    def write(file):
        file.write(b"begun")
        raise error

    kept = "is kept" if old is not None else "nothing was written"
    with pytest.raises(OSError, match=f"cannot write {path}: .*{kept}"):
        files.write_atomic(path, write)
    assert names(tmp_path) == ([] if old is None else ["file"])
    assert old is None or path.read_bytes() == old


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_other_errors_go_through_and_leave_nothing_either(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write(file):
        file.write(b"begun")
        raise error

    with pytest.raises(error):
        files.write_atomic(path, write)
    assert names(tmp_path) == ["file"]
    assert path.read_bytes() == b"old"


def test_no_room_for_tensors(tmp_path):
    path = tmp_path / "t.pt"
    files.write_tensors(path, {"a": torch.ones(3)})
    with limited(100_000), pytest.raises(OSError, match=rf"cannot write {path}.* is kept"):
        files.write_tensors(path, {"a": torch.ones(100_000), "b": torch.ones(100_000)})
    assert names(tmp_path) == ["t.pt"]
    assert files.read_tensors(path)["a"].tolist() == [1, 1, 1]


def test_no_folder(tmp_path):
    with pytest.raises(OSError, match=r"cannot write .*nothing was written"):
        files.write_text(tmp_path / "missing" / "x", "text")


@pytest.mark.parametrize("part", [0, 0.5, 0.99])
def test_a_damaged_checkpoint_is_named(tmp_path, part):
    path = tmp_path / "t.pt"
    files.write_tensors(path, {"a": torch.ones(1000)})
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(ValueError, match=f"{path} is not a readable checkpoint"):
        files.read_tensors(path)


class Code:
    def __reduce__(self):
        return print, ("this ran",)


def test_a_checkpoint_runs_no_code(tmp_path, capsys):
    torch.save({"a": Code()}, tmp_path / "t.pt")
    with pytest.raises(ValueError, match="is not a readable checkpoint"):
        files.read_tensors(tmp_path / "t.pt")
    assert capsys.readouterr().out == ""


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"no checkpoint at {tmp_path}/t.pt"):
        files.read_tensors(tmp_path / "t.pt")
