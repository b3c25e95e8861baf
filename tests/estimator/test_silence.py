"""What a thread writes to standard error, and what others write meanwhile."""

import sys
import threading

from slide.estimator.silence import silence


def test_only_this_thread_is_silent(capsys):
    entered, said = threading.Event(), threading.Event()

    def speak():
        entered.wait(5)
        print("from another thread", file=sys.stderr)
        said.set()

    other = threading.Thread(target=speak)
    other.start()
    with silence():
        with silence():
            print("hidden", file=sys.stderr)
        entered.set()
        said.wait(5)
        print("hidden, too", file=sys.stderr)
        assert not sys.stderr.isatty()
    other.join()
    with silence(False):
        print("seen", file=sys.stderr)
    assert capsys.readouterr().err == "from another thread\nseen\n"


def test_it_is_put_back_after_an_error():
    before = sys.stderr
    try:
        with silence():
            raise ValueError
    except ValueError:
        pass
    assert sys.stderr is before
