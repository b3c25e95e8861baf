"""Bars on terminals, and lines everywhere else."""

import io
import subprocess
import sys
import threading

import pytest

from slide.utils import progress_bar
from slide.utils.progress_bar import ProgressBar, log, silenced


def test_a_reader_that_goes_ends_the_process_without_a_word():
    words = "from slide.utils.progress_bar import until_reader_goes\nwith until_reader_goes():\n"
    words += "    for i in range(10**6): print(i)"
    process = subprocess.Popen(
        [sys.executable, "-c", words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() == b"0\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 1
    process.stderr.close()


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves; that of the day, which people set, stands still."""
    now = [100.0]
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now[0])
    monkeypatch.setattr("tqdm.std.time", lambda: 0.0)
    return now


def steps(bar, clock, count, seconds):
    for _ in range(count):
        clock[0] += seconds
        bar.set_postfix({"loss": "0.5"})
        bar.update()


def written(monkeypatch, stream, clock, count, seconds):
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar(total=count, desc="adding") as bar:
        bar._time = lambda: clock[0]
        bar.start_t = bar.last_print_t = clock[0]
        steps(bar, clock, count, seconds)
    return stream.getvalue()


def test_lines_come_about_every_ten_seconds(monkeypatch, clock):
    lines = written(monkeypatch, io.StringIO(), clock, 100, 0.5).splitlines()
    assert 4 <= len(lines) <= 5
    assert all(line.startswith("adding: ") and "loss=0.5" in line for line in lines)
    assert "\r" not in "".join(lines)


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_short_phases_show_nothing(monkeypatch, clock, stream):
    assert written(monkeypatch, stream(), clock, 15, 0.1) == ""


def test_terminals_have_bars(monkeypatch, clock):
    shown = written(monkeypatch, Terminal(), clock, 30, 0.1)
    assert shown.count("\r") > 5
    assert "100%|" in shown


def test_sentences_stand_in_lines_of_their_own(monkeypatch, clock):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar(total=3):
        log("the rate falls")
    assert stream.getvalue() == "the rate falls\n"


def test_only_this_thread_is_silent(capsys):
    with silenced():
        with silenced(), silenced(False):
            log("hidden")
        other = threading.Thread(target=log, args=("from another thread",))
        other.start()
        other.join()
        log("hidden, too")
    with silenced(False):
        log("seen")
    assert capsys.readouterr().err == "from another thread\nseen\n"
