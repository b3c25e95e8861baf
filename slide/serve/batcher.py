"""Puts requests that wait at the same time together, and answers them in a thread of its own."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from slide import runtime
from slide.model import Predicted
from slide.sparse import CSR, stacked
from slide.utils import checks

# Rows, k and search; answers with numbers of labels.
Answering = Callable[[CSR, int, str], Predicted]


class Limits(NamedTuple):
    """Bounds of requests, batches and waiting times.

    Attributes:
        body_bytes: largest body of a request.
        rows: most rows of a request.
        k: most labels of a row.
        batch_rows: requests that wait are answered together up to this number of rows. A request
            with more rows is a batch of its own.
        batch_wait: seconds that a request waits for others, if the batch before had several
            requests, and unless the batch is full.
        waiting_rows: most rows that wait; further requests are refused.
        timeout: seconds within which a body must arrive, and then seconds for the answer.

    Example:
        >>> from slide.serve import Limits
        >>> Limits(rows=10).checked().rows
        10
    """

    body_bytes: int = 8 << 20
    rows: int = 1024
    k: int = 1000
    batch_rows: int = 256
    batch_wait: float = 0.002
    waiting_rows: int = 8192
    timeout: float = 30.0

    def checked(self) -> "Limits":
        """The same limits.

        Raises:
            ValueError: for a number out of range.
        """
        for name in ("body_bytes", "rows", "k", "batch_rows", "waiting_rows"):
            checks.whole(name, getattr(self, name), 1)
        checks.not_negative("batch_wait", self.batch_wait)
        checks.positive("timeout", self.timeout)
        return self


class Overloaded(Exception):
    """More rows wait than the limits allow."""


class _Job(NamedTuple):
    rows: CSR
    k: int
    search: str
    answer: "asyncio.Future[Predicted]"


class Batcher:
    """Answers requests in batches; requests with the same k and search are one product.

    A request waits for others only if the batch before had several. Answers do not depend on the
    other requests, but for the rounding of products. ``waiting`` is the number of rows that wait.
    """

    def __init__(
        self, answer: Answering, limits: Limits, threads: int, observe: Callable[[int], None]
    ):
        self.answer, self.limits, self.observe = answer, limits, observe
        self.waiting, self._threads = 0, threads
        self._jobs: deque[_Job] = deque()
        self._some, self._full = asyncio.Event(), asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._thread: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Begin to answer, also after `stop`; called inside of the event loop."""
        if self._thread is not None:  # Of an event loop that has ended.
            self._thread.shutdown(wait=False)
        self._jobs.clear()
        self.waiting, self._stopping = 0, False
        self._some, self._full = asyncio.Event(), asyncio.Event()
        # Threads of numba and torch are settings of each thread.
        self._thread = ThreadPoolExecutor(1, "slide", runtime.set_threads, (self._threads,))
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def failed(self) -> bool:
        """Whether nothing is answered any more, though nobody stopped it."""
        return self._task is not None and self._task.done() and not self._stopping

    async def ask(self, rows: CSR, k: int, search: str) -> Predicted:
        """The answers to some rows; it starts, if nobody has started it."""
        if self._task is None or self._task.get_loop() is not asyncio.get_running_loop():
            self.start()
        if self.failed:
            raise RuntimeError("the batcher has ended")
        if self.waiting and self.waiting + rows.num_rows > self.limits.waiting_rows:
            raise Overloaded
        answer = asyncio.get_running_loop().create_future()
        self._jobs.append(_Job(rows, k, search, answer))
        self.waiting += rows.num_rows
        self._some.set()
        if self.waiting >= self.limits.batch_rows:
            self._full.set()
        return await asyncio.wait_for(answer, self.limits.timeout)

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns that is called in the thread of the answers, after `start`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)

    async def stop(self) -> None:
        """Answer what waits, and end."""
        self._stopping = True
        self._some.set()
        self._full.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        if self._thread is not None:
            self._thread.shutdown()
        self._task = self._thread = None

    async def _run(self) -> None:
        crowded = False
        while self._jobs or not self._stopping:
            await self._some.wait()
            if crowded and self.waiting < self.limits.batch_rows and not self._stopping:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._full.wait(), self.limits.batch_wait)
            jobs = self._take()
            crowded = len(jobs) > 1
            try:
                found = await self.run(self._answer_all, jobs)
            except Exception as error:  # Without this loop nobody would be answered any more.
                found = [error] * len(jobs)
            for job, result in zip(jobs, found, strict=True):
                if job.answer.done():  # Nobody waits for it any more.
                    continue
                if isinstance(result, Exception):
                    job.answer.set_exception(result)
                else:
                    job.answer.set_result(result)

    def _take(self) -> list[_Job]:
        """The next batch, one product after the other."""
        jobs, rows = [], 0
        while self._jobs and (
            not jobs or rows + self._jobs[0].rows.num_rows <= self.limits.batch_rows
        ):
            job = self._jobs.popleft()
            self.waiting -= job.rows.num_rows
            if not job.answer.done():
                jobs.append(job)
                rows += job.rows.num_rows
        if not self._jobs and not self._stopping:
            self._some.clear()
        if self.waiting < self.limits.batch_rows and not self._stopping:
            self._full.clear()
        return sorted(jobs, key=_product)

    def _answer_all(self, jobs: list[_Job]) -> list[Predicted | Exception]:
        found = []
        for _, group in groupby(jobs, _product):
            found += self._answer_together(list(group))
        return found

    def _answer_together(self, jobs: list[_Job]) -> list[Predicted | Exception]:
        """The answers to jobs of one product; if they fail, each for itself."""
        try:
            rows = stacked([job.rows for job in jobs])
            with np.errstate(over="ignore", invalid="ignore"):  # Of values that are too large.
                ids, scores = self.answer(rows, jobs[0].k, jobs[0].search)
            self.observe(rows.num_rows)
            ends = np.cumsum([job.rows.num_rows for job in jobs])[:-1]
            parts = zip(np.split(ids, ends), np.split(scores, ends), strict=True)
            return [Predicted(*part) for part in parts]
        except Exception as error:
            if len(jobs) == 1:
                return [error]
            return [found for job in jobs for found in self._answer_together([job])]


def _product(job: _Job) -> tuple[int, str]:
    return job.k, job.search
