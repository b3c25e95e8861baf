"""Closes connections that send no request: some of them would keep everybody else out."""

import asyncio
from typing import Any


def impatient(protocol: Any, seconds: float) -> Any:
    """A protocol of uvicorn that closes a connection whose request has no complete header in time.

    uvicorn itself waits for the first request, and for the rest of a header, without an end. What
    comes after the header is a matter of `slide.serve.guard.Guard`.

    Args:
        protocol: a class such as ``H11Protocol``.
        seconds: from the begin of the connection, or from the first bytes of a further request.
    """

    class Impatient(protocol):
        _deadline: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if not self._is_idle():
                self._forget()
            elif self._deadline is None:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
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
