"""``slide-serve``: its options, how it stops, and what it says where it cannot start."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests
from helpers.serving import running

from slide import FullSampler, Model, SlideNetwork
from slide.serve import command
from slide.serve.hosts import Hosts

ROOT = Path(__file__).parents[2]
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    Model(SlideNetwork(30, [8], 12, FullSampler)).save(folder)
    return folder


def failure(*words):
    with pytest.raises(SystemExit) as stopped:
        command.main([str(word) for word in words])
    return stopped.value.code


def test_a_stopped_server_answers_what_is_under_way(folder):
    """A request whose body is still arriving; then the server ends without an error."""
    words = [sys.executable, "-m", "slide.serve", folder, "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_NUM_THREADS": "1"}
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment)

    def await_line(wanted):
        return next(m for m in (re.search(wanted, line) for line in server.stderr) if m)

    try:
        address = "127.0.0.1", int(await_line(r"127\.0\.0\.1:(\d+)")[1])
        body = json.dumps({"rows": [{"indices": [1]}], "k": 2}).encode()
        head = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(address, timeout=30) as asking:
            asking.sendall(head.encode() + body[:5])
            # It answers this, so it has seen what came before.
            url = "http://{}:{}/health".format(*address)
            assert requests.get(url, headers={"Connection": "close"}, timeout=30).ok
            server.send_signal(signal.SIGTERM)
            await_line("Shutting down")
            asking.sendall(body[5:])
            answer = b"".join(iter(lambda: asking.recv(1000), b"")).decode()
        assert answer.startswith("HTTP/1.1 200")
        assert "\r\nconnection: close\r\n" in answer.lower()  # No other request will be answered.
        assert len(json.loads(answer.partition("\r\n\r\n")[2])["answers"][0]["labels"]) == 2
        assert server.wait(30) == 0
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(address, timeout=5)
    finally:
        server.kill()
        server.wait()
        server.stderr.close()


def test_connections_without_a_request_keep_nobody_out(folder):
    words = ["--port", "0", "--timeout", "0.5", "--threads", "1"]
    config = command.make_server(command.parse([str(folder), *words])).config
    with running(config.app, http=config.http, limit_concurrency=5) as root:
        address = root.removeprefix("http://").split(":")
        with requests.Session() as session, contextlib.ExitStack() as stack:
            assert session.get(f"{root}/health", timeout=30).ok
            silent = [stack.enter_context(socket.create_connection(address, 5)) for _ in range(3)]
            silent[1].sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\n")
            silent[2].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while not silent[2].recv(1000).endswith(b"}"):
                pass
            silent[2].sendall(b"GET /health HTTP/1.1\r\n")
            body = json.dumps({"rows": [{"indices": [1]}]})
            for _ in range(8):  # Who asks again stays.
                assert session.post(f"{root}/predict", data=body, headers=JSON, timeout=30).ok
                time.sleep(0.1)
            assert [each.recv(1000) for each in silent] == [b""] * 3


def test_who_does_not_read_an_answer_does_not_keep_it_in_memory(tmp_path):
    """It is larger than what the system takes; who reads slowly gets all of it."""
    names = [f"{number} {'a' * 20_000}" for number in range(12)]
    Model(SlideNetwork(30, [8], 12, FullSampler), label_names=names).save(tmp_path / "model")
    words = [str(tmp_path / "model"), "--port", "0", "--timeout", "0.6", "--threads", "1"]
    config = command.make_server(command.parse(words)).config
    body = json.dumps({"rows": [{"indices": [1]}] * 100, "k": 12}).encode()
    asked = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    asked += b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with running(config.app, http=config.http) as root, contextlib.ExitStack() as stack:
        address, received = root.removeprefix("http://").split(":"), []
        for pause in (0.1, 3.0):
            client = stack.enter_context(socket.create_connection(address, 30))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            client.sendall(asked)
            whole = client.recv(1 << 12)
            length = int(re.search(rb"content-length: (\d+)", whole)[1])
            with contextlib.suppress(ConnectionResetError):
                time.sleep(pause)
                while part := client.recv(1 << 20):
                    whole += part
                    time.sleep(0.01)
            received.append(len(whole) - whole.index(b"\r\n\r\n") - 4 == length)
    assert length > 20e6
    assert received == [True, False]


def test_connections_beyond_twice_as_many_as_said_are_closed(folder):
    """Idle ones took all files that the process may open; its log grew by a megabyte a second."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    words = [str(folder), "--port", "0", "--threads", "1", "--max-connections", "3"]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
        config = command.make_server(command.parse(words)).config
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 2 * 3 + command._OTHER_FILES
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    with (
        running(config.app, http=config.http, limit_concurrency=config.limit_concurrency) as root,
        contextlib.ExitStack() as stack,
    ):
        address = root.removeprefix("http://").split(":")
        opened = [stack.enter_context(socket.create_connection(address, 5)) for _ in range(9)]
        with contextlib.suppress(ConnectionResetError):
            assert opened[-1].recv(10) == b""
        opened[0].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert opened[0].recv(1000).startswith(b"HTTP/1.1 503")


def test_errors_are_sentences(folder, tmp_path):
    assert failure(tmp_path) == f"error: there is no model in {tmp_path}: no model.json"
    assert failure(folder, "--max-k", 0) == "error: k must be a whole number of at least 1, not 0"
    said = "error: max_connections must be a whole number of at least 1, not 0"
    assert failure(folder, "--max-connections", 0) == said
    assert failure(folder, "--port", 99999) == "error: port must be in [0, 65535], not 99999"
    said = failure(folder, "--max-body", "nan")
    assert said == "error: max_body must be a number above 0, not nan"
    assert failure(folder, "--max-body", "1e-9").startswith("error: body_bytes must be a whole")
    assert failure(folder, "--threads", 999).startswith("error: threads must be between 0 (all)")


def test_a_changed_byte_of_the_model_ends_it_unless_told_not_to_look(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "m")
    path = tmp_path / "m" / "network.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 64]))
    assert failure(tmp_path / "m").startswith(f"error: {path} has changed since it was written")
    options = command.parse([str(tmp_path / "m"), "--no-verify"])
    assert command.make_server(options).config.port == 8000


def test_a_missing_package_is_a_sentence(folder, monkeypatch):
    there = command.find_spec
    monkeypatch.setattr(command, "find_spec", lambda n: (n != "uvicorn" and there(n)) or None)
    assert failure(folder) == "error: a server needs uvicorn: pip install 'slide-xmc[serve]'"


def test_options_reach_the_server(folder):
    words = ["--port", "81", "--max-connections", "7", "--timeout", "3", "--host", "0.0.0.0"]
    options = command.parse([str(folder), *words])
    config = command.make_server(options).config
    # uvicorn refuses the connection with which there are so many.
    assert (config.port, config.host, config.limit_concurrency) == (81, "0.0.0.0", 8)
    assert config.timeout_graceful_shutdown == 4
    assert (config.ws, config.backlog) == ("none", command._BACKLOG)
    assert "H11Protocol" in str(config.http.__mro__)  # Whatever else is installed.


def answer_to(root, host, path="/health"):
    return requests.get(root + path, headers={"Host": host}, timeout=30, allow_redirects=False)


def test_a_page_elsewhere_does_not_reach_the_server_by_a_name_of_its_own(folder):
    """DNS rebinding: its name is looked up as this machine, and the browser asks by that name."""
    words = ["--port", "0", "--threads", "1", "--allow-host", "Models.example:81"]
    config = command.make_server(command.parse([str(folder), *words])).config
    with running(config.app, http=config.http) as root:
        port = root.rpartition(":")[2]
        good = ["localhost", f"LOCALHOST.:{port}", f"127.0.0.1:{port}", "127.1.2.3", "[::1]:80"]
        for host in (*good, "models.example", "models.example:8000"):
            assert answer_to(root, host).json()["status"] == "ok", host
            assert answer_to(root, host, "/health/").headers["Location"] == f"http://{host}/health"
        bad = ["evil.example", "models.example.evil", "10.0.0.1", "localhost.evil:8000", "0.0.0.0"]
        odd = ["localhost:80@evil", "localhost%2eevil", "localhost/evil", "[::1].evil", "a b"]
        for host in (*bad, *odd):
            for path in ("/health", "/health/", "/docs", "/nowhere"):
                answer = answer_to(root, host, path)
                assert (answer.status_code, "Location" in answer.headers) == (421, False), host
        said = answer_to(root, bad[0]).json()["error"]
        assert said.endswith("not called evil.example: slide-serve --allow-host evil.example")
        assert "is no name and no address" in answer_to(root, odd[0]).json()["error"]
        with socket.create_connection(("127.0.0.1", int(port)), timeout=30) as asking:
            asking.sendall(b"GET /health HTTP/1.0\r\n\r\n")  # No browser leaves the host out.
            assert b" 200 OK" in asking.recv(1000)


def refused(hosts, asked, server="127.0.0.1"):
    scope = {"server": (server, 8000), "headers": [(b"host", asked.encode())]}
    return Hosts(hosts).refusal(scope) is not None


def test_hosts_of_a_server_that_listens_elsewhere():
    assert not refused(["192.168.1.5"], "192.168.1.5:8000")
    assert not refused(["mine"], "192.168.1.5:8000", "192.168.1.5")
    assert not refused(["fe80::1%eth0"], "[FE80::1]:8000", "fe80::1%eth0")
    assert not refused(["::"], "192.168.1.5:8000", "::ffff:192.168.1.5")
    # The address of a container or behind a router is another one; a name may be anybody's.
    for everywhere in ("0.0.0.0", "::"):
        assert not refused([everywhere], "192.168.1.5:8000", "172.17.0.2")
        assert refused([everywhere], "evil.example:8000", "172.17.0.2")
    for hosts in (None, ["127.0.0.1", "*"]):
        assert not refused(hosts, "any.example")
        assert refused(hosts, "a@b")
    with pytest.raises(ValueError, match="a host must be a name or an address, not 'http://a'"):
        Hosts(["http://a"])
