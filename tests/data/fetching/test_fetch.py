"""Files that are there, and files that have to be fetched."""

import os
from pathlib import Path

import pytest

from slide.data.fetching import FetchError, check_folders, ensure_files

NAMES = ["train.txt", "test.txt"]
HINT = "Fetch it from https://example.org."


def never(*_):
    raise AssertionError("nothing is to be fetched")


def fine(_):
    pass


def provider(*names):
    def fetch(root, check):
        check(root)
        for name in names:
            (root / name).write_text(name)

    return fetch


def put(folder, *names):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text("mine")


def test_files_that_are_there_are_used_as_they_are(tmp_path):
    put(tmp_path, *NAMES)
    ensure_files(tmp_path, NAMES, never, never, HINT)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES)


def test_a_read_only_folder_will_do(tmp_path):
    put(tmp_path / "there", *NAMES)
    (tmp_path / "there").chmod(0o500)
    ensure_files(tmp_path / "there", NAMES, never, never, HINT)
    assert {path.name for path in (tmp_path / "there").iterdir()} == set(NAMES)


def test_a_missing_file_is_named_with_its_place(tmp_path):
    put(tmp_path, "train.txt")
    with pytest.raises(FileNotFoundError) as raised:
        ensure_files(tmp_path, NAMES, None, never, HINT)
    place = f"Put train.txt and test.txt into the folder {tmp_path}."
    assert str(raised.value) == f"{tmp_path}/test.txt is missing. {HINT} {place}"
    with pytest.raises(FileNotFoundError, match=r"Put a into the folder"):
        ensure_files(tmp_path, ["a"], None, never, "")
    with pytest.raises(FileNotFoundError, match=r"Put a, b and c into the folder"):
        ensure_files(tmp_path, ["a", "b", "c"], None, never, "")


def test_nothing_is_made_where_nothing_can_be_fetched(tmp_path):
    with pytest.raises(FileNotFoundError):
        ensure_files(tmp_path / "new", NAMES, None, never, HINT)
    assert not (tmp_path / "new").exists()


def test_missing_files_are_fetched_into_a_new_folder(tmp_path):
    root, seen = tmp_path / "some" / "folder", []
    ensure_files(root, NAMES, provider(*NAMES), seen.append, HINT)
    assert (root / "test.txt").read_text() == "test.txt"
    assert seen == [root]
    ensure_files(root, NAMES, never, never, HINT)


def test_all_that_was_tried_is_said_in_one_message(tmp_path):
    def fail(*_):
        raise FetchError("  https://a: answers 404 Not Found\n  https://b: the connection was cut")

    with pytest.raises(FileNotFoundError) as raised:
        ensure_files(tmp_path, NAMES, fail, fine, HINT)
    assert str(raised.value).splitlines() == [
        f"{tmp_path}/train.txt is missing, and could not be fetched:",
        "  https://a: answers 404 Not Found",
        "  https://b: the connection was cut",
        f"{HINT} Put train.txt and test.txt into the folder {tmp_path}.",
    ]


def test_a_provider_that_does_not_give_all(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"test.txt is missing. Fetch it"):
        ensure_files(tmp_path, NAMES, provider("train.txt"), fine, HINT)


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    def denied(self, *_, **__):
        raise PermissionError(13, os.strerror(13), str(self))

    monkeypatch.setattr(Path, "mkdir", denied)
    message = r"could not be fetched:\n  the folder cannot be written: Permission denied\nFetch it"
    with pytest.raises(FileNotFoundError, match=message):
        ensure_files(tmp_path / "new", NAMES, never, fine, HINT)


def test_a_full_disk_is_no_matter_of_mirrors(tmp_path):
    def fail(*_):
        raise OSError(28, "no space left", str(tmp_path))

    with pytest.raises(OSError, match="no space left") as raised:
        ensure_files(tmp_path, NAMES, fail, fine, HINT)
    assert not isinstance(raised.value, FileNotFoundError)


@pytest.mark.parametrize("value", [None, 3, b"folder"])
def test_folders_are_paths(value):
    check_folders(root="a", cache=Path("b"))
    with pytest.raises(ValueError, match="cache must be the path of a folder, not"):
        check_folders(root="a", cache=value)
