"""A server on this machine that behaves like faulty servers of the internet."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# The pages of Google Drive: one before a large file, one when too many people have fetched it.
CONFIRM = (
    "<!DOCTYPE html><html><head><title>Google Drive - Virus scan warning</title></head><body>"
    '<form id="download-form" action="{action}" method="get"><input type="submit" value="Anyway"/>'
    '<input type="hidden" name="id" value="42"><input type="hidden" name="confirm" value="t">'
    "</form></body></html>"
)
QUOTA = """<!DOCTYPE html><html><head><title>Google Drive - Quota exceeded</title></head><body>
<p class="uc-error-caption">Sorry, you can't view or download this file at this time.</p>
<p class="uc-error-subcaption">Too many users have viewed or downloaded this file recently.</p>
</body></html>"""


@dataclass
class Route:
    """How an address answers.

    Attributes:
        content: the file.
        status: an error's, if it is one.
        headers: of each answer.
        cuts: bytes after which the connection is cut, one for each request to come.
        ranges: whether parts are sent.
        length: whether the length is announced.
        wrong_range: parts begin elsewhere than asked for.
        stall: seconds that a connection stays open, and silent, where it is to be cut.
        pause: seconds before each piece of the content.
        then: called with each answer, before it is sent.
    """

    content: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    length: bool = True
    wrong_range: bool = False
    stall: float = 0.0
    pause: float = 0.0
    then: Callable[[], object] | None = None


class Server:
    """The routes by path, and the requests so far: pairs of a path and a range."""

    def __init__(self, port: int) -> None:
        self.root = f"http://127.0.0.1:{port}"
        self.routes: dict[str, Route] = {}
        self.asked: list[tuple[str, str | None]] = []

    def add(self, path: str, content: bytes | str = b"", **how) -> str:
        """Puts something at ``path``; returns its address."""
        content = content.encode() if isinstance(content, str) else content
        self.routes[path.partition("?")[0]] = Route(content, **how)
        return self.root + path

    def add_page(self, path: str, text: str) -> str:
        return self.add(path, text, headers={"Content-Type": "text/html; charset=utf-8"})

    def count(self, path: str) -> int:
        return sum(asked.partition("?")[0] == path for asked, _ in self.asked)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        asked = request.headers.get("Range")
        self.asked.append((request.path, asked))
        route = self.routes.get(request.path.partition("?")[0], Route(status=404))
        # Before the answer begins: who has read its headers may send the next request.
        cut = route.cuts.pop(0) if route.cuts else None
        body, start, status = route.content, 0, route.status
        validators = "", route.headers.get("ETag"), route.headers.get("Last-Modified")
        if asked and route.ranges and request.headers.get("If-Range", "") in validators:
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) - route.wrong_range
            status = 206 if start < len(body) else 416
        request.send_response(status)
        if status == 206:
            request.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        if status >= 400:
            body = b""
        body = body[start:]
        for name, value in route.headers.items():
            request.send_header(name, value)
        if route.length:
            request.send_header("Content-Length", str(len(body)))
        # A client that looks only at the headers may ask again at once.
        if route.then:
            route.then()
        request.end_headers()
        for i in range(0, len(body[:cut]), 1 << 16):
            time.sleep(route.pause)
            request.wfile.write(body[:cut][i : i + (1 << 16)])
        if cut is not None:
            time.sleep(route.stall)
        request.close_connection = True


@contextmanager
def serving() -> Iterator[Server]:
    """A server in a thread, for as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(ConnectionError):  # The client may close the connection.
                server.answer(self)

        def log_message(self, *_) -> None:
            pass

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = Server(listener.server_address[1])
    thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        thread.join()
        listener.server_close()
