"""Signals that end a program, also where Python loses them; and those that are left alone."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from slide.utils.commands import ending_errors
from slide.utils.files import replacing
from slide.utils.signals import Terminated, exit_status, noted_interrupts, raised_terminations

ROOT = Path(__file__).parents[2]
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("looped", [True, False])
def test_a_signal_that_gets_lost_is_noted_by_the_next_loop_or_raised_at_the_end(looped, number):
    noted = []

    def run():
        with raised_terminations():
            with suppress(KeyboardInterrupt):  # As in a callback of a compiler.
                signal.raise_signal(number)
            if looped:
                with noted_interrupts() as interrupt:
                    noted.append(interrupt.error)
            noted.append("reached")

    with pytest.raises(KeyboardInterrupt) as ended:
        run()
    assert exit_status(ended.value) == 128 + number
    assert noted[-1] == "reached"
    assert not looped or noted[0] is ended.value
    with raised_terminations(), noted_interrupts() as interrupt:
        assert interrupt.error is None, "it is of the program before"


def test_a_termination_is_not_hidden_by_an_error_that_follows_from_it():
    def tidy_up():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            {}["of a library that was interrupted while it made this"]

    with pytest.raises(Terminated), raised_terminations():
        tidy_up()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_as_soon_as_there_is_a_handler(monkeypatch, number):
    install, sent = signal.signal, []

    def interrupted(which, handler):
        before = install(which, handler)
        if which == signal.SIGTERM and not sent:
            sent.append(number)
            os.kill(os.getpid(), number)
        return before

    monkeypatch.setattr(signal, "signal", interrupted)
    with noted_interrupts() as interrupt:
        assert interrupt.error is not None


@pytest.fixture
def handle():
    """Set handlers, which are put back."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield signal.signal
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_terminal_that_closes_ends_a_run_as_a_termination_does(handle):
    """It sends SIGHUP twice: by the shell, and when the shell ends."""
    handle(signal.SIGHUP, signal.SIG_DFL)

    def run():
        with raised_terminations():
            with noted_interrupts() as interrupt:
                for _ in range(2):
                    signal.raise_signal(signal.SIGHUP)
                assert interrupt.error is not None
                assert exit_status(interrupt.error) == 129
            try:
                signal.raise_signal(signal.SIGHUP)
            finally:
                signal.raise_signal(signal.SIGHUP)

    with pytest.raises(Terminated) as ended:
        run()
    assert exit_status(ended.value) == 129
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


IGNORED = [(number, signal.SIG_IGN) for number in SIGNALS]


@pytest.mark.parametrize(("number", "handler"), [*IGNORED, (signal.SIGHUP, lambda *_: None)])
def test_ignored_signals_and_the_hangup_of_a_program_are_left_alone(handle, number, handler):
    """Shells ignore Ctrl-C for what a script has in the background, and nohup a hangup."""
    handle(number, handler)
    with raised_terminations(), noted_interrupts() as interrupt:
        signal.raise_signal(number)
        assert interrupt.error is None
        assert signal.getsignal(number) is handler or handler == signal.SIG_IGN


@pytest.mark.parametrize("number", SIGNALS)
def test_commands_end_with_the_status_of_a_signal_and_leave_no_temporary_file(
    handle, tmp_path, number
):
    def write():
        with ending_errors(), replacing(tmp_path / "answers"):
            assert list(tmp_path.iterdir())
            signal.raise_signal(number)

    if number != signal.SIGINT:
        handle(number, signal.SIG_DFL)
    with pytest.raises(SystemExit) as ended:
        write()
    assert ended.value.code == 128 + number
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("program", ["train.py", "slide-train", "mine"])
def test_ctrl_c_while_a_command_imports_has_no_traceback(tmp_path, program):
    """In the place of numba, which slide imports first, there is a key that somebody presses."""
    (tmp_path / "numba.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    (tmp_path / program).write_text("import slide\n")
    path = ROOT / program if program == "train.py" else tmp_path / program
    start = f"import runpy, sys\nsys.path[:0] = {[str(tmp_path), str(ROOT)]}\n"
    start += f"sys.argv = [{str(path)!r}]\nrunpy.run_path({str(path)!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True)
    assert done.returncode == -signal.SIGINT  # Which shells show as 130.
    assert bool(done.stderr) == (program == "mine"), done.stderr
