"""Files are there in full or not at all."""

import errno
import json
import os
import signal
import threading
import time
import zipfile
from io import FileIO

import pytest
from filelock import FileLock, Timeout
from helpers.limits import limited

from slide.config.compose import CONFIG
from slide.model.folder import MODEL_FILE
from slide.training.checkpoint import CHECKPOINTS
from slide.utils import files, run_folders


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_round_trips(tmp_path):
    files.write_json(tmp_path / "j.json", {"ä": 1.5})
    assert json.loads((tmp_path / "j.json").read_text()) == {"ä": 1.5}
    files.write_text(tmp_path / "x.txt", "ä\n")
    assert (tmp_path / "x.txt").read_bytes() == "ä\n".encode()
    assert names(tmp_path) == ["j.json", "x.txt"]


@pytest.mark.parametrize("old", [None, b"old"])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
def test_a_failing_writer_leaves_the_old_file(tmp_path, old, error):
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)

    def write(file):
        file.write(b"begun")
        raise error

    kept = "is kept" if old is not None else "nothing was written"
    said = f"cannot write {path}: .*{kept}" if isinstance(error, OSError) else "^$"
    with pytest.raises(type(error), match=said):
        files.write_atomic(path, write)
    assert names(tmp_path) == ([] if old is None else ["file"])
    assert old is None or path.read_bytes() == old


def test_writers_of_one_file_have_temporary_files_of_their_own(tmp_path):
    """They wrote into one file, which then had a part of each, or was gone."""
    path, name = tmp_path / "x", tmp_path / ("ä" * 120)
    path.with_name("x.tmp").write_text("a user's own")
    with files.replacing(path) as one, files.replacing(path) as other:
        one.write(b"one" * 9)
        other.write(b"other")
    assert path.read_bytes() == b"one" * 9
    files.write_text(name, "the name takes 240 bytes")
    assert names(tmp_path) == ["x", "x.tmp", name.name]
    assert path.with_name("x.tmp").read_text() == "a user's own"
    if os.name == "posix":
        old = os.umask(0o077)
        try:
            files.write_text(path, "")
        finally:
            os.umask(old)
        assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileNotFoundError) as caught, files.replacing(tmp_path / "none/x"):
        pass
    assert caught.value.filename == str(tmp_path / "none/x")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that are forked")
def test_a_process_that_was_forked_meanwhile_does_not_keep_a_folder(tmp_path):
    with files.alone_in(tmp_path):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    try:
        begin = time.monotonic()
        with files.alone_in(tmp_path):
            assert time.monotonic() - begin < 30
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_thread_that_waits_for_a_folder_says_so(tmp_path, monkeypatch):
    said, told = [], threading.Event()
    monkeypatch.setattr(files, "log", lambda text: (said.append(text), told.set()))

    def enter():
        with files.alone_in(tmp_path):
            said.append("inside")

    thread = threading.Thread(target=enter)
    with files.alone_in(tmp_path):
        thread.start()
        assert told.wait(30)
        assert said == [f"waiting: another process or thread writes {tmp_path}"]
    thread.join(30)
    assert said[1:] == ["inside"]


def test_no_room(tmp_path):
    path = tmp_path / "t"
    files.write_text(path, "old")
    with limited(100_000), pytest.raises(OSError, match=rf"cannot write {path}.* is kept"):
        files.write_text(path, "x" * 400_000)
    assert names(tmp_path) == ["t"]
    assert path.read_text() == "old"


def test_folders_of_runs(tmp_path):
    named = run_folders.make_run_folder(tmp_path / "a" / "run", tmp_path)
    assert named == run_folders.make_run_folder(tmp_path / "a" / "run", tmp_path)
    # Runs of the same second get folders of their own.
    three = [run_folders.make_run_folder(None, tmp_path / "runs", "label") for _ in range(3)]
    assert len(set(three)) == 3
    assert all("_label" in folder.name and folder.is_dir() for folder in three)
    (tmp_path / "file").touch()
    message = rf"run_dir={tmp_path}/file/run cannot be made: Not a directory"
    with pytest.raises(OSError, match=message):
        run_folders.make_run_folder(tmp_path / "file/run", tmp_path)


def test_folders_that_cannot_be_of_a_new_run(tmp_path):
    (tmp_path / "file").touch()
    run_folders.check_run_dir(None)
    run_folders.check_run_dir(tmp_path / "new")
    for wrong in ("", tmp_path / "file"):
        with pytest.raises(ValueError, match="run_dir must be the path of a folder, not "):
            run_folders.check_run_dir(wrong)
    assert run_folders.RUN_MARKS == (CONFIG, CHECKPOINTS, MODEL_FILE)
    refusals = ("holds a model: name a new folder", *["holds a run: resume=.* goes on with it"] * 2)
    for mark, refusal in zip(run_folders.RUN_MARKS[::-1], refusals, strict=True):
        (tmp_path / mark).touch()
        with pytest.raises(ValueError, match=refusal):
            run_folders.check_run_dir(tmp_path)


def test_a_folder_is_held_once(tmp_path):
    held = FileLock(tmp_path / run_folders.RUN_LOCK)  # As another process would.
    refused = pytest.raises(ValueError, match=r"another process is running in .*: wait until it")
    with held, refused:
        run_folders.hold_folder(tmp_path)
    for _ in range(2):
        run_folders.hold_folder(tmp_path)  # This process may have several runs.
    other = FileLock(tmp_path / run_folders.RUN_LOCK)
    for _ in range(2):
        with pytest.raises(Timeout):
            other.acquire(blocking=False)
        run_folders.release_folder(tmp_path)
    other.acquire(blocking=False)
    other.release()
    run_folders.release_folder(tmp_path)  # It is not held any more.


def test_who_holds_a_folder_removes_what_killed_runs_have_left(tmp_path):
    best = tmp_path / "best/1-step-2"
    best.mkdir(parents=True)
    files.write_text(tmp_path / "report.html", "whole")
    left = [files.beside(tmp_path / name) for name in ("report.html", "network.safetensors")]
    left.append(files.beside(best / "network.safetensors"))
    others = [files.beside(tmp_path / "answers.jsonl"), tmp_path / "summary.json-mine.tmp"]
    for path in (*left, *others):
        path.touch()
    run_folders.hold_folder(tmp_path)
    run_folders.release_folder(tmp_path)
    assert [path.exists() for path in (*left, *others)] == [False] * 3 + [True] * 2
    assert (tmp_path / "report.html").read_text() == "whole"


def test_a_failing_disk_is_found_behind_what_a_library_makes_of_it():
    def reads():
        try:
            raise OSError(errno.EIO, "Input/output error", "a.npz")
        except OSError:
            raise zipfile.BadZipFile("File is not a zip file")  # noqa: B904, as zipfile does

    with pytest.raises(zipfile.BadZipFile) as caught:
        reads()
    assert files.disk_error(caught.value) is caught.value.__context__
    assert files.disk_error(OSError("Not a gzipped file")) is None
    assert files.disk_error(OSError(errno.EINVAL, "Invalid argument")) is None


def test_pieces_are_whole_where_a_disk_gives_less_at_once(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(bytes(300_000))
    few = lambda file, memory: FileIO.readinto(file, memoryview(memory)[:10_001])  # noqa: E731
    monkeypatch.setattr(files._Named, "readinto", few)
    with files.open_bytes(tmp_path / "a") as file:
        assert [len(piece) for piece in files.pieces(file)] == [1 << 18, 300_000 - (1 << 18)]
