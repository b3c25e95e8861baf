"""Requests that wait together are answered together, and fail each for itself."""

import asyncio
import threading
import time

import numpy as np
import pytest

from slide import CSR
from slide.model import Predicted
from slide.serve import Limits
from slide.serve import batcher as batcher_module
from slide.serve.batcher import Batcher


def rows(*values):
    """A row of one feature for each value."""
    n = len(values)
    return CSR(np.arange(n + 1), np.zeros(n, np.int32), np.array(values, np.float32))


class Double:
    """Answers twice the value; fails for negative ones. It can be held up."""

    def __init__(self):
        self.batches, self.threads = [], set()
        self.free = threading.Event()
        self.free.set()

    def __call__(self, x, k, search):
        self.free.wait(10)
        self.batches.append((x.values.tolist(), k, search))
        self.threads.add(threading.current_thread())
        if (x.values < 0).any():
            raise ValueError("a negative value")
        return Predicted(np.zeros((x.num_rows, k), np.int64), 2 * x.values[:, None].repeat(k, 1))


def run(work, answer=None, **limits):
    """What ``work(batcher)`` returns, and the answering function."""
    answer = answer or Double()

    async def whole():
        batcher = Batcher(answer, Limits(**limits), threads=1, observe=lambda rows: None)
        batcher.start()
        try:
            return await work(batcher)
        finally:
            answer.free.set()
            await batcher.stop()

    return asyncio.run(whole()), answer


def test_requests_that_come_together_are_one_product():
    async def work(batcher):
        asked = [batcher.ask(rows(n, 10 + n), 3, "exact") for n in range(5)]
        return await asyncio.gather(*asked)

    found, answer = run(work, batch_wait=0.5, batch_rows=10)
    for n, (_, scores) in enumerate(found):
        assert scores.tolist() == [[2 * n] * 3, [2 * (10 + n)] * 3]
    assert len(answer.batches) == 1
    assert len(answer.threads) == 1


def test_batches_have_bounds():
    async def work(batcher):
        asked = [batcher.ask(rows(*range(n)), 1, "exact") for n in (2, 2, 7, 1, 1)]
        await asyncio.gather(*asked)

    _, answer = run(work, batch_rows=4)
    assert [len(values) for values, _, _ in answer.batches] == [4, 7, 2]


def seconds_after(requests, **limits):
    """How long a request takes after a batch of some requests."""

    async def work(batcher):
        await asyncio.gather(*[batcher.ask(rows(1), 1, "exact") for _ in range(requests)])
        begin = time.perf_counter()
        await batcher.ask(rows(1), 1, "exact")
        return time.perf_counter() - begin

    return run(work, **limits)[0]


def test_a_request_waits_only_where_others_are_likely():
    assert 0.05 <= seconds_after(2, batch_wait=0.05) < 5
    assert seconds_after(1, batch_wait=20.0) < 5
    assert seconds_after(2, batch_wait=20.0, batch_rows=1) < 5


def test_other_k_and_search_are_other_products():
    async def work(batcher):
        kinds = [(1, "exact"), (2, "exact"), (1, "index"), (1, "exact")]
        asked = [batcher.ask(rows(n), *kind) for n, kind in enumerate(kinds)]
        return await asyncio.gather(*asked)

    found, answer = run(work, batch_wait=0.2, batch_rows=4)
    assert [scores[0, 0] for _, scores in found] == [0, 2, 4, 6]
    assert answer.batches == [([0, 3], 1, "exact"), ([2], 1, "index"), ([1], 2, "exact")]


def test_an_error_anywhere_is_the_answer_of_its_requests_and_not_the_end(monkeypatch):
    stack, faults = batcher_module.stacked, ["while it is stacked", "while it is stacked"]

    def faulty(parts):
        if faults:
            raise MemoryError(faults.pop())
        return stack(parts)

    async def work(batcher):
        monkeypatch.setattr(batcher_module, "stacked", faulty)
        first = await asyncio.gather(*asked(batcher, 2), return_exceptions=True)
        monkeypatch.setattr(batcher, "_answer_all", lambda jobs: 1 / 0)
        second = await asyncio.gather(*asked(batcher, 2), return_exceptions=True)
        monkeypatch.undo()
        assert not batcher.failed
        return *first, *second, *await asyncio.gather(*asked(batcher, 1))

    def asked(batcher, requests):
        return [batcher.ask(rows(1), 1, "exact") for _ in range(requests)]

    found, _ = run(work, batch_wait=0.2, batch_rows=2, timeout=5.0)
    assert str(found[0]) == "while it is stacked"
    assert found[1].scores == found[4].scores == [[2]]
    assert [type(error) for error in found[2:4]] == [ZeroDivisionError] * 2


def test_a_batcher_that_has_ended_says_so_at_once():
    async def work(batcher):
        assert not batcher.failed
        batcher._task.cancel()
        await asyncio.wait([batcher._task])
        assert batcher.failed
        with pytest.raises(RuntimeError, match="the batcher has ended"):
            await batcher.ask(rows(1), 1, "exact")

    run(work)


def test_it_starts_again_and_by_itself():
    """Also in another event loop, after one that ended without a stop."""
    batcher = Batcher(Double(), Limits(), threads=1, observe=lambda rows: None)

    async def ask(*, starts, stops):
        if starts:
            batcher.start()
        found = await batcher.ask(rows(3), 1, "exact")
        assert not batcher.failed
        if stops:
            await batcher.stop()
        return found.scores

    for starts, stops in [(True, True), (True, True), (False, False), (False, True)]:
        assert asyncio.run(ask(starts=starts, stops=stops)) == [[6]]


def test_stop_answers_what_waits():
    async def work(batcher):
        await asyncio.gather(*[batcher.ask(rows(1), 1, "exact") for _ in range(2)])
        asked = [asyncio.create_task(batcher.ask(rows(n), 1, "exact")) for n in range(3)]
        await asyncio.sleep(0.01)
        assert batcher.waiting == 3
        await batcher.stop()
        return [found.scores for found in await asyncio.gather(*asked)]

    found, _ = run(work, batch_wait=30.0)
    assert found == [[[0]], [[2]], [[4]]]


@pytest.mark.parametrize(("limit", "value"), [("k", 1.5), ("timeout", 0), ("batch_wait", -1.0)])
def test_limits_have_bounds(limit, value):
    with pytest.raises(ValueError, match=f"{limit} must be a"):
        Limits(**{limit: value}).checked()
