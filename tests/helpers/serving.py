"""A server of a model in a thread, asked over HTTP."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import requests
import uvicorn

from slide.model import Model
from slide.serve import Limits, create_app


class Client:
    """Asks the server at ``root``; connections are kept."""

    def __init__(self, root: str):
        self.root, self.session = root, requests.Session()

    def get(self, path: str) -> requests.Response:
        return self.session.get(self.root + path, timeout=30)

    def post(self, **how) -> requests.Response:
        return self.session.post(f"{self.root}/predict", timeout=30, **how)


@contextmanager
def serving_model(model: Model, **limits) -> Iterator[Client]:
    """A server, for as long as the block lasts."""
    app = create_app(model, Limits(**{"batch_wait": 0.0, **limits}), threads=1)
    with running(app) as root:
        client = Client(root)
        yield client
        client.session.close()


@contextmanager
def running(app, **more) -> Iterator[str]:
    """The address of an application of ASGI, for as long as the block lasts."""
    config = uvicorn.Config(app, port=0, log_level="error", timeout_graceful_shutdown=5, **more)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.005)
        (listener,) = server.servers
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
