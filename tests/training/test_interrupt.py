"""A request to stop whose error gets lost, as in a callback of a compiler."""

import os
import signal
from contextlib import suppress

import pytest

from slide.training.coordination import Terminated, noted_interrupts, raised_terminations


def lose_a_termination():
    with suppress(Terminated):
        os.kill(os.getpid(), signal.SIGTERM)


def in_a_loop():
    with raised_terminations():
        lose_a_termination()
        with noted_interrupts() as interrupt:
            assert isinstance(interrupt.error, Terminated)


def outside_of_a_loop(reached):
    with raised_terminations():
        lose_a_termination()
        reached.append(True)


def test_the_next_loop_notes_it():
    with pytest.raises(Terminated):
        in_a_loop()


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


def test_the_end_raises_it():
    reached = []
    with pytest.raises(Terminated):
        outside_of_a_loop(reached)
    assert reached
    with raised_terminations(), noted_interrupts() as interrupt:
        assert interrupt.error is None, "it is of the program before"
