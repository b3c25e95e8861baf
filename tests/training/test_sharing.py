"""The number of threads beside other processes."""

import numba
import pytest
from helpers import job

from slide import runtime
from slide.training import sharing, trainer
from slide.training.coordination import CoreShare, run_and_waited


class Machine:
    """Threads of a process that get some share of the time that they want to run."""

    def __init__(self, monkeypatch):
        self.time, self.run, self.waited, self.set = 0.0, 0.0, 0.0, []
        monkeypatch.setattr(runtime, "set_threads", self.set.append)
        self.share = CoreShare(4, now=lambda: self.time, times=lambda: (self.run, self.waited))

    def go(self, seconds, alone=1.0, all_of_them=1.0):
        """``alone``: share that a reduced number gets; ``all_of_them``: share that all get."""
        end = self.time + seconds
        while self.time < end:
            part = all_of_them if self.share.threads == 4 else alone
            self.time += 0.25
            self.run += 0.25 * part
            self.waited += 0.25 * (1 - part)
            self.share.look()


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def test_a_quiet_machine(machine):
    machine.go(100, all_of_them=0.95)
    assert machine.set == []


def test_one_bad_moment(machine):
    machine.go(0.5, all_of_them=0.5)
    machine.go(10)
    assert machine.set == []


@pytest.mark.parametrize(("share", "threads"), [(0.8, 3), (0.5, 2), (0.3, 1), (0.05, 1)])
def test_as_many_as_can_run_at_the_same_time(machine, share, threads, capsys):
    machine.go(3, alone=0.5, all_of_them=share)
    assert machine.set == [threads]
    assert machine.share.threads == threads
    assert f"{threads} of 4 threads are used for now" in capsys.readouterr().err


def test_a_crowded_machine_is_left_alone(machine):
    machine.go(200, alone=0.5, all_of_them=0.3)
    assert machine.set == [1]


def test_all_are_tried_again_more_and_more_rarely(machine, capsys):
    machine.go(250, alone=1.0, all_of_them=0.5)
    # After 5, 10, 20, 40 and 60 seconds.
    assert 5 <= machine.set.count(4) <= 8
    assert machine.set[:4] == [2, 4, 2, 4]
    assert capsys.readouterr().err.count("threads are used for now") == 1


def test_they_stay_when_the_others_are_gone(machine):
    machine.go(3, all_of_them=0.5)
    machine.go(30)
    assert machine.set == [2, 4]
    machine.go(3, all_of_them=0.5)
    machine.go(8)
    assert machine.set == [2, 4, 2, 4]


def test_the_end_gives_them_back(machine):
    machine.share.close()
    assert machine.set == []
    machine.go(3, all_of_them=0.5)
    machine.share.close()
    assert machine.set == [2, 4]


def test_one_thread_is_not_watched(monkeypatch):
    share = CoreShare(1, times=lambda: pytest.fail("looked"))
    share.look()


@pytest.mark.parametrize("text", ["", "x y z", "1"])
def test_systems_that_do_not_count(tmp_path, monkeypatch, text):
    (tmp_path / "7").mkdir()
    (tmp_path / "7/schedstat").write_text(text)
    monkeypatch.setattr(sharing, "_TASKS", tmp_path)
    assert run_and_waited() is None
    monkeypatch.setattr(sharing, "_TASKS", tmp_path / "none")
    assert run_and_waited() is None
    CoreShare(4).look()


def test_threads_that_have_ended(tmp_path, monkeypatch):
    for name, text in {"7": "3000000000 1000000000 5\n", "8": "1000000000 500000000 2\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(text)
    (tmp_path / "9").mkdir()
    monkeypatch.setattr(sharing, "_TASKS", tmp_path)
    assert run_and_waited() == (4.0, 1.5)


@pytest.mark.parametrize("shared", ["true", "false"])
def test_a_run_looks_once_in_a_step(tmp_path, monkeypatch, shared):
    seen = []

    class Seen(CoreShare):
        def __init__(self, most):
            super().__init__(most)
            seen.append(most)

        def look(self):
            seen.append("look")

        def close(self):
            seen.append("end")

    monkeypatch.setattr(trainer, "CoreShare", Seen)
    words = ("ranker=none", "trainer.max_steps=3", f"trainer.share_cores={shared}")
    job.main(*job.tiny(tmp_path, *words))
    assert seen == [None if shared == "true" else 1, "look", "look", "look", "end"]


@pytest.mark.compiled_only
@pytest.mark.skipif(numba.config.NUMBA_NUM_THREADS < 2, reason="needs two threads")
def test_a_run_whose_number_changes_has_the_same_bits(tmp_path, monkeypatch):
    class Turns(CoreShare):
        def look(self):
            self._set(1 + self.threads % 2)

    words = ["runtime.threads=2", "runtime.deterministic=true", "ranker=none"]
    job.main(*job.tiny(tmp_path, *words))
    before = job.checkpoint(tmp_path / "run")
    monkeypatch.setattr(trainer, "CoreShare", Turns)
    job.main(*job.tiny(tmp_path, *words, f"run_dir={tmp_path}/other"))
    job.assert_same(job.checkpoint(tmp_path / "other"), before)
