"""Calls of a command in this process."""

import contextlib
import io

from slide.predict import command


def slide_predict(*words) -> str:
    """What ``slide-predict`` with one thread writes to the output."""
    # The command writes bytes, which pytest's own capture does not take.
    out = io.TextIOWrapper(io.BytesIO())
    with contextlib.redirect_stdout(out):
        command.main([*map(str, words), "--threads", "1"])
    out.flush()
    return out.buffer.getvalue().decode()
