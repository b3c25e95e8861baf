"""Models on the Hugging Face Hub: its real client, and a small server in place of the Hub."""

import base64
import builtins
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

import slide

pytest.importorskip("huggingface_hub")
COMMIT = "0" * 39 + "1"


class Hub(BaseHTTPRequestHandler):
    """One repository, in ``files``; all revisions are the same."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        files, body = self.server.files, self.rfile.read(int(self.headers["content-length"]))
        if "/preupload/" in self.path:
            names = [each["path"] for each in json.loads(body)["files"]]
            modes = [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]
            return self.reply({"files": modes})
        if "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "deletedFile":
                    del files[line["value"]["path"]]
                elif line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            address = f"{self.server.address}/me/model/commit/{COMMIT}"
            return self.reply({"commitUrl": address, "commitOid": COMMIT})
        return self.reply({"url": f"{self.server.address}/me/model", "errors": [], "warnings": []})

    def do_GET(self):
        files = self.server.files
        if "me/model" not in self.path:
            return self.reply(None)
        if "/tree/" in self.path:
            digests = {name: hashlib.sha1(data).hexdigest() for name, data in files.items()}
            return self.reply(
                [
                    {"type": "file", "path": name, "size": len(files[name]), "oid": digest}
                    for name, digest in digests.items()
                ]
            )
        if "/resolve/" not in self.path:
            self.server.asked.append(self.path)
            names = [{"rfilename": name} for name in files]
            return self.reply({"id": "me/model", "sha": COMMIT, "siblings": names})
        name = self.path.rpartition("/")[2]
        self.server.fetched.append(name)
        return self.reply(files.get(name))

    do_HEAD = do_GET

    def reply(self, content):
        self.send_response(404 if content is None else 200)
        if content is None:
            self.send_header("X-Error-Code", "EntryNotFound")
        data = content if isinstance(content, bytes) else json.dumps(content or {}).encode()
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub(monkeypatch, tmp_path):
    from huggingface_hub import constants

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files, server.fetched, server.asked = {}, [], []
    server.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    resolve = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "ENDPOINT", server.address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", resolve)
    monkeypatch.setattr(constants, "HF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home/hub"))
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def model():
    return slide.Model(
        slide.SlideNetwork(6, [4], 3, slide.FullSampler), label_names=["a", "b", "c"]
    )


def test_there_and_back(hub, model, tmp_path):
    assert model.push_to_hub("me/model").endswith(COMMIT)
    assert set(hub.files) == {"README.md", "model.json", "names.safetensors", "network.safetensors"}
    hub.files |= {"code.py": b"x", "checkpoints/network.safetensors": b"x", "a.safetensors": b"x"}
    found = slide.load("hf://me/model@v1")
    assert (found.predict(np.eye(6)).labels == model.predict(np.eye(6)).labels).all()
    assert any("/revision/v1" in path for path in hub.asked)
    assert not {"code.py", "a.safetensors"} & set(hub.fetched)
    assert hub.fetched.count("network.safetensors") == 2, (
        "its head and itself: checkpoints/ has one"
    )
    hub.files["network.safetensors"] = hub.files["network.safetensors"][:-1] + b"\0"
    with pytest.raises(ValueError, match="has changed since it was written"):
        slide.load("hf://me/model@v2")
    assert slide.load("hf://me/model@v1").num_labels == 3


def test_an_edited_readme_stays_and_parts_that_are_gone_go(hub, model):
    model.push_to_hub("me/model")
    hub.files["README.md"] = b"mine"
    model.label_names = None
    model.push_to_hub("me/model")
    assert hub.files["README.md"] == b"mine"
    assert set(hub.files) == {"README.md", "model.json", "network.safetensors"}


def test_mistakes_are_sentences(hub, model, monkeypatch):
    with pytest.raises(ValueError, match="must be hf://owner/name"):
        slide.load("hf://model")
    with pytest.raises(FileNotFoundError, match="there is no model in"):
        slide.load("hf://me/model")
    with pytest.raises(OSError, match=r"hf://me/other: .*404"):
        slide.load("hf://me/other")
    kept = builtins.__import__

    def without(name, *args):
        if name.partition(".")[0] == "huggingface_hub":
            raise ImportError(name)
        return kept(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'slide-xmc\[hub\]'"):
        model.push_to_hub("me/model")
