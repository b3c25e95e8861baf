"""Downloads from mirrors with faults, on a server of this machine."""

import hashlib
import io
import multiprocessing
import os
import re
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
from helpers import server as servers

from slide.data import fetching as transfers
from slide.data.fetching import DOWNLOAD_FOLDER, FetchError, download, ensure_files, parse_mirrors

DATA = np.random.default_rng(0).bytes(1_000_000)
CUT_OFF = [100_000, None, 0]  # in the middle, and at once when it is resumed
TRAIN, TEST = b"2 3 4\n0 1:1\n1 2:1\n", b"1 3 4\n2 0:1\n"


@pytest.fixture
def server():
    with servers.serving() as started:
        yield started


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(transfers, "PAUSE", 0.0)


def fine(folder):
    """A check that all files pass."""
    assert folder.is_dir()


def archive(**files):
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as opened:
            for name, content in files.items():
                opened.writestr(f"Set/{name}.txt", content)
        return buffer.getvalue()


def file(url, name="train.txt", **more):
    return {"url": url, "saves": {name: None}, **more}


def both(url, **more):
    saves = {"train.txt": "Set/train.txt", "test.txt": "Set/test.txt"}
    return [{"url": url, "saves": saves, **more}]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def failure(root, *mirrors, check=fine):
    with pytest.raises(FetchError) as raised:
        download(root, check, mirrors=mirrors)
    return str(raised.value)


def test_files_of_two_kinds(server, tmp_path):
    mirror = both(server.add("/a.zip", archive(train=TRAIN, test=TEST, other=DATA)))
    download(tmp_path, fine, mirrors=[mirror])
    assert names(tmp_path) == ["test.txt", "train.txt"]
    assert (tmp_path / "train.txt").read_bytes() == TRAIN
    other = tmp_path / "other"
    other.mkdir()
    plain = [file(server.add("/1", TRAIN)), file(server.add("/2", TEST), "test.txt")]
    download(other, fine, mirrors=[plain])
    assert (other / "test.txt").read_bytes() == TEST
    assert names(other) == ["test.txt", "train.txt"]


HASHES = {
    "sha256": hashlib.sha256(TRAIN).hexdigest(),
    "sha1": hashlib.sha1(TRAIN).hexdigest(),
    "md5": hashlib.md5(TRAIN).hexdigest(),
    "git-sha1": hashlib.sha1(b"blob %d\0" % len(TRAIN) + TRAIN).hexdigest(),
}


@pytest.mark.parametrize("kind", HASHES)
def test_hashes(server, tmp_path, kind):
    url, spoilt = server.add("/a", TRAIN), server.add("/b", TRAIN.replace(b"1", b"2"))
    right = f"{kind}:{HASHES[kind]}"
    message = failure(tmp_path, [file(spoilt, hash=right)])
    assert re.search(rf"{spoilt}: its {kind} is [0-9a-f]+, not {HASHES[kind]}", message)
    assert names(tmp_path) == [], "a wrong file is not kept"
    download(tmp_path, fine, mirrors=[[file(url, hash=right, size=len(TRAIN))]])
    assert (tmp_path / "train.txt").read_bytes() == TRAIN


def test_a_git_hash_is_git_s():
    # Of the empty file, as any repository with one says.
    empty = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    assert hashlib.sha1(b"blob 0\0").hexdigest() == empty


def test_a_joined_file_with_a_wrong_hash_is_fetched_anew(server, tmp_path, monkeypatch):
    right = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
    monkeypatch.setattr(transfers, "TRIES", 1)
    url = server.add("/a", bytes(len(DATA)), cuts=[*CUT_OFF])
    assert "cut" in failure(tmp_path, [file(url, hash=right)])
    server.add("/a", DATA)  # another file of the same length, and no validator to tell it
    download(tmp_path, fine, mirrors=[[file(url, hash=right)]])
    assert (tmp_path / "train.txt").read_bytes() == DATA
    assert any(asked for _, asked in server.asked), "it was joined first"


def test_mirrors_are_tried_in_order(server, tmp_path):
    good = archive(train=TRAIN, test=TEST)
    mirrors = [
        both(server.add("/missing.zip", status=404)),
        both(server.add_page("/quota.zip", servers.QUOTA)),
        both(server.add("/hash.zip", good), hash=f"md5:{32 * '0'}"),
        both(server.add("/broken.zip", good[:-30])),
        both(server.add("/incomplete.zip", archive(train=TRAIN, prüfung=TEST))),
        both(server.add("/no-archive.zip", TRAIN)),
    ]
    message = failure(tmp_path, *mirrors)
    parts = [
        r"/missing.zip: answers 404 Not Found",
        r"/quota.zip: answers a web page \('Google Drive - Quota exceeded'\) instead of the file",
        r"/hash.zip: its md5 is [0-9a-f]{32}, not 0{32}",
        r"/broken.zip: it is damaged: File is not a zip file",
        r"/incomplete.zip: there is no Set/test.txt in it, it holds Set/train.txt, Set/prüfung.txt",
        r"/no-archive.zip: it is no archive",
    ]
    assert re.fullmatch("\n".join(f"  {server.root}{part}" for part in parts), message)
    assert names(tmp_path) == [], "nothing useful is left"
    mirrors.append(both(server.add("/good.zip", good)))
    never = both(server.add("/never.zip", good))
    download(tmp_path, fine, mirrors=[*mirrors, never])
    assert names(tmp_path) == ["test.txt", "train.txt"]
    assert server.count("/never.zip") == 0


def test_another_version_of_the_set_is_passed_over(server, tmp_path):
    def check(folder):
        for name, rows in (("train.txt", b"2"), ("test.txt", b"1")):
            found = (folder / name).read_bytes().split()[0]
            if found != rows:
                raise ValueError(f"{folder / name}:1: header has {found.decode()} rows")

    other = both(server.add("/other.zip", archive(train=b"9 3 4\n", test=TEST)))
    message = failure(tmp_path, other, check=check)
    assert message.endswith("/other.zip: not the right files: train.txt:1: header has 9 rows")
    assert names(tmp_path) == []
    good = both(server.add("/good.zip", archive(train=TRAIN, test=TEST)))
    download(tmp_path, check, mirrors=[other, good])
    assert (tmp_path / "train.txt").read_bytes() == TRAIN
    assert server.count("/other.zip") == 2, "a wrong version is not kept to go on with"


def test_files_that_are_there_stay_as_they_are(server, tmp_path):
    mine = b"mine\n"
    (tmp_path / "test.txt").write_bytes(mine)
    seen = []

    def check(folder):
        seen.append({path.name: path.read_bytes() for path in folder.iterdir()})

    one, other = server.add("/1", TRAIN), server.add("/2", TEST)
    download(tmp_path, check, mirrors=[[file(one), file(other, "test.txt")]])
    assert seen == [{"train.txt": TRAIN, "test.txt": mine}], "the check sees all files"
    assert server.count("/2") == 0
    (tmp_path / "train.txt").unlink()
    download(tmp_path, check, mirrors=[both(server.add("/a.zip", archive(train=b"a", test=b"b")))])
    assert (tmp_path / "test.txt").read_bytes() == mine
    assert not (tmp_path / "test.txt").is_symlink()
    assert (tmp_path / "train.txt").read_bytes() == b"a"


def test_nothing_appears_before_all_is_there(server, tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "TRIES", 1)
    one = file(server.add("/1", TRAIN), hash=f"sha256:{hashlib.sha256(TRAIN).hexdigest()}")
    other = file(server.add("/2", DATA, cuts=[*CUT_OFF]), "test.txt")
    assert f"{server.root}/2: the connection was cut" in failure(tmp_path, [one, other])
    assert names(tmp_path) == [".download"]
    download(tmp_path, fine, mirrors=[[one, other]])
    assert (tmp_path / "test.txt").read_bytes() == DATA
    assert server.count("/1") == 1, "what was complete is not fetched again"
    assert names(tmp_path) == ["test.txt", "train.txt"]


def test_files_of_two_versions_are_not_joined(server, tmp_path):
    """When the second file appears, the server has a new version of the first one."""
    mirror = [file(server.add("/1", b"old")), file(f"{server.root}/2", "test.txt")]
    assert "/2: answers 404" in failure(tmp_path, mirror)
    server.add("/1", b"new"), server.add("/2", b"new")
    download(tmp_path, fine, mirrors=[mirror])
    assert (tmp_path / "train.txt").read_bytes() == b"new"


def test_rows_by_number(server, tmp_path):
    whole = b"3 10 4\n0 1:1\n1,2 2:1\n 3:1\n"
    inside = archive(data=whole, tr=b"3 1\n1 2\n", tst=b"2 3\n")
    saves = {
        "train.txt": {"member": "Set/data.txt", "rows": "Set/tr.txt"},
        "test.txt": {"member": "Set/data.txt", "rows": "Set/tst.txt"},
    }
    download(tmp_path, fine, mirrors=[[{"url": server.add("/a", inside), "saves": saves}]])
    assert (tmp_path / "train.txt").read_bytes() == b"2 10 4\n 3:1\n0 1:1\n"
    assert (tmp_path / "test.txt").read_bytes() == b"1 10 4\n1,2 2:1\n"
    for numbers in (b"4\n", b"0\n", b"x\n", b"\n"):
        url = server.add("/b", archive(data=whole, tr=numbers, tst=b"1\n"))
        (tmp_path / "train.txt").unlink(missing_ok=True)
        message = failure(tmp_path, [{"url": url, "saves": saves}])
        assert re.search(r"tr.txt:1: no row number in \[1, 3\]", message)


@pytest.mark.parametrize(
    ("remote", "message"),
    [
        ({"url": "ftp://a/b"}, "url must be an address that begins with https://, not 'ftp://a/b'"),
        ({"url": "/etc/passwd"}, "url must be"),
        ({"saves": {}}, "must name files"),
        ({"saves": {"../train.txt": None}}, "must be plain names, not '../train.txt'"),
        ({"saves": {"/tmp/a": None}}, "must be plain names"),
        ({"saves": {".download": None}}, "must be plain names"),
        ({"saves": {"a": None, "b": "c"}}, "itself and an archive too"),
        ({"saves": {"a": {"member": "x"}}}, "rows in .* must be given by"),
        ({"hash": "sha512:00"}, "hash of .* must be kind:digits, sha256, .*, not 'sha512:00'"),
        ({"hash": "md5:00"}, "hash of"),
        ({"size": 0}, "size of .* must be at least 1, not 0"),
        ({"sise": 1}, "mirrors must be lists of url, saves, hash, size: .*sise"),
    ],
)
def test_malformed_mirrors(remote, message):
    with pytest.raises(ValueError, match=message):
        parse_mirrors([[{**file("https://example.org/a"), **remote}]])


def test_mirrors_that_are_no_lists():
    with pytest.raises(ValueError, match="mirrors must be lists"):
        parse_mirrors([file("https://example.org/a")])


def test_no_mirrors(tmp_path):
    assert failure(tmp_path) == "  no address is known"


# Two processes, and all of it behind `ensure_files`.


def fetch_in_process(root, url, started, done):
    def slow(folder):
        started.set()
        done.wait(60)

    ensure_files(
        Path(root), ["train.txt"], lambda r, c: download(r, c, mirrors=[[file(url)]]), slow, ""
    )


def test_two_processes_fetch_once(server, tmp_path, capfd):
    url = server.add("/a", TRAIN)
    context = multiprocessing.get_context("spawn")  # with threads, no fork
    started, done = context.Event(), context.Event()
    root = tmp_path / "new" / "folder"
    first = context.Process(target=fetch_in_process, args=(str(root), url, started, done))
    first.start()
    assert started.wait(60)
    again = []
    second = threading.Thread(
        target=ensure_files,
        args=(root, ["train.txt"], lambda *_: again.append("fetched"), fine, ""),
    )
    second.start()
    second.join(0.2)
    assert second.is_alive(), "the second one waits"
    assert not (root / "train.txt").exists()
    done.set()
    first.join(60)
    second.join(60)
    assert (first.exitcode, second.is_alive()) == (0, False)
    assert (root / "train.txt").read_bytes() == TRAIN
    assert server.count("/a") == 1
    assert again == []
    assert (
        f"waiting for another process that prepares the files in {root}" in capfd.readouterr().err
    )


def test_a_killed_process_leaves_nothing_in_the_way(server, tmp_path):
    work = tmp_path / DOWNLOAD_FOLDER
    (work / "files").mkdir(parents=True)
    (work / "files" / "train.txt").write_bytes(b"half")
    (work / "members").mkdir()
    download(tmp_path, fine, mirrors=[both(server.add("/a.zip", archive(train=TRAIN, test=TEST)))])
    assert (tmp_path / "train.txt").read_bytes() == TRAIN
    assert names(tmp_path) == ["test.txt", "train.txt"]
    assert os.stat(tmp_path / "train.txt").st_nlink == 1
