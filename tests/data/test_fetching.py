"""Files that are there, the lock, transfers with faults, and mirrors, on a local server."""

import errno
import gzip
import hashlib
import os
import re
import socket
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import server as servers
from helpers.archives import as_zip

from slide.data import fetching as transfers
from slide.data import xmc
from slide.data.fetching import (
    DOWNLOAD_FOLDER,
    FetchError,
    download,
    ensure_files,
    parse_mirrors,
    transfer,
)

NAMES = ["train.txt", "test.txt"]
HINT = "Fetch it from https://example.org."


def never(*_):
    raise AssertionError("nothing is to be fetched")


def provider(*names):
    def fetch(root, check):
        check(root)
        put(root, *names)

    return fetch


def put(folder, *names):
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text("mine")


def test_a_read_only_folder_will_do(tmp_path):
    put(tmp_path / "there", *NAMES)
    (tmp_path / "there").chmod(0o500)
    ensure_files(tmp_path / "there", NAMES, HINT, never, never)
    assert {path.name for path in (tmp_path / "there").iterdir()} == set(NAMES)


def test_a_missing_file_is_named_with_its_place(tmp_path):
    put(tmp_path, "train.txt")
    with pytest.raises(FileNotFoundError) as raised:
        ensure_files(tmp_path, NAMES, HINT)
    place = f"the folder {tmp_path}, or name theirs by dataset.root."
    said = f"{tmp_path}/test.txt is missing. {HINT} Put train.txt and test.txt into {place}"
    assert str(raised.value) == said
    with pytest.raises(FileNotFoundError, match=r"test.txt is missing. Fetch it"):
        ensure_files(tmp_path, NAMES, HINT, provider("train.txt"))
    with pytest.raises(FileNotFoundError, match=r"Put a, b and c into the folder"):
        ensure_files(tmp_path / "new", ["a", "b", "c"], "")
    assert not (tmp_path / "new").exists()
    with pytest.raises(FileNotFoundError, match=r"train.txt is a file, not a folder. Fetch it"):
        ensure_files(tmp_path / "train.txt", NAMES, HINT)


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    def denied(self, *_, **__):
        raise PermissionError(13, os.strerror(13), str(self))

    message = r"could not be fetched:\n  the folder cannot be written: Permission denied\nFetch it"
    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", denied)
        with pytest.raises(FileNotFoundError, match=message):
            ensure_files(tmp_path / "new", NAMES, HINT, never)

    def full(*_):
        raise OSError(28, "no space left", str(tmp_path))

    with pytest.raises(OSError, match="no space left") as raised:  # It is no matter of mirrors.
        ensure_files(tmp_path, NAMES, HINT, full)
    assert not isinstance(raised.value, FileNotFoundError)


def test_what_another_process_has_fetched_meanwhile_is_not_fetched_again(tmp_path, capfd):
    started, done, fetched = threading.Event(), threading.Event(), []

    def slow(root, check):
        fetched.append(root)
        started.set()
        done.wait(60)
        put(root, "train.txt")

    arguments = tmp_path / "new" / "folder", ["train.txt"], "", slow
    threads = [threading.Thread(target=ensure_files, args=arguments) for _ in range(2)]
    threads[0].start()
    assert started.wait(60)
    threads[1].start()
    threads[1].join(0.2)
    assert threads[1].is_alive(), "the second one waits"
    done.set()
    for thread in threads:
        thread.join(60)
    assert fetched == [arguments[0]]
    said = f"waiting for another process that prepares the files in {arguments[0]}"
    assert said in capfd.readouterr().err


# One file over HTTP, from a faulty server of this machine.


DATA = np.random.default_rng(0).bytes(1_000_000)
CUT_OFF = [100_000, None, 0]  # in the middle, and at once when it is resumed


@pytest.fixture
def server():
    with servers.serving() as started:
        yield started


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(transfers, "PAUSE", 0.0)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"headers": {"Content-Encoding": "gzip"}},
        {"length": False},
        {"cuts": [500_000], "ranges": False},
        {"cuts": [500_000], "wrong_range": True},
    ],
)
@pytest.mark.parametrize("data", [DATA, b""], ids=["some", "none"])
def test_a_file_arrives_whole(server, tmp_path, data, how):
    how, packed = {**how, "cuts": [*how.get("cuts", [])]}, "headers" in how
    cut, url = bool(how["cuts"]), server.add("/a", gzip.compress(data) if packed else data, **how)
    assert transfer(url, tmp_path / "a", size=len(data)) is bool(data and cut)
    assert (tmp_path / "a").read_bytes() == data
    assert transfer(url, tmp_path / "a", size=len(data)) is bool(data), "nothing is left to fetch"
    assert (tmp_path / "a").read_bytes() == data


def test_a_cut_connection_is_resumed(server, tmp_path):
    url = server.add("/a", DATA, cuts=[400_000, None, 300_000])
    assert transfer(url, tmp_path / "a") is True
    assert (tmp_path / "a").read_bytes() == DATA
    # Each try first finds the address of the file, behind pages; cut are a whole one and a part.
    ranges = [asked for _, asked in server.asked]
    assert [bool(asked) for asked in ranges] == [False, False, True, False, True]
    first, second = (int(asked.strip("bytes=-")) for asked in ranges if asked)
    assert 400_000 - transfers.RECEIVED_BYTES < first <= 400_000
    assert first + 300_000 - transfers.RECEIVED_BYTES < second <= first + 300_000


def test_a_short_answer_is_noticed_whoever_else_does(server, tmp_path, monkeypatch):
    whole, calls = transfers._body_chunks, []

    def short(response, size):
        calls.append(size)
        chunks = list(whole(response, size))
        return iter(chunks[: -2 if len(calls) == 1 else None])

    monkeypatch.setattr(transfers, "_body_chunks", short)
    assert transfer(server.add("/a", DATA), tmp_path / "a") is True
    assert (tmp_path / "a").read_bytes() == DATA
    assert len(calls) == 2


def test_a_connection_that_is_always_cut_at_the_same_place(server, tmp_path):
    url = server.add("/a", DATA, cuts=[10] * 100, ranges=False)
    with pytest.raises(FetchError, match="the connection was cut"):
        transfer(url, tmp_path / "a")
    assert server.count("/a") <= 3 * transfers.TRIES


def test_a_file_of_another_size(server, tmp_path, monkeypatch):
    url = server.add("/b", DATA, length=False, cuts=[500])
    with pytest.raises(FetchError, match="has 500 bytes, not 1000000"):
        transfer(url, tmp_path / "b", size=len(DATA))
    assert not (tmp_path / "b").exists()
    monkeypatch.setattr(transfers, "_write_body", lambda *_: pytest.fail("it is fetched"))
    with pytest.raises(FetchError, match="has 1000000 bytes, not 7"):
        transfer(server.add("/a", DATA), tmp_path / "a", size=7)


def test_what_is_too_large_for_anything(server, tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "MAX_BYTES", 1000)
    for length in (True, False):
        with pytest.raises(FetchError, match=r"bytes, more than 1000|more than 1000 bytes"):
            transfer(server.add("/a", DATA, length=length), tmp_path / "a")
    assert not (tmp_path / "a").exists() or (tmp_path / "a").stat().st_size <= 1000


def test_the_confirm_page_of_drive(server, tmp_path):
    attached = {"Content-Disposition": 'attachment; filename="a.zip"', "Content-Type": "text/html"}
    server.add("/download", DATA, headers=attached, cuts=[300_000])
    page = servers.CONFIRM.format(action=f"{server.root}/download")
    url = server.add_page("/uc?export=download&id=42&resourcekey=0-a", page)
    transfer(url, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == DATA
    assert server.asked[0] == ("/uc?export=download&id=42&resourcekey=0-a", None)
    assert "confirm=t" in server.asked[1][0]
    assert server.asked[-1][1].startswith("bytes="), "resumed at the address behind the page"
    assert "confirm=t" in server.asked[-1][0]


def test_pages_instead_of_the_file(server, tmp_path):
    disguised = server.add("/b", " \n<!DOCTYPE html><title>Log in</title>")
    with pytest.raises(FetchError, match=r"a web page \('Log in'\) instead"):
        transfer(disguised, tmp_path / "a")
    circle = server.add_page("/c", servers.CONFIRM.format(action="/c"))
    with pytest.raises(FetchError, match="one page after the other"):
        transfer(circle, tmp_path / "a")
    assert server.count("/c") <= 5


def test_refusals_are_final(server, tmp_path):
    with pytest.raises(FetchError, match="answers 429 "):
        transfer(server.add("/a", status=429), tmp_path / "a")
    assert server.count("/a") == 1


def test_busy_servers_are_asked_again(server, tmp_path, monkeypatch):
    url = server.add("/a", DATA, status=503)
    waits = []

    def wait(seconds):
        waits.append(seconds)
        server.routes["/a"].status = 200

    monkeypatch.setattr(transfers.time, "sleep", wait)
    monkeypatch.setattr(transfers, "PAUSE", 0.5)
    transfer(url, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == DATA
    assert waits[0] == 0.5


def test_nobody_answers(server, tmp_path, monkeypatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(FetchError, match=r"^Failed to [^:<]*: [^:<]*Connection refused$"):
        transfer(f"http://127.0.0.1:{port}/a", tmp_path / "a")
    with monkeypatch.context() as offline:
        unknown = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        offline.setattr(socket, "getaddrinfo", lambda *_: (_ for _ in ()).throw(unknown))
        with pytest.raises(FetchError, match=r"^Failed to resolve 'nowhere.invalid' "):
            transfer("http://nowhere.invalid/a", tmp_path / "a")
    monkeypatch.setattr(transfers, "TIMEOUTS", (0.2, 0.2))
    deaf = socket.create_server(("127.0.0.1", 0))
    with deaf, pytest.raises(FetchError, match=r"no answer for 0.2 s"):
        transfer(f"http://127.0.0.1:{deaf.getsockname()[1]}/a", tmp_path / "a")
    url = server.add("/a", DATA[:200_000], pause=0.3)
    monkeypatch.setattr(transfers, "TRIES", 2)
    with pytest.raises(FetchError, match=r"no answer for 0.2 s"):
        transfer(url, tmp_path / "a")
    monkeypatch.setattr(transfers, "TIMEOUTS", (0.2, 5.0))
    transfer(url, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == DATA[:200_000], "slow is not deaf"


def test_a_full_disk_keeps_what_is_there(server, tmp_path, monkeypatch):
    url, chunks = server.add("/a", DATA), transfers._body_chunks

    def full(response, size):
        for number, chunk in enumerate(chunks(response, size)):
            if number == 5:
                raise OSError(errno.ENOSPC, "No space left on device")
            yield chunk

    with monkeypatch.context() as patched:
        patched.setattr(transfers, "_body_chunks", full)
        with pytest.raises(OSError, match=r"no space left after .* the next call goes on") as e:
            transfer(url, tmp_path / "a")
    assert not isinstance(e.value, FetchError)
    assert e.value.filename == str(tmp_path / "a")
    kept = (tmp_path / "a").stat().st_size
    assert 0 < kept <= 600_000
    transfer(url, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == DATA
    assert server.asked[-1] == ("/a", f"bytes={kept}-")


def test_too_little_space_is_said_before(server, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=50))
    with pytest.raises(OSError, match=r"not enough space: the file takes 1.0 MB") as raised:
        transfer(server.add("/a", DATA), tmp_path / "a")
    assert raised.value.errno == errno.ENOSPC


# Downloads from mirrors with faults, on a server of this machine.


TRAIN, TEST = b"2 3 4\n0 1:1\n1 2:1\n", b"1 3 4\n2 0:1\n"


def accepted(folder):
    """A check that all files pass."""
    assert folder.is_dir()


def archive(**files):
    return as_zip({f"Set/{name}.txt": content for name, content in files.items()})


def file(url, name="train.txt", **more):
    return {"url": url, "saves": {name: None}, **more}


def both(url, **more):
    saves = {"train.txt": "Set/train.txt", "test.txt": "Set/test.txt"}
    return [{"url": url, "saves": saves, **more}]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def failure(root, *mirrors, check=accepted):
    with pytest.raises(FetchError) as raised:
        download(root, check, mirrors=mirrors)
    return str(raised.value)


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
    download(tmp_path, accepted, mirrors=[[file(url, hash=right, size=len(TRAIN))]])
    assert (tmp_path / "train.txt").read_bytes() == TRAIN


def test_parts_are_joined_only_where_a_checksum_tells(server, tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "TRIES", 1)
    old, new = archive(train=DATA, test=b"old"), archive(train=DATA[::-1], test=b"new")
    for url, mirror in (("/a", file), ("/b", both)):
        root = tmp_path / url[1:]
        root.mkdir()
        remote = mirror(server.add(url, old, cuts=[*CUT_OFF]))
        mirrors = [remote if mirror is both else [remote]]
        assert "cut" in failure(root, *mirrors)
        server.add(url, new)
        if mirror is both:  # The archive is of two versions, and the next call begins anew.
            assert "it is damaged" in failure(root, *mirrors)
        download(root, accepted, mirrors=mirrors)
        expected = new if mirror is file else DATA[::-1]
        assert (root / "train.txt").read_bytes() == expected


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
    download(tmp_path, accepted, mirrors=[*mirrors, never])
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
    download(tmp_path, accepted, mirrors=[[one, other]])
    assert (tmp_path / "test.txt").read_bytes() == DATA
    assert server.count("/1") == 1, "what was complete is not fetched again"
    assert names(tmp_path) == ["test.txt", "train.txt"]


def test_rows_by_number(server, tmp_path):
    whole = b"3 10 4\n0 1:1\n1,2 2:1\n 3:1\n"
    inside = archive(data=whole, tr=b"3 1\n1 2\n", tst=b"2 3\n")
    saves = {
        "train.txt": {"member": "Set/data.txt", "rows": "Set/tr.txt"},
        "test.txt": {"member": "Set/data.txt", "rows": "Set/tst.txt"},
    }
    mirrors = [[{"url": server.add("/a", inside), "saves": saves}]]
    places = {"root": tmp_path, "cache": tmp_path / "cache"}
    xmc(name="x", **places, fetch=partial(download, mirrors=mirrors), train_samples=2)
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
        ({"saves": {}}, "must name files"),
        ({"saves": {"../train.txt": None}}, "must be plain names, not '../train.txt'"),
        ({"saves": {".download": None}}, "must be plain names"),
        ({"saves": {"a": None, "b": "c"}}, "itself and an archive too"),
        ({"saves": {"a": {"member": "x"}}}, "rows in .* must be given by"),
        ({"hash": "sha512:00"}, "hash of .* must be kind:digits, sha256, .*, not 'sha512:00'"),
        ({"size": 0}, "size of .* must be at least 1, not 0"),
        ({"sise": 1}, "mirrors must be lists of url, saves, hash, size: .*sise"),
    ],
)
def test_malformed_mirrors(remote, message):
    with pytest.raises(ValueError, match=message):
        parse_mirrors([[{**file("https://example.org/a"), **remote}]])
    with pytest.raises(ValueError, match="mirrors must be lists"):
        parse_mirrors([remote])


def test_a_killed_process_leaves_nothing_in_the_way(server, tmp_path):
    work = tmp_path / DOWNLOAD_FOLDER
    (work / "files").mkdir(parents=True)
    (work / "files" / "train.txt").write_bytes(b"half")
    (work / "members").mkdir()
    mirrors = [both(server.add("/a.zip", archive(train=TRAIN, test=TEST)))]
    download(tmp_path, accepted, mirrors=mirrors)
    assert (tmp_path / "train.txt").read_bytes() == TRAIN
    assert names(tmp_path) == ["test.txt", "train.txt"]
    assert os.stat(tmp_path / "train.txt").st_nlink == 1
