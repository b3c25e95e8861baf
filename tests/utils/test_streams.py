"""Commands and programs go on where standard error is closed, full, or read by nobody."""

import io
import subprocess
import sys

import numpy as np
import pytest
from helpers import job
from helpers.programs import TESTS

from slide import SlideClassifier
from slide.utils.progress_bar import ProgressBar, log


def ended(redirection, *words):
    """What came of a Python program whose streams a shell redirects."""
    call = ["bash", "-c", f'exec "$@" {redirection}', "bash", sys.executable, *words]
    return subprocess.run(call, cwd=TESTS.parent, capture_output=True, text=True, timeout=100)


def test_a_run_goes_on_without_its_messages(tmp_path):
    words = job.tiny(tmp_path, *job.UNRANKED, "trainer.max_steps=1")
    done = ended("2>&-", "train.py", *words)
    (line,) = done.stdout.splitlines()  # Messages are no results.
    run = tmp_path / "run"
    assert (done.returncode, line.split()[-1]) == (0, str(run))
    assert (run / "model.json").exists()


def test_what_cannot_be_written_changes_no_exit_status():
    """Python's own would be 120. A result that is lost is an error, a message is not."""
    assert ended(">/dev/full 2>/dev/full", "train.py", "--version").returncode == 1
    words = "from slide.utils.progress_bar import log; log('a message')"
    assert ended("2>/dev/full", "-c", words).returncode == 0


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


class Unread(io.StringIO):
    """A pipe whose reader has gone."""

    def write(self, text):
        raise BrokenPipeError

    def flush(self):
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [lambda: None, closed, Unread])
def test_a_program_goes_on_without_messages(monkeypatch, stream):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream())
        patch.setattr("slide.utils.progress_bar._end_without_rest", bool)  # Of this process.
        log("a message")
        with ProgressBar(total=2) as bar:
            bar.display("a bar")
            bar.fp.write("a line")
        x = np.eye(8, dtype=np.float32)
        model = SlideClassifier(epochs=1, verbose=True, random_state=0).fit(x, np.arange(8))
    assert model.predict(x).shape == (8,)
