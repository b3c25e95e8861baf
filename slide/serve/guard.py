"""Reads bodies within the limits of their size and time, and counts requests."""

import asyncio
import time
from collections.abc import Collection
from typing import Any

from starlette.responses import JSONResponse

from slide.serve.limits import Limits
from slide.serve.metrics import Metrics


class _Refused(Exception):
    """A status and a sentence."""


class Guard:
    """ASGI middleware: an application gets a request when its whole body is there.

    Args:
        app: the application behind it.
        limits: of the size of a body, and of the time in which it arrives.
        metrics: where requests are counted.
        paths: those that are counted by their names; the others are counted together.
    """

    def __init__(self, app: Any, limits: Limits, metrics: Metrics, paths: Collection[str]):
        self.app, self.limits, self.metrics, self.paths = app, limits, metrics, paths

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = _own_path(scope) if _own_path(scope) in self.paths else "other"
        status, begin = 500, time.perf_counter()

        async def counted(message: Any) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            try:
                body = await asyncio.wait_for(self._read(scope, receive), self.limits.timeout)
            except asyncio.TimeoutError as error:  # Another class before Python 3.11.
                sentence = f"the body did not arrive within {self.limits.timeout:g} s"
                raise _Refused(408, sentence) from error
            begin = time.perf_counter()
            await self.app(scope, _replayed(body, receive), counted)
        except _Refused as refused:
            code, sentence = refused.args
            answer = JSONResponse({"error": sentence}, code, {"Connection": "close"})
            await answer(scope, receive, counted)
        finally:
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - begin)

    async def _read(self, scope: Any, receive: Any) -> bytes:
        most = self.limits.body_bytes
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced[:20]) > most:
            raise _Refused(413, f"a body has at most {most} bytes, not {int(announced[:20])}")
        parts, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Refused(400, "the connection ended before the body")
            parts.append(message.get("body", b""))
            size, more = size + len(parts[-1]), message.get("more_body", False)
            if size > most:
                raise _Refused(413, f"a body has at most {most} bytes; this one has more")
        return b"".join(parts)


def _own_path(scope: Any) -> str:
    """The path without that of the application in which this one is mounted."""
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    return path.removeprefix(root) if path.startswith(f"{root}/") else path


def _replayed(body: bytes, receive: Any) -> Any:
    """Gives the body, then what comes after it."""
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return waiting.pop() if waiting else await receive()

    return again
