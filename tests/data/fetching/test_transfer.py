"""One file over HTTP, from a faulty server of this machine."""

import errno
import gzip
import json
import socket
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import server as servers

from slide.data import fetching as transfers
from slide.data.fetching import FetchError, transfer

DATA = np.random.default_rng(0).bytes(1_000_000)
CUT_OFF = [100_000, None, 0]  # in the middle, and at once when it is resumed


@pytest.fixture
def server():
    with servers.serving() as started:
        yield started


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(transfers, "PAUSE", 0.0)


def test_a_plain_file(server, tmp_path):
    url = server.add("/a", DATA)
    assert transfer(url, tmp_path / "a", size=len(DATA)) is False
    assert (tmp_path / "a").read_bytes() == DATA
    assert transfer(url, tmp_path / "a", hashed=True) is True, "nothing is left to fetch"
    assert server.asked == [("/a", None)]


@pytest.mark.parametrize("length", [True, False])
@pytest.mark.parametrize("headers", [{"ETag": '"1"'}, {"Last-Modified": "today"}, {}])
def test_a_complete_file_of_an_earlier_call(server, tmp_path, headers, length, monkeypatch):
    url, other = server.add("/a", DATA, headers=headers, length=length), bytes(len(DATA))
    transfer(url, tmp_path / "a")
    with monkeypatch.context() as kept:
        if headers:
            kept.setattr(transfers, "_write_body", lambda *_: pytest.fail("it is fetched"))
        assert transfer(url, tmp_path / "a") is True
    server.add("/a", other, headers=dict.fromkeys(headers, '"2"'), length=length)
    transfer(url, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == other
    assert [asked for _, asked in server.asked] == [None] * 3


def test_an_empty_file(server, tmp_path):
    transfer(server.add("/a"), tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b""


@pytest.mark.parametrize("headers", [{}, {"ETag": '"1"'}, {"ETag": 'W/"1"'}])
def test_a_cut_connection_is_resumed(server, tmp_path, headers):
    url = server.add("/a", DATA, cuts=[400_000, None, 300_000], headers=headers)
    assert transfer(url, tmp_path / "a") is True
    assert (tmp_path / "a").read_bytes() == DATA
    # Each try looks first whether it is the same file still; cut are a whole one and a part.
    ranges = [asked for _, asked in server.asked]
    assert [bool(asked) for asked in ranges] == [False, False, True, False, True]
    first, second = (int(asked.strip("bytes=-")) for asked in ranges if asked)
    assert 400_000 - transfers.RECEIVED_BYTES < first <= 400_000
    assert first + 300_000 - transfers.RECEIVED_BYTES < second <= first + 300_000


def test_a_later_call_goes_on(server, tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "TRIES", 1)
    url = server.add("/a", DATA, cuts=[*CUT_OFF], headers={"Last-Modified": "today"})
    with pytest.raises(FetchError, match="the connection was cut"):
        transfer(url, tmp_path / "a")
    kept = (tmp_path / "a").read_bytes()
    assert kept == DATA[: len(kept)]
    assert len(kept) > 100_000 - transfers.RECEIVED_BYTES
    assert json.loads((tmp_path / "a.json").read_text())["total"] == len(DATA)
    transfer(url, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == DATA
    assert server.asked[-1][1] == f"bytes={len(kept)}-"


def test_another_file_at_the_address_is_not_joined_to_the_old_one(server, tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "TRIES", 1)
    for number, other in enumerate([{"ETag": '"2"'}, {}], 2):
        path = tmp_path / f"{number}"
        url = server.add("/a", DATA, cuts=[*CUT_OFF], headers={"ETag": '"1"'})
        with pytest.raises(FetchError):
            transfer(url, path)
        content = bytes(len(DATA) - 1) if not other else bytes(len(DATA))
        server.add("/a", content, headers=other)
        transfer(url, path)
        assert path.read_bytes() == content


def test_a_file_that_changes_while_it_is_resumed(server, tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "TRIES", 1)
    url = server.add("/a", DATA, cuts=[*CUT_OFF], headers={"ETag": '"1"'})
    with pytest.raises(FetchError):
        transfer(url, tmp_path / "a")
    other = bytes(len(DATA))
    # Looked at, it is the old one still; asked for the rest of that, the server has a new one.
    server.routes["/a"].then = lambda: server.add("/a", other, headers={"ETag": '"2"'})
    transfer(url, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == other


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


@pytest.mark.parametrize("how", [{"ranges": False}, {"wrong_range": True}])
def test_servers_without_proper_ranges_are_asked_for_all(server, tmp_path, how):
    url = server.add("/a", DATA, cuts=[500_000], **how)
    transfer(url, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == DATA


def test_a_connection_that_is_always_cut_at_the_same_place(server, tmp_path):
    url = server.add("/a", DATA, cuts=[10] * 100, ranges=False)
    with pytest.raises(FetchError, match="the connection was cut"):
        transfer(url, tmp_path / "a")
    assert server.count("/a") <= 3 * transfers.TRIES


def test_without_a_length_a_file_ends_with_the_connection(server, tmp_path):
    url = server.add("/a", DATA, length=False)
    transfer(url, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == DATA
    url = server.add("/b", DATA, length=False, cuts=[500])
    with pytest.raises(FetchError, match="has 500 bytes, not 1000000"):
        transfer(url, tmp_path / "b", size=len(DATA))
    assert not (tmp_path / "b").exists()


def test_encoded_answers_are_decoded(server, tmp_path):
    url = server.add("/a", gzip.compress(DATA), headers={"Content-Encoding": "gzip"})
    transfer(url, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == DATA


def test_a_wrong_size_is_seen_before_the_file_is_fetched(server, tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "_write_body", lambda *_: pytest.fail("it is fetched"))
    with pytest.raises(FetchError, match="has 1000000 bytes, not 7"):
        transfer(server.add("/a", DATA), tmp_path / "a", size=7)
    assert not (tmp_path / "a").exists()


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
    quota = server.add_page("/quota", servers.QUOTA)
    with pytest.raises(FetchError, match=r"a web page \('Google Drive - Quota exceeded'\) instead"):
        transfer(quota, tmp_path / "a")
    disguised = server.add("/b", " \n<!DOCTYPE html><title>Log in</title>")
    with pytest.raises(FetchError, match=r"a web page \('Log in'\) instead"):
        transfer(disguised, tmp_path / "a")
    circle = server.add_page("/c", servers.CONFIRM.format(action="/c"))
    with pytest.raises(FetchError, match="one page after the other"):
        transfer(circle, tmp_path / "a")
    assert server.count("/c") <= 5


@pytest.mark.parametrize("status", [403, 404, 429])
def test_refusals_are_final(server, tmp_path, status):
    with pytest.raises(FetchError, match=f"answers {status} "):
        transfer(server.add("/a", status=status), tmp_path / "a")
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
    url = server.add("/a", DATA)
    monkeypatch.setattr(transfers, "ensure_space", lambda *_: None)
    with monkeypatch.context() as full:
        really = Path.open
        full.setattr(Path, "open", lambda *a, **k: _Full(really(*a, **k), 600_000))
        with pytest.raises(OSError, match=r"no space left after .* the next call goes on") as e:
            transfer(url, tmp_path / "a")
    assert not isinstance(e.value, FetchError)
    assert e.value.filename == str(tmp_path / "a")
    kept = (tmp_path / "a").stat().st_size
    assert 0 < kept <= 600_000
    transfer(url, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == DATA
    assert server.asked[-1] == ("/a", f"bytes={kept}-")


class _Full:
    """A file on a disk with so much room."""

    def __init__(self, opened, room):
        self.opened, self.room = opened, room

    def __getattr__(self, name):
        return getattr(self.opened, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.opened.close()

    def write(self, chunk):
        if len(chunk) > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.room -= len(chunk)
        return self.opened.write(chunk)


def test_too_little_space_is_said_before(server, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=50))
    with pytest.raises(OSError, match=r"not enough space: the file takes 0.0 GB") as raised:
        transfer(server.add("/a", DATA), tmp_path / "a")
    assert raised.value.errno == errno.ENOSPC
