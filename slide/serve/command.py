"""The server of a model: ``slide-serve``, ``python -m slide.serve``, or an ASGI application."""

import argparse
import asyncio
import contextlib
import faulthandler
import math
import signal
import sys
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

from slide import runtime
from slide.model import Model, load
from slide.serve.batcher import Limits
from slide.serve.hosts import Hosts
from slide.utils import checks
from slide.utils.commands import add_model, command_parser
from slide.utils.progress_bar import fail

# Bytes of an answer that a client reads within the time-out, unless fewer are left: 64 KiB.
_LEAST_READ = 1 << 16
# Connections that wait to be accepted, all at once; those of some turns of the event loop are open
# before the first is closed, and so are other files: 2,560 in all.
_BACKLOG = 512
_OTHER_FILES = 5 * _BACKLOG
_NEEDED = ("fastapi", "uvicorn", "prometheus_client")

_ABOUT = """\
Answers rows over HTTP with a trained model: the folder of a run, or what Model.save wrote.

  POST /predict  {"rows": [{"indices": [3, 70], "values": [1, 0.5]}], "k": 5}
  GET  /health   GET /metrics   GET /docs

On SIGTERM and Ctrl-C it takes no new requests, answers those under way, and ends.
"""


def check_installed() -> None:
    """Raise ImportError if a package of the extra ``serve`` is missing."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ImportError(f"a server needs {', '.join(missing)}: pip install 'slide-xmc[serve]'")


def create_app(
    model: Model,
    limits: Limits | None = None,
    threads: int = 0,
    search: str | None = None,
    hosts: Iterable[str] | None = None,
) -> Any:
    """The server of a model, for uvicorn or another ASGI server.

    One process must have one of them, with one thread of requests: its own thread computes.

    Args:
        model: a trained model.
        limits: None: `Limits` as they are.
        threads: cores of the products; 0: all.
        search: how labels are found for requests that do not say it, ``"exact"`` or ``"index"``;
            None: `slide.Model.search`. What it needs is made when the server starts; an index that
            a request asks for otherwise is made then. In an application that is mounted in another
            one, the first request makes what it needs.
        hosts: names by which requests may call the server, besides localhost and the address at
            which they arrive; ``"0.0.0.0"``: also by all addresses; None, or ``"*"`` among them:
            by all names.

    Returns:
        An application of FastAPI.

    Raises:
        ImportError: if a package is missing that a server needs.
        ValueError: for a limit or a number of threads out of range, another search, or a host that
            is no name.

    Example:
        >>> import slide
        >>> from slide.serve import create_app
        >>> app = create_app(slide.Model(slide.SlideNetwork(100, [16], 3, slide.FullSampler)))
        >>> app.title
        'slide'
    """
    runtime.check_threads(threads)
    check_installed()
    from slide.serve.routes import make_app  # Imported here: the packages are an extra.

    search = model.search if search is None else search
    checks.one_of("search", search, ("exact", "index"))
    return make_app(model, (limits or Limits()).checked(), threads, search, Hosts(hosts))


def impatient(protocol: Any, seconds: float) -> Any:
    """A protocol of uvicorn that ends connections of clients that do not write, or do not read.

    A header must be complete in time, and of an answer `_LEAST_READ` bytes, or its rest, be read.
    """

    class Impatient(protocol):
        _deadline: asyncio.TimerHandle | None = None
        _reading: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            most = self.limit_concurrency or math.inf
            if len(self.connections) > 2 * most:  # Too many even to be told so.
                transport.abort()
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if not self._is_idle():
                self._forget()
            elif self._deadline is None:
                self._wait()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self._reading is not None:
                self._reading.cancel()
            self._await_reader(math.inf)

        def _await_reader(self, before: float) -> None:
            """Look again and again whether there are fewer bytes that wait than ``before``."""
            waiting = self.transport.get_write_buffer_size()
            if waiting > max(0, before - _LEAST_READ):
                self.transport.abort()  # To close it would wait for the client.
            elif waiting:
                self._reading = self.loop.call_later(seconds, self._await_reader, waiting)

        def shutdown(self) -> None:
            if not self._is_idle():  # The last answer says so, as h11 does not by itself.
                self.cycle.scope["headers"].append((b"connection", b"close"))
            super().shutdown()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            if self._reading is not None:
                self._reading.cancel()
            super().connection_lost(exc)

        def _is_idle(self) -> bool:
            """Whether there is no request whose header has arrived and that has no answer yet."""
            return self.cycle is None or self.cycle.response_complete

        def _wait(self) -> None:
            self._deadline = self.loop.call_later(seconds, self._close_if_idle)

        def _forget(self) -> None:
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None

        def _close_if_idle(self) -> None:
            if self._is_idle():
                self.transport.close()

    return Impatient


def main(words: Sequence[str] | None = None) -> None:
    """Serves until it is stopped; errors end the process with a sentence."""
    options = parse(words)
    try:
        server = make_server(options)
        if sys.__stderr__ is not None:  # A model that is cut while it is read is a bus error.
            faulthandler.enable(sys.__stderr__)
        # uvicorn raises the signal again when it has stopped.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        server.run()
    except KeyboardInterrupt:
        sys.exit(0)
    except (ImportError, ValueError, OSError) as error:
        fail(checks.error_message(error))
    if not server.started:
        sys.exit(3)  # uvicorn has said why.


def make_server(options: argparse.Namespace) -> Any:
    """A server of uvicorn."""
    checks.within("port", options.port, 0, 65_535)
    checks.whole("max_connections", options.max_connections, 1)
    check_installed()
    import uvicorn  # Imported here: an extra.
    from uvicorn.protocols.http.h11_impl import H11Protocol

    checks.positive("max_body", options.max_body)
    limits = Limits(
        body_bytes=round(options.max_body * 2**20),
        rows=options.max_rows,
        k=options.max_k,
        batch_rows=options.batch_rows,
        batch_wait=options.batch_wait / 1000,
        waiting_rows=options.max_waiting,
        timeout=options.timeout,
    )
    _allow_files(2 * options.max_connections + _OTHER_FILES)
    runtime.set_threads(options.threads)
    model = load(options.model, options.verify)
    hosts = [options.host, *options.allow_host]
    app = create_app(model, limits, options.threads, options.search, hosts)
    config = uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        http=impatient(H11Protocol, limits.timeout),  # The other one has no limit of headers.
        ws="none",
        backlog=_BACKLOG,
        access_log=options.access_log,
        use_colors=None if sys.stdout and sys.stderr else False,  # Services may lack them.
        limit_concurrency=options.max_connections + 1,  # It refuses the one that reaches it.
        timeout_graceful_shutdown=round(options.timeout) + 1,
    )
    return uvicorn.Server(config)


def _allow_files(count: int) -> None:
    """Let ``count`` files be open: without them asyncio logs each connection as a failure."""
    with contextlib.suppress(ImportError):  # Windows has another limit.
        import resource

        now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= now < count:
            allowed = count if most < 0 else min(count, most)
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of the command; None: those of the process."""
    default = Limits()
    parser = command_parser("serve", _ABOUT)
    add_model(parser)

    def add(name: str, value: Any, about: str) -> None:
        parser.add_argument(name, type=type(value), default=value, help=f"{about} ({value})")

    add("--host", "127.0.0.1", "address to listen at; 0.0.0.0: all")
    add("--port", 8000, "port; 0: any that is free")
    about = "a name by which requests may call the server, besides localhost and the address it "
    about += "listens at; may be given several times; *: any"
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=about)
    about = "how labels are found if a request does not say it (exact; index for more than "
    about += "20,000 labels and a re-ranker)"
    parser.add_argument("--search", choices=("exact", "index"), help=about)
    add("--batch-rows", default.batch_rows, "rows that are answered together")
    add("--batch-wait", 1000 * default.batch_wait, "milliseconds to wait for more rows")
    add("--max-rows", default.rows, "rows of a request")
    add("--max-k", default.k, "labels of a row")
    add("--max-body", default.body_bytes / 2**20, "MiB of a request")
    add("--max-waiting", default.waiting_rows, "rows that wait; more are refused")
    add("--max-connections", 1024, "connections at a time; more are refused")
    add("--timeout", default.timeout, "seconds for header, for body, and for an answer")
    parser.add_argument("--access-log", action="store_true", help="a line for each request")
    return parser.parse_args(words)
