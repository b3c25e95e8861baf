"""Agreement of processes, and the number of threads beside other programs."""

import signal
from functools import partial
from types import SimpleNamespace

import numba
import pytest
from helpers import job

from slide import runtime
from slide.training import coordination, trainer
from slide.training.coordination import Coordinator, CoreShare, run_and_waited
from slide.utils.signals import error_of, exit_status


class Processes:
    """Two processes in turn: each all-reduce of the second one has that of the first one."""

    def __init__(self, step=0):
        self.given = []
        self.first, self.second = (Coordinator(self.group(rank), step) for rank in (0, 1))

    def group(self, rank):
        reduce = partial(self.most, rank)
        return SimpleNamespace(is_main_process=rank == 0, size=2, all_reduce=reduce)

    def most(self, rank, own, operation):
        assert operation == "max"
        self.given.append(own)
        return own if rank == 0 else own.maximum(self.given[-2])


def test_time_is_that_of_the_first_process():
    both = Processes()
    for each, seconds in ((both.first, 0.1), (both.second, 9.9)):
        assert each.interrupt(1, seconds, None) is None
        assert each.seconds(99.0) == 0.1
    # A step of 0.1 s: they agree again after 5 steps, and not before.
    for each in (both.first, both.second):
        assert each.interrupt(5, 0.5, KeyboardInterrupt()) is None
    assert len(both.given) == 2
    both.first.interrupt(6, 0.6, None)
    both.second.interrupt(6, 55.0, None)
    assert both.first.seconds(0.0) == both.second.seconds(0.0) == 0.6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_one_process_gets_ends_both_in_one_way(number):
    both, own = Processes(step=70), error_of(number)
    assert both.first.interrupt(71, 0.1, own) is own, "a resumed run agrees after its first step"
    told = both.second.interrupt(71, 0.1, None)
    assert told is not None
    assert exit_status(told) == 128 + number


class Machine:
    """Threads of a process that get some share of the time that they want to run."""

    def __init__(self, monkeypatch):
        self.time, self.run, self.waited, self.set = 0.0, 0.0, 0.0, []
        monkeypatch.setattr(runtime, "set_threads", self.set.append)
        clock = SimpleNamespace(monotonic=lambda: self.time)
        monkeypatch.setattr(coordination, "time", clock)
        monkeypatch.setattr(coordination, "run_and_waited", lambda: (self.run, self.waited))
        self.share = CoreShare(4)

    def go(self, seconds, alone=1.0, all_of_them=1.0):
        """``alone``: share that a reduced number gets; ``all_of_them``: share that all get."""
        end = self.time + seconds
        while self.time < end:
            part = all_of_them if self.share.threads == 4 else alone
            self.time += 0.25
            self.run += 0.25 * part
            self.waited += 0.25 * (1 - part)
            self.share.adjust()


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def test_a_quiet_machine_and_one_bad_moment(machine):
    machine.go(100, all_of_them=0.95)
    machine.go(0.5, all_of_them=0.5)
    machine.go(10)
    machine.share.close()
    assert machine.set == []


@pytest.mark.parametrize(("share", "threads"), [(0.8, 3), (0.5, 2), (0.05, 1)])
def test_as_many_as_can_run_at_the_same_time(machine, share, threads, capsys):
    machine.go(3, alone=0.5, all_of_them=share)
    assert machine.set == [threads]
    assert machine.share.threads == threads
    assert f"{threads} of 4 threads are used for now" in capsys.readouterr().err
    machine.share.close()
    assert machine.set == [threads, 4]


def test_all_are_tried_again_more_and_more_rarely(machine, capsys):
    machine.go(250, alone=1.0, all_of_them=0.5)
    # After 5, 10, 20, 40 and 60 seconds.
    assert 5 <= machine.set.count(4) <= 8
    assert machine.set[:4] == [2, 4, 2, 4]
    assert capsys.readouterr().err.count("threads are used for now") == 1


def test_one_thread_is_not_watched(monkeypatch):
    monkeypatch.setattr(coordination, "run_and_waited", lambda: pytest.fail("read"))
    CoreShare(1).adjust()


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"7": "x y z"}, None),
        ({"7": "1"}, None),
        ({}, None),
        # Threads, one of which has ended.
        ({"7": "3000000000 1000000000 5\n", "8": "1000000000 500000000 2\n", "9": None}, (4, 1.5)),
    ],
)
def test_times_that_the_system_counts(tmp_path, monkeypatch, counts, expected):
    for name, text in counts.items():
        (tmp_path / "task" / name).mkdir(parents=True)
        if text is not None:
            (tmp_path / "task" / name / "schedstat").write_text(text)
    monkeypatch.setattr(coordination, "_TASKS", tmp_path / "task")
    assert run_and_waited() == expected
    CoreShare(4).adjust()


@pytest.mark.parametrize("shared", ["true", "false"])
def test_a_run_looks_once_in_a_step(tmp_path, monkeypatch, shared):
    seen = []

    class Seen(CoreShare):
        def __init__(self, most):
            super().__init__(most)
            seen.append(most)

        def adjust(self):
            seen.append("adjust")

        def close(self):
            seen.append("end")

    monkeypatch.setattr(trainer, "CoreShare", Seen)
    words = ("ranker=none", "trainer.max_steps=3", f"trainer.share_cores={shared}")
    job.main(*job.tiny(tmp_path, *words))
    assert seen == [None if shared == "true" else 1, "adjust", "adjust", "adjust", "end"]


@pytest.mark.compiled_only
@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="needs two threads")
def test_a_run_whose_number_changes_has_the_same_bits(tmp_path, monkeypatch):
    class Turns(CoreShare):
        def adjust(self):
            self._set(1 + self.threads % 2)

    words = ["runtime.threads=2", "runtime.deterministic=true", "ranker=none"]
    job.main(*job.tiny(tmp_path, *words))
    before = job.checkpoint(tmp_path / "run")
    monkeypatch.setattr(trainer, "CoreShare", Turns)
    job.main(*job.tiny(tmp_path, *words, f"run_dir={tmp_path}/other"))
    job.assert_same(job.checkpoint(tmp_path / "other"), before)
